"""Plaintext is what stands beside a model: numbers, lists and texts, which nobody masks or averages."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="plaintext",
    question="What do numbers and texts beside the model give away?",
    attacks={"plaintext": "plaintext:Plaintext"},
    judges={"plaintext": "judge:PlaintextJudge"},
    options={"plaintext": "options:PlaintextOptions"},
    section="section:SECTION",
)
