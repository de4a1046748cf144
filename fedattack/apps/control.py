"""Find out whether an attack that shows nothing would have seen a leak: a positive control.

The same attack is made of the same record, in which something is planted by the app's own step. For attacks of losses
each client is trained further on those of the targets that are its own, and predicts anew where it sends predictions.
For attacks that read updates it sends one plain step on a few of them in the place of its reply. Where the attack
counts all that a client holds, the step is on all of them, and for the search through the app's own step one client
makes it on one target. For attacks on tables it sends trees that split by its own values, and for what is read as it
is, examples of its own. If nothing of that is seen, the attack cannot tell anything here.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedattack.apps.asking import Asker, Inquiry, Share
from fedattack.apps.player import STEPPING
from fedattack.attacks import ATTACKS
from fedattack.attacks.base import SHOWN, Plants
from fedattack.attacks.replies import replied
from fedattack.audit.control import ALONE, PLANTED, STEPPED, TRAINED, WHOLE, Control
from fedattack.audit.finding import LEAK, NO_EVIDENCE, Finding, answering
from fedattack.audit.judge import judge_of
from fedattack.audit.judging import correct_together, judge_each
from fedattack.audit.opened import Run
from fedattack.base.errors import DataError, FedAttackError
from fedattack.base.failures import Failure, failing_alone, is_unforeseen
from fedattack.base.structured import finite, searchable
from fedattack.learning import LocalSGD
from fedattack.record import Exchange, Record, Round, rewrite_record
from fedattack.record.others import Others, are_kept
from fedattack.runs.private import private_folder
from fedattack.runs.watch import Watch
from fedattack.witness import Witness

PASSES = ((1, 4), (16, 64))
"""How often a client goes over its own targets once more: what is planted at once, in the order of its cost."""

TOGETHER = (16, 4, 1)
"""How many of its own targets are in a client's step, at most; fewer are easier to see."""

ALL = 0
"""Stands for a step on all of a client's own targets."""

VALUES = (1, 4, 16, 64)
"""By how many of its own values of each column a client's trees split, or how many of its own examples it sends."""

LEAST_SECONDS = 5.0
"""So long something may be planted, also where the time of all controls is over: each attack is shown something."""

Plant = Callable[[Asker, Run, Sequence[Witness], float | None], tuple[Mapping[int, Run], Share]]
"""Plants something in a run for so many seconds; returns runs by how much, and in how many replies that is."""


@dataclass(frozen=True)
class _Batch:
    """How much is planted at once, as :attr:`fedattack.audit.control.Control.amount` says it, and what plants it."""

    amounts: Sequence[int]
    plant: Plant


