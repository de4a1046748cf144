"""Find out whether an attack that shows nothing would have seen a leak: a positive control.

The same attack is made of the same record, in which something is planted: each client is trained further on those of
the targets that are its own, by the app's own step. If no amount of that is seen, the attack cannot tell anything here.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedattack.apps.app import App
from fedattack.apps.asking import Asker, Inquiry
from fedattack.attacks import ATTACKS
from fedattack.attacks.answers import Answers
from fedattack.audit.control import NEVER
from fedattack.audit.evidence import Evidence, read_evidence
from fedattack.audit.finding import LEAK, NO_EVIDENCE, Finding, answering
from fedattack.audit.judging import judge_attacks
from fedattack.base.errors import DataError, FedAttackError, short
from fedattack.record.folder import Part
from fedattack.runs.watch import Watch
from fedattack.witness import Witness

PASSES = (1, 4, 16, 64)
"""How often a client goes over its own targets once more, in the order in which this is tried."""

_TAKEN = "losses"


def control(
    app: App,
    parts: Sequence[Part],
    witnesses: Sequence[Sequence[Witness]],
    trusted: Collection[str],
    watch: Watch,
) -> dict[str, int]:
    """Find from how much planted training on each attack that shows nothing would have shown it.

    Parameters
    ----------
    app
        What is asked.
    parts, witnesses
        All runs, attacked, and what clients did in each.
    trusted
        Import paths that the app itself gave.

    Returns
    -------
    dict of str to int
        By the attack's name, the number of passes, or :data:`NEVER`; nothing of attacks that show a leak or take no
        losses, or where nothing can be planted.
    """
    evidence = read_evidence(Path(parts[0].folder), trusted=trusted)
    names = [name for name in evidence[0].scores if _TAKEN in ATTACKS[name].needs.knowledge]
    shown = _headlines(evidence, names)
    unseen = [name for name in names if name in shown and shown[name].verdict == NO_EVIDENCE]
    if not unseen:
        return {}
    try:
        planted = [_plant(app, one, seen, watch) for one, seen in zip(evidence, witnesses, strict=True)]
    except FedAttackError as cause:
        watch.say("warning", f"no positive control: {short(str(cause), 300)}")
        return {}
    found: dict[str, int] = {}
    for passes in PASSES:
        watch.step("positive control", PASSES.index(passes), len(PASSES))
        of_case = []
        for one, answers in zip(evidence, planted, strict=True):
            of_case.append(_attack(one, answers[passes], [name for name in unseen if name not in found]))
        for name, finding in _headlines(of_case, unseen).items():
            if finding.verdict == LEAK:
                found.setdefault(name, passes)
        if len(found) == len(unseen):
            break
    return {name: found.get(name, NEVER) for name in unseen}


def _headlines(evidence: Sequence[Evidence], names: Collection[str]) -> dict[str, Finding]:
    """Judge all attacks, as the report corrects them for each other, and return the headline of each of these."""
    if not names:
        return {}
    findings = answering(judge_attacks(evidence, setting={}, provenance={}))
    return {finding.attack: finding for finding in findings if finding.attack in names}


def _plant(app: App, evidence: Evidence, witnesses: Sequence[Witness], watch: Watch) -> dict[int, Answers]:
    """Ask about replies in which something is planted.

    Raises
    ------
    DataError
        If nobody knows which client holds a target, or the app cannot be asked.
    """
    targets, truth = evidence.knowledge.targets, evidence.truth
    owned: dict[str, list[int]] = {}
    if truth is not None:
        for node, client in truth.nodes.items():
            owned[node] = np.flatnonzero(truth.owners == client).tolist()
    if targets is None or not any(owned.values()):
        raise DataError(f"of no target of {evidence.part.label} it is known which client alone holds it")

    inquiry = Inquiry(evidence.part, witnesses, targets, evidence.knowledge.sends)
    return Asker(app, watch).planted(inquiry, owned, PASSES)


def _attack(evidence: Evidence, answers: Answers, names: Collection[str]) -> Evidence:
    """Make the same attacks of replies in which something is planted; what others found stays as it is."""
    knowledge = replace(evidence.knowledge, model=None, answers=answers)
    scores = {name: ATTACKS[name].run(evidence.record, knowledge, device="cpu") for name in names}
    return replace(evidence, scores={**evidence.scores, **scores})
