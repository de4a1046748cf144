"""Property inference finds out which clients have a property, from sums of their updates alone."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="property",
    question="Which clients have a property, if the server sees sums alone?",
    attacks={"prolin": "prolin:Prolin"},
    judges={"prolin": "judge:PropertyJudge"},
    options={"prolin": "options:ProlinOptions"},
    section="section:SECTION",
)
