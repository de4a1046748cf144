"""Property inference finds out which clients have a property, from sums of their updates alone."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="property",
    question="Which clients have a property, if the server sees sums alone?",
    attacks={"prolin": "prolin:Prolin"},
    judges={"prolin": "judge:PropertyJudge"},
    options={"prolin": "options:ProlinOptions"},
    findings={
        "prolin": (
            "f1",
            "f1-reg",
            "f1-ols",
            "f1-baseline",
            "f1-posterior",
            "precision",
            "recall",
            "recall-at-far",
            "recall-at-far-posterior",
            "plaintext",
            "false-alarms",
        )
    },
    section="section:SECTION",
)
