"""Source inference finds out which client holds an example."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="source",
    question="Which client holds this example?",
    attacks={"sia": "sia:SourceInference"},
    judges={"sia": "judge:SourceJudge"},
    options={"sia": "options:SourceOptions"},
    findings={
        "sia": (
            "asr",
            "asr-likelihood",
            "asr-last-round",
            "asr-best-round",
            "asr-worst-client",
            "asr-shared",
            "asr-beyond-labels",
            "asr-beyond-site",
        )
    },
    section="section:SECTION",
)
