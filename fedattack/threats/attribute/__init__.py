"""Attribute inference fills in the one column of clients' examples that the server lacks."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="attribute",
    question="What stands in the one column of clients' examples that the server lacks?",
    attacks={
        "aia": "aia:ModelBased",
        "ara": "ara:GradientMatching",
        "attribute-baselines": "baselines:AttributeBaselines",
    },
    judges={"aia": "judge:ModelBasedJudge", "ara": "judge:AttributeJudge"},
    options={
        "aia": "options:ModelBasedOptions",
        "ara": "options:GradientMatchingOptions",
        "attribute-baselines": "options:BaselinesOptions",
    },
    section="section:SECTION",
)
