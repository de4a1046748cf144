"""Sequences: which sequences of tokens a client trains on, by what the gradients of self-attention span."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="sequences",
    question="Which sequences of tokens did a client train on?",
    attacks={"dager": "dager:SpanCheck"},
    judges={"dager": "judge:SequencesJudge"},
    options={"dager": "options:SequencesOptions"},
    section="section:SECTION",
)
