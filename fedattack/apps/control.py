"""Find out whether an attack that shows nothing would have seen a leak: a positive control.

The same attack is made of the same record, in which something is planted by the app's own step. For attacks of losses
each client is trained further on those of the targets that are its own. For attacks that read updates it sends one
plain step on a few of them in the place of its reply. Where the attack counts all that a client holds, the step is on
all of them. For attacks on tables it sends trees that split by its own values, and for what is read as it is, examples
of its own. If nothing of that is seen, the attack cannot tell anything here.
"""

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fedattack.apps.app import App
from fedattack.apps.asking import Asker, Inquiry
from fedattack.apps.functions import NO_FUNCTIONS, OwnFunctions
from fedattack.apps.player import STEPPING
from fedattack.attacks import ATTACKS
from fedattack.attacks.base import Plants
from fedattack.audit.control import PLANTED, STEPPED, TRAINED, WHOLE, Control
from fedattack.audit.finding import LEAK, NO_EVIDENCE, Finding, answering
from fedattack.audit.judging import judge_attacks
from fedattack.audit.opened import Run
from fedattack.base.errors import DataError, FedAttackError
from fedattack.base.failures import Failure, failing_alone, is_unforeseen
from fedattack.base.structured import finite
from fedattack.learning import LocalSGD
from fedattack.record import Exchange, Round, rewrite_record
from fedattack.runs.private import private_folder
from fedattack.runs.watch import Watch
from fedattack.witness import Witness

PASSES = ((1, 4), (16, 64))
"""How often a client goes over its own targets once more, in the order in which this is tried: the many take long."""

TOGETHER = (16, 4, 1)
"""How many of its own targets are in a client's step, at most."""

ALL = 0
"""Stands for a step on all of a client's own targets."""

VALUES = (1, 4, 16, 64)
"""By how many of its own values of each column a client's trees split, or how many of its own examples it sends."""


def control(
    app: App,
    runs: Sequence[Run],
    witnesses: Sequence[Sequence[Witness]],
    watch: Watch,
    faults: list[str],
    functions: OwnFunctions = NO_FUNCTIONS,
) -> dict[str, Control]:
    """Find from how much that is planted each attack that shows nothing would have shown it.

    ``witnesses`` say what the clients of each run did. Returned is by attack; nothing of attacks that show a leak, or
    where nothing can be planted. To ``faults`` is added what nobody foresaw, and what it keeps from being controlled.
    """
    # Each control asks the clients' own app, which runs in processes of its own.
    asker = Asker(app, watch, functions)
    # Of what cannot be judged there is nothing to control, and the report says why.
    shown = _headlines(runs, [*runs[0].scores], {})
    unseen = [name for name, finding in shown.items() if finding.verdict == NO_EVIDENCE]
    found: dict[str, Control] = {}
    given_up: set[tuple[str, str]] = set()
    if not unseen:
        return found
    by_kind = {kind: [name for name in unseen if _takes(name, kind)] for kind in (TRAINED, STEPPED, WHOLE, PLANTED)}
    with private_folder(runs[0].part.folder) as folder:
        # In the order of their cost; each is tried only on what showed nothing before.
        tries: list[tuple[str, list[str], Sequence[int], Callable[..., Mapping[int, Run]]]] = [
            *((TRAINED, by_kind[TRAINED], passes, _train_further) for passes in PASSES),
            (STEPPED, by_kind[STEPPED], TOGETHER, partial(_step, folder)),
            (WHOLE, by_kind[WHOLE], (ALL,), partial(_step, folder)),
            # What gives rows away to one attack tells another nothing.
            *(
                (_find_kind(name), [name], (count,), partial(_plant_rows, folder, name))
                for name in by_kind[PLANTED]
                for count in VALUES
            ),
        ]
        for kind, names, amounts, plant in tries:
            left = []
            for name in names:
                # What showed a leak needs no more; what failed once in a way fails again.
                if (kind, name) not in given_up and not (name in found and found[name].is_seen):
                    left.append(name)
            if not left:
                continue
            lost: dict[str, Failure] = {}
            unplanted: dict[str, Failure] = {}
            # If nothing can be planted in this way, all that it was for have no control.
            with failing_alone(unplanted, kind):
                of_run = [plant(asker, run, seen, amounts) for run, seen in zip(runs, witnesses, strict=True)]
                found |= _look(left, kind, runs, of_run, amounts, watch, lost)
            for failure in unplanted.values():
                lost |= dict.fromkeys(left, failure)
            given_up |= {(kind, name) for name in lost}
            _say_lost(lost, watch, faults)
    return found


