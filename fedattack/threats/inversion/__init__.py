"""Gradient inversion shows what a client's examples look like."""

from fedattack.threats.threat import Threat

THREAT = Threat(
    package=__name__,
    name="inversion",
    question="What do a client's examples look like?",
    attacks={"inversion": "inversion:GradientInversion"},
    judges={"inversion": "judge:InversionJudge"},
    section="section:SECTION",
)
