"""Gradient inversion shows what a client's examples look like."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="inversion",
    question="What do a client's examples look like?",
    attacks={"inversion": "inversion:GradientInversion"},
    judges={"inversion": "judge:InversionJudge"},
    options={"inversion": "options:GradientInversionOptions"},
    section="section:SECTION",
)