class _Clock:
    """How much of the time for controls is left; without limit where it is given None."""

    def __init__(self, seconds: float | None) -> None:
        self._until = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be begun."""
        return time.monotonic() > self._until

    @property
    def left(self) -> float | None:
        """Seconds in which something may be planted."""
        if self._until == math.inf:
            return None
        return max(LEAST_SECONDS, self._until - time.monotonic())

    def take(self, share: float) -> "_Clock":
        """Return the clock of so large a share of what is left."""
        return _Clock(None if self._until == math.inf else share * (self._until - time.monotonic()))


@dataclass(frozen=True)
class _Scene:
    """What controls are made of: runs with what was witnessed, and what each attack found in them by itself."""

    runs: Sequence[Run]
    witnesses: Sequence[Sequence[Witness]]
    alone: Mapping[str, Sequence[Finding]]
    asker: Asker
    watch: Watch


def control(
    asker: Asker,
    runs: Sequence[Run],
    witnesses: Sequence[Sequence[Witness]],
    watch: Watch,
    faults: list[str],
    seconds: float | None = None,
) -> dict[str, Control]:
    """Find from how much that is planted each attack that shows nothing would have shown it.

    Parameters
    ----------
    asker
        Asks the clients' own app.
    witnesses
        What the clients of each run did.
    faults
        Is told what nobody foresaw, and what it keeps from being controlled.
    seconds
        After these nothing more is begun, but that each attack is shown something once; ``None`` for no limit. Under a
        limit, clients are at first trained further in as many rounds alone as hold a reply of each of them.

    Returns
    -------
    dict of str to Control
        By attack; nothing of attacks that show a leak, or where nothing can be planted.
    """
    found: dict[str, Control] = {}
    # What cannot be judged needs no control, and the report says why.
    alone = judge_each(_list_common(runs), runs, setting={}, provenance={}, failed={})
    shown = answering(correct_together([finding for each in alone.values() for finding in each], runs))
    unseen = [finding.attack for finding in shown if finding.verdict == NO_EVIDENCE]
    if not unseen:
        return found
    with private_folder(runs[0].part.folder) as folder:
        scene = _Scene(runs, witnesses, alone, asker, watch)
        clock = _Clock(seconds)
        tries = _list_tries(unseen, folder, is_short=seconds is not None)
        for index, (kind, names, batches) in enumerate(tries):
            # What showed a leak needs no more.
            left = [name for name in names if name not in found or not found[name].is_seen]
            found |= _control(scene, kind, left, batches, clock.take(1 / (len(tries) - index)), faults)
        # What nobody sees in few rounds may be seen in all of them.
        left = [
            name for name, one in found.items() if one.kind == TRAINED and not one.is_seen and 0 < one.replies < one.of
        ]
        if left and clock.is_over:
            found |= {name: replace(found[name], is_cut=True) for name in left}
        elif seconds is not None and left:
            most = PASSES[-1][-1:]
            batch = _Batch(most, partial(_train_further, folder, most, False))
            found |= _control(scene, TRAINED, left, [batch], clock, faults)
    if "inversion" in unseen:
        lost: dict[str, Failure] = {}
        with failing_alone(lost, "inversion"):
            found["inversion"] = _search_planted(scene)
        _say_lost(lost, watch, faults)
    return found


def _search_planted(scene: _Scene) -> Control:
    """Let one client send one plain step on one target of its own, and say whether the search recognises that."""
    # It imports what compares images, which other controls do not need.
    from fedattack.threats.inversion.case import RECOGNISED, InversionCase, compare

    run = scene.runs[0]
    inquiry, owned = _inquire(run, scene.witnesses[0])
    x = inquiry.targets.x
    if run.truth is None:
        raise DataError("it is not known which examples clients hold")
    case = InversionCase(run, "inversion")
    nodes = [batch.node for batch in case.found.batches]
    is_complete = finite(x)
    choices = [(node, row) for node in nodes for row in owned.get(node, ()) if is_complete[row]]
    if not choices:
        raise DataError("no client whose examples were searched for is the only one to hold a target")
    node, row = choices[0]
    if run.knowledge.model is None:
        scores = scene.asker.invert(inquiry, [node], {node: [row]})
        images = scores.as_found(ATTACKS["inversion"].found).images
    else:
        # It imports torch, which an asked app does in a process of its own.
        from fedattack.apps.inverting import search_step

        images = search_step(run.record, run.knowledge, node, row, case.found)
    ratio = compare(case.scale(images), case.scale(searchable(x[[row]]))).ratio[0]
    return Control(ALONE, 1, bool(ratio >= RECOGNISED), 1, len(nodes))


def _list_tries(
    unseen: Sequence[str], folder: Path, *, is_short: bool
) -> list[tuple[str, list[str], Sequence[_Batch]]]:
    """List the ways to plant something, each with the attacks that it is for, and from what is hardest to see on."""
    ways: list[tuple[str, Sequence[_Batch]]] = [
        (STEPPED, [_Batch(TOGETHER, partial(_step, folder, TOGETHER))]),
        (WHOLE, [_Batch((ALL,), partial(_step, folder, (ALL,)))]),
        (TRAINED, [_Batch(passes, partial(_train_further, folder, passes, is_short)) for passes in PASSES]),
    ]
    tries: list[tuple[str, list[str], Sequence[_Batch]]] = []
    for kind, batches in ways:
        tries.append((kind, [name for name in unseen if _takes(name, kind)], batches))
    # What gives rows away to one attack tells another nothing.
    for name in unseen:
        if _takes(name, PLANTED):
            batches = [_Batch([one], partial(_plant_rows, folder, name, one)) for one in VALUES]
            tries.append((_find_kind(name), [name], batches))
    return [each for each in tries if each[1]]


def _control(
    scene: _Scene, kind: str, names: Sequence[str], batches: Sequence[_Batch], clock: _Clock, faults: list[str]
) -> dict[str, Control]:
    """Search what each of these attacks shows a leak of, and say of which nothing is known."""
    lost: dict[str, Failure] = {}
    found = _search(scene, kind, names, batches, clock, lost)
    # One that failed at one strength, and was made at another, has a control.
    untold = {name: failure for name, failure in lost.items() if name not in found or is_unforeseen(failure.why)}
    _say_lost(untold, scene.watch, faults)
    return found


def _search(
    scene: _Scene,
    kind: str,
    names: Sequence[str],
    batches: Sequence[_Batch],
    clock: _Clock,
    lost: MutableMapping[str, Failure],
) -> dict[str, Control]:
    """Find the least that each of these attacks shows a leak of, from the middle up or down.

    `lost` is told of which nothing is known, and why.
    """
    strengths = [(amount, batch) for batch, each in enumerate(batches) for amount in each.amounts]
    # For each, the last strength that it does not see, and the first that it sees.
    unseen, seen = dict.fromkeys(names, -1), dict.fromkeys(names, len(strengths))
    planted: dict[int, tuple[list[Mapping[int, Run]], Share]] = {}
    for done in range(len(strengths)):
        # Each is shown something once.
        if done and clock.is_over:
            break
        wanted: dict[int, list[str]] = {}
        for name in names:
            if name not in lost and seen[name] - unseen[name] > 1:
                wanted.setdefault((unseen[name] + seen[name]) // 2, []).append(name)
        for index, group in wanted.items():
            scene.watch.step("positive control", done, len(strengths))
            amount, batch = strengths[index]
            unplanted: dict[str, Failure] = {}
            # If nothing can be planted in this way, all that it was for have no control.
            with failing_alone(unplanted, kind):
                if batch not in planted:
                    planted[batch] = _plant(scene, batches[batch].plant, clock)
                of_amount = [by_amount[amount] for by_amount in planted[batch][0]]
                for name, is_seen in _look(scene, group, of_amount, lost).items():
                    (seen if is_seen else unseen)[name] = index
            for failure in unplanted.values():
                lost.update(dict.fromkeys(group, failure))
    found = {}
    for name in names:
        is_seen = seen[name] < len(strengths)
        index = seen[name] if is_seen else unseen[name]
        if index < 0 or (name in lost and not is_seen):
            continue
        amount, batch = strengths[index]
        share = planted[batch][1]
        is_cut = not is_seen and clock.is_over and (index + 1 < len(strengths) or share.replies < share.of)
        found[name] = Control(kind, amount, is_seen, share.replies, share.of, is_cut)
    return found


def _plant(scene: _Scene, plant: Plant, clock: _Clock) -> tuple[list[Mapping[int, Run]], Share]:
    """Plant something in all runs; returns them by how much, and in how many replies of all it is."""
    planted, shares = [], []
    for index, (run, seen) in enumerate(zip(scene.runs, scene.witnesses, strict=True)):
        seconds = clock.left
        if seconds is not None:
            seconds /= len(scene.runs) - index
        changed, share = plant(scene.asker, run, seen, seconds)
        planted.append(changed)
        shares.append(share)
    return planted, Share(*map(sum, zip(*shares, strict=True)))


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
    scene: _Scene, names: Sequence[str], planted: Sequence[Run], lost: MutableMapping[str, Failure]
) -> dict[str, bool]:
    """Make attacks of what is planted, and say which show a leak.

    `lost` is told which cannot be made, or judged, so that nothing is known of them.
    """
    # With these names alone: other attacks keep the scores that they had.
    attacked = []
    for run, changed, seen in zip(scene.runs, planted, scene.witnesses, strict=True):
        attacked.append(_attack(scene.asker, run, changed, seen, names, lost))
    shown = _headlines(attacked, names, lost, scene.alone)
    # The verdict after the correction: a control must show what the report would call a leak.
    return {name: name in shown and shown[name].verdict == LEAK for name in names if name not in lost}


def _attack(
    asker: Asker,
    run: Run,
    planted: Run,
    witnesses: Sequence[Witness],
    names: Collection[str],
    lost: MutableMapping[str, Failure],
) -> Run:
    """Make attacks of a run in which something is planted; those that refuse it show nothing, and others stay."""
    scores = {name: one for name, one in run.scores.items() if name not in names}
    for name in names:
        # An attack that refuses what is planted shows nothing, which is no fault.
        with failing_alone(lost, name), suppress(FedAttackError):
            if name == "dager" and planted.knowledge.model is None:
                # The app is asked here, too.
                inquiry, _ = _inquire(run, witnesses)
                scores[name] = asker.read_sequences(inquiry, planted.sent)
            else:
                scores[name] = ATTACKS[name].run(planted.sent, planted.knowledge, device="cpu")
    return run.with_scores(scores)


def _headlines(
    runs: Sequence[Run],
    names: Collection[str],
    lost: MutableMapping[str, Failure],
    alone: Mapping[str, Sequence[Finding]],
) -> dict[str, Finding]:
    """Judge some attacks, as the report corrects them for all others, and return the headline of each.

    ``alone`` has what all attacks found by themselves, before something was planted. ``lost`` is told which of these
    cannot be judged.
    """
    common = _list_common(runs)
    if not {*common} & {*names}:
        return {}
    alike = [run.with_scores({name: run.scores[name] for name in common}) for run in runs]
    failed: dict[str, Failure] = {}
    changed = [name for name in common if name in names or _is_held_against(name, names)]
    judged = judge_each(changed, alike, setting={}, provenance={}, failed=failed)
    findings: list[Finding] = []
    for name in common:
        findings += judged.get(name, () if name in changed else alone.get(name, ()))
    lost.update({name: failure for name, failure in failed.items() if name in names})
    headlines = answering(correct_together(findings, alike))
    return {finding.attack: finding for finding in headlines if finding.attack in names}


def _list_common(runs: Sequence[Run]) -> list[str]:
    """List the attacks that have scores of all runs: they are corrected for each other."""
    return [name for name in runs[0].scores if all(name in run.scores for run in runs)]


def _is_held_against(name: str, others: Collection[str]) -> bool:
    """Say whether an attack is judged beside one of the others, as against a baseline."""
    judge = judge_of(name)
    return judge is not None and not {*judge.beside}.isdisjoint(others)


def _train_further(
    folder: Path,
    passes: Sequence[int],
    is_short: bool,
    asker: Asker,
    run: Run,
    witnesses: Sequence[Witness],
    seconds: float | None,
) -> tuple[Mapping[int, Run], Share]:
    """Ask about replies of clients that were trained further on their own targets."""
    inquiry, owned = _inquire(run, witnesses)
    if inquiry.sends is not None and inquiry.sends.protocol:
        out = folder / f"{run.part.name or 'run'}-predictions-{'-'.join(map(str, passes))}"
        records, share = asker.plant_predictions(inquiry, owned, passes, out, seconds=seconds)
        return {count: replace(run, sent=record) for count, record in records.items()}, share
    seqs: Sequence[int] = ()
    if is_short:
        seqs = _find_rounds(run.record, owned)
    by_passes, share = asker.plant(inquiry, owned, passes, seqs=seqs, seconds=seconds)
    found = {}
    for count, answers in by_passes.items():
        # model=None: the answers are the app's own, and no model that is built may be asked instead.
        found[count] = replace(run, knowledge=replace(run.knowledge, model=None, answers=answers))
    return found, share


def _find_rounds(record: Record, owned: Mapping[str, Sequence[int]]) -> list[int]:
    """Find few rounds that hold a reply of each client that holds targets: no test has more targets in more rounds."""
    left = {node for node, rows in owned.items() if rows}
    found = []
    # The last ones first: of these the app trained shadow models.
    for round_ in reversed(record.rounds):
        there = {reply.node for reply in round_.observations if replied(reply) and reply.arrays is not None}
        if left & there:
            found.append(round_.seq)
            left -= there
    return found


def _step(
    folder: Path,
    together: Sequence[int],
    asker: Asker,
    run: Run,
    witnesses: Sequence[Witness],
    seconds: float | None,
) -> tuple[Mapping[int, Run], Share]:
    """Let clients send one plain step on some of their own targets.

    Where the attacker knows how clients train, it knows this step.
    """
    inquiry, owned = _inquire(run, witnesses)
    sends = inquiry.sends
    if run.record.view == "aggregate" or (sends is not None and (sends.factors or sends.sparse)):
        raise DataError("a plain step can only replace a whole model that a single client sends")
    # What is read off a step is compared with examples, number by number.
    is_complete = finite(inquiry.targets.x)
    owned = {node: [row for row in rows if is_complete[row]] for node, rows in owned.items()}
    if not any(owned.values()):
        raise DataError(
            f"all targets of {run.part.label} that exactly one client holds have a value that is not finite"
        )
    out = folder / f"{run.part.name or 'run'}-{len(together)}"
    records, share = asker.plant_steps(inquiry, owned, together, out, seconds=seconds)
    if together == (ALL,) and run.knowledge.training is not None:
        # In an attack's eyes the client made one step of plain SGD over all of its examples.
        step = LocalSGD(epochs=1, batch_size=0, lr=STEPPING)
        run = replace(run, knowledge=replace(run.knowledge, training=step))
    return {count: replace(run, sent=record) for count, record in records.items()}, share


def _plant_rows(
    folder: Path,
    name: str,
    count: int,
    asker: Asker,
    run: Run,
    witnesses: Sequence[Witness],
    seconds: float | None,
) -> tuple[Mapping[int, Run], Share]:
    """Let clients send what gives some of their own rows away to the attack of that name.

    It stands in replies to training messages; where nothing is trained, in those to other messages.
    """
    attack, truth = ATTACKS[name], run.truth
    if not isinstance(attack, Plants) or truth is None or name not in truth.answers:
        raise DataError(f"fedattack does not know which rows each client of {run.part.label} holds")
    rows, owners = truth.answers[name]["x"], truth.answers[name]["owners"]
    after = None
    if not len(run.record):
        own = {node: rows[owners == client] for node, client in truth.nodes.items()}
        after = [*_plant_in_others(attack, run.record, own, count)]

    def change(round_: Round, exchange: Exchange) -> Exchange:
        replies = []
        for reply in exchange.replies:
            # Those rows that are the client's own, by the truth.
            of_client = rows[owners == truth.nodes.get(reply.node, "")]
            # What is read as it is needs no arrays beside it.
            has_place = reply.arrays or attack.planted == SHOWN
            if reply.status == "ok" and has_place and len(of_client):
                reply = replace(reply, arrays=attack.plant(reply.arrays or {}, of_client, count))
            replies.append(reply)
        return replace(exchange, replies=replies)

    out = folder / f"{run.part.name or 'run'}-{name}-{count}"
    return {count: replace(run, sent=rewrite_record(run.record, out, change, after=after))}, Share(0, 0)


def _plant_in_others(
    attack: Plants, record: Record, own: Mapping[str, NDArray[np.float32]], count: int
) -> Iterator[Others]:
    """Yield messages that are no training, with some of their senders' ``own`` rows, by node, in the replies.

    Raises
    ------
    DataError
        If a record holds no arrays of such a size in these messages.
    """
    for others in record.others_after:
        if others.way != "reply":
            yield others
            continue
        for node in others.nodes:
            arrays = others.arrays
            if len(own.get(node, ())):
                arrays = attack.plant(arrays, own[node], count)
            if not are_kept(arrays):
                raise DataError("examples are larger than what a record keeps of messages other than training")
            yield replace(others, nodes=(node,), arrays=arrays)


def _inquire(run: Run, witnesses: Sequence[Witness]) -> tuple[Inquiry, dict[str, list[int]]]:
    """Return what an app is asked about, and by node which targets are its own."""
    targets, truth = run.knowledge.targets, run.truth
    owned: dict[str, list[int]] = {}
    if truth is not None:
        for node, client in truth.nodes.items():
            # It is not clear whose training moves a target that several clients hold.
            owned[node] = np.flatnonzero(truth.owners == client).tolist()
    if targets is None or not any(owned.values()):
        raise DataError(f"no target of {run.part.label} is known to be held by exactly one client")
    return Inquiry(run.part, witnesses, targets, run.knowledge.sends), owned
