"""What an audit did not ask, and why: questions of other threats that this record, or this knowledge, cannot answer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedattack.attacks import ATTACKS, Attack
from fedattack.attacks.needs import FAILED, UNFIT
from fedattack.attacks.registry import THREATS
from fedattack.attacks.threat import Threat
from fedattack.audit.judge import judge_of
from fedattack.audit.opened import Run
from fedattack.base.failures import Failure, failing_alone
from fedattack.base.reasons import NOTHING, Reason, merge_reasons

UNSTATED = "unstated"
"""Kind of a reason that says that the truth does not state what a judge compares with."""


def untried_of(
    runs: Sequence[Run],
    stated: Mapping[str, str] | None = None,
    failed: Mapping[str, Failure] | None = None,
    remedies: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """List the questions that were not asked, or not answered: ``question``, ``why`` and ``remedy``, for each threat.

    Parameters
    ----------
    stated
        By the name of a threat, the reason that whoever ran the attacks gives; also by questions that no threat asks.
    failed
        By attack, why its scores could not be judged; such a question has ``failed``, too, and no ``remedy``.
    remedies
        By the name of a threat, what would make it possible, as whoever ran the attacks says.
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
            reason = Reason((stated or {}).get(threat.name, ""), "", (remedies or {}).get(threat.name, ""))
            if not reason.what:
                reason = _explain(threat, runs[0])
            entries.append(_enter(question, reason))
    for question, why in (stated or {}).items():
        if question not in THREATS:
            entries.append(_enter(question, Reason(why, "", (remedies or {}).get(question, ""))))
    return entries


def _enter(question: str, reason: Reason) -> dict[str, Any]:
    """Return the entry of a question; a study of an earlier version says no remedy."""
    entry = {"question": question, "why": reason.what}
    if reason.remedy:
        entry["remedy"] = reason.remedy
    return entry


def _explain(threat: Threat, run: Run) -> Reason:
    """Say what keeps the attack of a threat that lacks least from being tried, and what would help."""
    obstacles = find_fewest_obstacles(threat, lambda attack: find_obstacles(attack, run))
    if obstacles is None:
        return Reason("it has no attack that can be judged", UNFIT, f"{NOTHING}no attack asks it")
    name, reasons = obstacles
    if not reasons:
        return Reason("nobody asked it of this record", "", f"`fedattack attack {name} DIR`")
    return merge_reasons(reasons)


def find_fewest_obstacles(threat: Threat, find: Callable[[Attack], list[Reason]]) -> tuple[str, list[Reason]] | None:
    """Return the attack of a threat that lacks least, and why it cannot be made: that says best what is missing.

    ``None`` where the threat has no attack that can be judged. Another package's attack may fail when it is asked; then
    that is the reason.
    """
    fewest: tuple[str, list[Reason]] | None = None
    for name in threat.judged:
        failed: dict[str, Failure] = {}
        reasons: list[Reason] = []
        with failing_alone(failed, name):
            reasons = find(ATTACKS[name])
        if failed:
            why = f"{name} cannot say what it needs: {failed[name].why}"
            reasons = [Reason(why, FAILED, "another version of the package that has this attack")]
        if fewest is None or len(reasons) < len(fewest[1]):
            fewest = name, reasons
    return fewest


def find_obstacles(attack: Attack, run: Run) -> list[Reason]:
    """Say why an attack cannot be made of a run, or not be judged; nothing if it can."""
    obstacles = attack.find_obstacles(run.sent, run.knowledge)
    judge = judge_of(attack.name)
    if judge is not None and not obstacles:
        # Attributes that a judge asks for are None where a truth does not state them.
        unjudged = [name for name in judge.needs_truth if getattr(run.truth, name, None) is None]
        if unjudged:
            what = "the truth lacks what the judge needs"
            obstacles.append(
                Reason(what, UNSTATED, "a truth that states it, as `fedattack.audit.truth.write_truth` writes")
            )
    return obstacles