def _say_lost(lost: Mapping[str, Failure], watch: Watch, faults: list[str]) -> None:
    """Warn of attacks that have no positive control; those for a reason that nobody foresaw are added to `faults`."""
    by_reason: dict[str, list[str]] = {}
    for name, failure in lost.items():
        by_reason.setdefault(failure.why, []).append(name)
    for why, names in by_reason.items():
        line = f"no positive control of {', '.join(names)}: {why}"
        watch.say("warning", line)
        if is_unforeseen(why):
            faults.append(line)


def _takes(name: str, kind: str) -> bool:
    """Say whether an attack is shown what is planted in this way."""
    attack = ATTACKS[name]
    takes = {
        TRAINED: "losses" in attack.needs.knowledge,
        STEPPED: attack.in_apps.reads_steps and not attack.in_apps.reads_all,
        WHOLE: attack.in_apps.reads_steps and attack.in_apps.reads_all,
        PLANTED: isinstance(attack, Plants),
    }
    return takes[kind]


def _find_kind(name: str) -> str:
    """Return what an attack that plants lets clients send."""
    attack = ATTACKS[name]
    if not isinstance(attack, Plants):
        return PLANTED
    return attack.planted


def _look(
    names: Sequence[str],
    kind: str,
    runs: Sequence[Run],
    planted: Sequence[Mapping[int, Run]],
    amounts: Sequence[int],
    watch: Watch,
    lost: MutableMapping[str, Failure],
) -> dict[str, Control]:
    """Make attacks of what is planted, and say from how much on each shows a leak.

    `lost` is told which cannot be made, or judged, so that nothing is known of them.
    """
    found: dict[str, Control] = {}
    for done, amount in enumerate(amounts):
        watch.step("positive control", done, len(amounts))
        left = [name for name in names if name not in lost and not (name in found and found[name].is_seen)]
        if not left:
            break
        # With names of `left` alone: other attacks keep the scores that they had.
        attacked = [_attack(run, by_amount[amount], left, lost) for run, by_amount in zip(runs, planted, strict=True)]
        shown = _headlines(attacked, left, lost)
        for name in left:
            if name in lost:
                found.pop(name, None)
                continue
            # The verdict after the correction: a control must show what the report would call a leak.
            is_seen = name in shown and shown[name].verdict == LEAK
            found[name] = Control(kind, amount, is_seen)
    return found


def _attack(run: Run, planted: Run, names: Collection[str], lost: MutableMapping[str, Failure]) -> Run:
    """Make attacks of a run in which something is planted; those that refuse it show nothing, and others stay."""
    scores = {name: one for name, one in run.scores.items() if name not in names}
    for name in names:
        # An attack that refuses what is planted shows nothing, which is no fault.
        with failing_alone(lost, name), suppress(FedAttackError):
            scores[name] = ATTACKS[name].run(planted.sent, planted.knowledge, device="cpu")
    return run.with_scores(scores)


def _headlines(runs: Sequence[Run], names: Collection[str], lost: MutableMapping[str, Failure]) -> dict[str, Finding]:
    """Judge all attacks, as the report corrects them for each other, and return the headline of each of these.

    ``lost`` is told which of these cannot be judged.
    """
    common = [*runs[0].scores]
    # The correction is over the attacks that have scores of all runs.
    for run in runs:
        common = [name for name in common if name in run.scores]
    if not {*common} & {*names}:
        return {}
    alike = [run.with_scores({name: run.scores[name] for name in common}) for run in runs]
    failed: dict[str, Failure] = {}
    findings = answering(judge_attacks(alike, setting={}, provenance={}, failed=failed))
    lost.update({name: failure for name, failure in failed.items() if name in names})
    return {finding.attack: finding for finding in findings if finding.attack in names}


