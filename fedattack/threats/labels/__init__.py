"""Labels: how many examples of each label a client holds, read off how the last layer moves."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="labels",
    question="How many examples of each label does a client hold?",
    attacks={"labels": "labels:LabelCounting"},
    judges={"labels": "judge:LabelsJudge"},
    options={"labels": "options:LabelsOptions"},
    section="section:SECTION",
)
