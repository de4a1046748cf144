"""What an audit did not ask, and why: questions of other threats that this record, or this knowledge, cannot answer."""

from collections.abc import Sequence

from fedattack.audit.evidence import Evidence
from fedattack.audit.judge import judge_of
from fedattack.threats import ATTACKS, Attack
from fedattack.threats.registry import threats
from fedattack.threats.threat import Threat

_VIEWS = {
    "individual": "it needs each client's reply, and this server sees sums alone",
    "aggregate": "it is about sums of updates, and this server sees each client's reply",
}
_PROTOCOLS = {"fedavg": "models", "fedsgd": "gradients", "fedmd": "predictions"}
_KNOWLEDGE = {
    "model": "the clients' model",
    "targets": "examples to ask about",
    "auxiliary": "examples of the attacker's own",
    "attributes": "attributes of the attacker's examples",
    "training": "how clients train",
    "property": "a property to ask about",
    "partial": "clients' examples without one column",
}


def untried_of(evidence: Sequence[Evidence]) -> list[dict[str, str]]:
    """List the questions that were not asked: ``question`` and ``why``, for each threat without scores."""
    asked = evidence[0].scores
    found = []
    for threat in threats().values():
        if not set(threat.attacks) & set(asked):
            found.append({"question": threat.question, "why": _why(threat, evidence[0])})
    return found


def _why(threat: Threat, evidence: Evidence) -> str:
    """Say what keeps the attack of a threat that lacks least from being tried."""
    fewest: list[str] | None = None
    for name in threat.judges:
        lacking = _lacking(ATTACKS[name], evidence)
        if not lacking:
            return f"`fedattack attack {name} DIR` asks it of this record"
        if fewest is None or len(lacking) < len(fewest):
            fewest = lacking
    return "; ".join(fewest or ["it has no attack that can be judged"])


def _lacking(attack: Attack, evidence: Evidence) -> list[str]:
    needs, record = attack.needs, evidence.record
    lacking = []
    if record.view not in needs.views:
        lacking.append(_VIEWS[needs.views[0]])
    if record.protocol not in needs.protocols:
        wanted = " or ".join(_PROTOCOLS[name] for name in needs.protocols)
        lacking.append(f"it needs {wanted}, and these clients send {_PROTOCOLS[record.protocol]}")
    unknown = [_KNOWLEDGE.get(need, need) for need in needs.knowledge if not evidence.knowledge.has(need)]
    if unknown:
        lacking.append(f"the attacker does not know {', '.join(unknown)}")
    judge = judge_of(attack.name)
    if judge is not None and not lacking:
        missing = [name for name in judge.needs_truth if getattr(evidence.truth, name, None) is None]
        if missing:
            lacking.append("the truth does not hold what it would be judged by")
    return lacking
