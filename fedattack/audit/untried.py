"""What an audit did not ask, and why: questions of other threats that this record, or this knowledge, cannot answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedattack.attacks import ATTACKS, Attack
from fedattack.attacks.registry import THREATS
from fedattack.attacks.threat import Threat
from fedattack.audit.judge import judge_of
from fedattack.audit.opened import Run
from fedattack.base.failures import Failure, failing_alone


def untried_of(
    runs: Sequence[Run],
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
    asked = {*runs[0].scores} - {*unjudged}
    entries: list[dict[str, Any]] = []
    for threat in THREATS.values():
        question, failures = threat.question, [name for name in threat.attacks if name in unjudged]
        if asked & {*threat.judged} and failures:
            # Another attack answers the question.
            question += f" ({', '.join(failures)})"
        # A failure comes first: it explains why a question that was asked has no answer.
        if failures:
            why = "; ".join(f"{name} could not be judged: {unjudged[name].why}" for name in failures)
            entries.append({"question": question, "why": why, "failed": True})
        elif not asked & {*threat.attacks}:
            # Who posed the questions may know a better reason than the record shows.
            why = (stated or {}).get(threat.name) or _why(threat, runs[0])
            entries.append({"question": question, "why": why})
    for question, why in (stated or {}).items():
        if question not in THREATS:
            entries.append({"question": question, "why": why})
    return entries


def _why(threat: Threat, run: Run) -> str:
    """Say what keeps the attack of a threat that lacks least from being tried."""
    fewest: list[str] | None = None
    for name in threat.judged:
        failed: dict[str, Failure] = {}
        missing: list[str] = []
        with failing_alone(failed, name):
            # Another package's attack may fail here; then it says so, and the rest is listed.
            missing = _find_obstacles(ATTACKS[name], run)
        if failed:
            missing = [f"{name} cannot say what it needs: {failed[name].why}"]
        if not missing:
            return f"`fedattack attack {name} DIR` asks it of this record"
        if fewest is None or len(missing) < len(fewest):
            fewest = missing
    return "; ".join(fewest or ["it has no attack that can be judged"])


def _find_obstacles(attack: Attack, run: Run) -> list[str]:
    """Say why an attack cannot be made of a run, or not be judged; nothing if it can."""
    obstacles = [reason.what for reason in attack.find_obstacles(run.record, run.knowledge)]
    judge = judge_of(attack.name)
    if judge is not None and not obstacles:
        # Attributes that a judge asks for are None where a truth does not state them.
        unjudged = [name for name in judge.needs_truth if getattr(run.truth, name, None) is None]
        if unjudged:
            obstacles.append("the truth lacks what the judge needs")
    return obstacles
