"""Exact: which training examples can be read off the first fully connected layer, number by number."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="exact",
    question="Which training examples can be read off exactly?",
    attacks={"exact": "exact:FirstLayerReading"},
    judges={"exact": "judge:ExactJudge"},
    options={"exact": "options:ExactOptions"},
    section="section:SECTION",
)
