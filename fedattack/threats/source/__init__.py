"""Source inference finds out which client holds an example."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="source",
    question="Which client holds this example?",
    attacks={"sia": "sia:SourceInference"},
    judges={"sia": "judge:SourceJudge"},
    options={"sia": "options:SourceOptions"},
    section="section:SECTION",
)