def _train_further(asker: Asker, run: Run, witnesses: Sequence[Witness], passes: Sequence[int]) -> Mapping[int, Run]:
    """Ask about replies of clients that were trained further on their own targets."""
    inquiry, owned = _inquire(run, witnesses)
    if inquiry.sends is not None and inquiry.sends.protocol:
        raise DataError("clients send predictions, in whose place nothing is planted")
    found = {}
    for count, answers in asker.plant(inquiry, owned, passes).items():
        # model=None: the answers are the app's own, and no model that is built may be asked instead.
        found[count] = replace(run, knowledge=replace(run.knowledge, model=None, answers=answers))
    return found


def _step(
    folder: Path, asker: Asker, run: Run, witnesses: Sequence[Witness], together: Sequence[int]
) -> Mapping[int, Run]:
    """Let clients send one plain step on some of their own targets.

    Where the attacker knows how clients train, it knows this step.
    """
    inquiry, owned = _inquire(run, witnesses)
    sends = inquiry.sends
    if run.record.view == "aggregate" or (sends is not None and (sends.factors or sends.sparse)):
        raise DataError("a plain step stands in the place of a single client's model alone")
    # What is read off a step is compared with examples, number by number.
    is_complete = finite(inquiry.targets.x)
    owned = {node: [row for row in rows if is_complete[row]] for node, rows in owned.items()}
    if not any(owned.values()):
        raise DataError(f"all targets of {run.part.label} that one client holds have a value that is not finite")
    records = asker.plant_steps(inquiry, owned, together, folder / (run.part.name or "run"))
    if together == (ALL,) and run.knowledge.training is not None:
        # In an attack's eyes the client made one step of plain SGD over all of its examples.
        step = LocalSGD(epochs=1, batch_size=0, lr=STEPPING)
        run = replace(run, knowledge=replace(run.knowledge, training=step))
    return {count: replace(run, sent=record) for count, record in records.items()}


def _plant_rows(
    folder: Path, name: str, asker: Asker, run: Run, witnesses: Sequence[Witness], values: Sequence[int]
) -> Mapping[int, Run]:
    """Let clients send what gives some of their own rows away to the attack of that name."""
    attack, truth = ATTACKS[name], run.truth
    if not isinstance(attack, Plants) or truth is None or name not in truth.answers:
        raise DataError(f"of no client of {run.part.label} its rows are known")
    rows, owners = truth.answers[name]["x"], truth.answers[name]["owners"]

    def change(count: int, round_: Round, exchange: Exchange) -> Exchange:
        replies = []
        for reply in exchange.replies:
            # Those rows that are the client's own, by the truth.
            of_client = rows[owners == truth.nodes.get(reply.node, "")]
            if reply.status == "ok" and reply.arrays and len(of_client):
                reply = replace(reply, arrays=attack.plant(reply.arrays, of_client, count))
            replies.append(reply)
        return replace(exchange, replies=replies)

    found = {}
    for count in values:
        out = folder / f"{run.part.name or 'run'}-{name}-{count}"
        found[count] = replace(run, sent=rewrite_record(run.record, out, partial(change, count)))
    return found


def _inquire(run: Run, witnesses: Sequence[Witness]) -> tuple[Inquiry, dict[str, list[int]]]:
    """Return what an app is asked about, and by node which targets are its own."""
    targets, truth = run.knowledge.targets, run.truth
    owned: dict[str, list[int]] = {}
    if truth is not None:
        for node, client in truth.nodes.items():
            # Of a target that several hold it is not clear whose training it moves.
            owned[node] = np.flatnonzero(truth.owners == client).tolist()
    if targets is None or not any(owned.values()):
        raise DataError(f"of no target of {run.part.label} it is known which client alone holds it")
    return Inquiry(run.part, witnesses, targets, run.knowledge.sends), owned
