"""Source inference finds out which client holds an example."""

from fedattack.threats.threat import Threat

THREAT = Threat(
    package=__name__,
    name="source",
    question="Which client holds this example?",
    attacks={"sia": "sia:SourceInference"},
    judges={"sia": "judge:SourceJudge"},
    section="section:SECTION",
)
