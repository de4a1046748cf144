"""Tokens: which words, items or categories a client holds, by which rows of a table moved."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="tokens",
    question="Which words, items or categories does a client hold?",
    attacks={"tokens": "tokens:MovedRows"},
    judges={"tokens": "judge:TokensJudge"},
    options={"tokens": "options:TokensOptions"},
    section="section:SECTION",
)
