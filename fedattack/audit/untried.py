"""What an audit did not ask, and why: questions of other threats that this record, or this knowledge, cannot answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedattack.attacks import ATTACKS, Attack, Knowledge
from fedattack.attacks.registry import THREATS
from fedattack.attacks.threat import Threat
from fedattack.audit.evidence import Evidence
from fedattack.audit.judge import judge_of
from fedattack.base.failures import Failure, failing_alone
from fedattack.record import Record
from fedattack.record.format import PROTOCOLS

# By the view that an attack needs, what keeps it from a record of the other one.
VIEWS = {
    "individual": "it needs each client's reply, and this server sees sums alone",
    "aggregate": "it is about sums of updates, and this server sees each client's reply",
}
_KNOWLEDGE = {
    "model": "the clients' model",
    "losses": "the clients' model and loss",
    "targets": "examples to ask about",
    "auxiliary": "examples of the attacker's own",
    "attributes": "attributes of the attacker's examples",
    "training": "how clients train",
    "property": "a property to ask about",
    "partial": "clients' examples without one column",
}


def untried_of(
    evidence: Sequence[Evidence],
    stated: Mapping[str, str] | None = None,
    failed: Mapping[str, Failure] | None = None,
) -> list[dict[str, Any]]:
    """List the questions that were not asked, or not answered: ``question`` and ``why``, for each threat.

    Parameters
    ----------
    stated
        By the name of a threat, the reason that whoever ran the attacks gives; also by questions that no threat asks.
    failed
        By attack, why its scores could not be judged; such a question has ``failed``, too.
    """
    unjudged = failed or {}
    asked = {*evidence[0].scores} - {*unjudged}
    found: list[dict[str, Any]] = []
    for threat in THREATS.values():
        question, failures = threat.question, [name for name in threat.attacks if name in unjudged]
        if asked & {*threat.judged} and failures:
            # Another attack answers the question.
            question += f" ({', '.join(failures)})"
        if failures:
            why = "; ".join(f"{name} could not be judged: {unjudged[name].why}" for name in failures)
            found.append({"question": question, "why": why, "failed": True})
        elif not asked & {*threat.attacks}:
            why = (stated or {}).get(threat.name) or _why(threat, evidence[0])
            found.append({"question": question, "why": why})
    for question, why in (stated or {}).items():
        if question not in THREATS:
            found.append({"question": question, "why": why})
    return found


def _why(threat: Threat, evidence: Evidence) -> str:
    """Say what keeps the attack of a threat that lacks least from being tried."""
    fewest: list[str] | None = None
    for name in threat.judged:
        failed: dict[str, Failure] = {}
        missing: list[str] = []
        with failing_alone(failed, name):
            missing = _missing(ATTACKS[name], evidence)
        if failed:
            missing = [f"{name} cannot say what it needs: {failed[name].why}"]
        if not missing:
            return f"`fedattack attack {name} DIR` asks it of this record"
        if fewest is None or len(missing) < len(fewest):
            fewest = missing
    return "; ".join(fewest or ["it has no attack that can be judged"])


def _missing(attack: Attack, evidence: Evidence) -> list[str]:
    missing = lacking(attack, evidence.record, evidence.knowledge)
    judge = judge_of(attack.name)
    if judge is not None and not missing:
        unjudged = [name for name in judge.needs_truth if getattr(evidence.truth, name, None) is None]
        if unjudged:
            missing.append("the truth does not hold what it would be judged by")
    return missing


def lacking(attack: Attack, record: Record, knowledge: Knowledge) -> list[str]:
    """Say what an attack needs that is neither in a record nor known besides; nothing if it can be made."""
    needs = attack.needs
    found = []
    if record.view not in needs.views:
        found.append(VIEWS[needs.views[0]])
    if record.protocol not in needs.protocols:
        wanted = " or ".join(PROTOCOLS[name].replies for name in needs.protocols)
        found.append(f"it needs {wanted}, and these clients send {PROTOCOLS[record.protocol].replies}")
    if needs.server not in ("", record.server):
        found.append(f"it needs a server that is {needs.server}, and this one is {record.server}")
    unknown = [_KNOWLEDGE.get(need, need) for need in needs.knowledge if not knowledge.has(need)]
    if unknown:
        found.append(f"the attacker does not know {', '.join(unknown)}")
    return [*found, *attack.unfit(record, knowledge)]
