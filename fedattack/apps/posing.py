"""What is asked of a witnessed run, what its attacker is assumed to know, and what is true."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.apps.asking import Asker, Inquiry
from fedattack.apps.choosing import Chosen, choose
from fedattack.apps.computing import Computing, find_computing, most_frequent
from fedattack.apps.holding import Holding, class_counts, hold
from fedattack.apps.overlaps import share_of_overlapping
from fedattack.apps.questions import WITHOUT, Questions, Scene, origins_in, pose_further
from fedattack.apps.reading import Reading, read_sends
from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets, write_knowledge
from fedattack.attacks.answers import ShadowLosses
from fedattack.attacks.held_examples import held_examples, join_examples
from fedattack.attacks.lookups import trained_sequences, used_rows
from fedattack.audit.truth import HeldRecords, note_node, write_truth
from fedattack.base.errors import DataError, FedAttackError, short
from fedattack.base.structured import fields, stack_examples
from fedattack.learning import OPTIMIZERS, LocalSGD
from fedattack.record import Record
from fedattack.record.folder import Part
from fedattack.threats.plaintext.truths import nearest_examples
from fedattack.threats.trees.replies import holds_trees
from fedattack.witness import Witness, WitnessedTraining

MOST = 1000
"""Examples that are asked about: half of them of clients, half of nobody; all of clients where nobody has none."""

FEW = 8
"""Training examples of a client up to which it is attempted to reconstruct them."""

_MOST_CLASSES = 100_000
_SEED = 0

_IMITATED = f"attacks imitate {', '.join(OPTIMIZERS)} at one rate alone"


@dataclass(frozen=True)
class Posed:
    """What was written beside a record.

    Attributes
    ----------
    knowledge
        What the attacker is assumed to know.
    few
        Nodes of the clients of :data:`FEW` examples or fewer whose examples the truth holds.
    notes
        What a reader of the report must know.
    assumed
        Those of them that say how much this attacker has.
    reasons
        By the name of a threat or an attack, why it cannot be asked of this run, or is not made.
    """

    knowledge: Knowledge
    few: tuple[str, ...]
    notes: tuple[str, ...]
    assumed: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


def pose(
    part: Part,
    witnesses: Sequence[Witness],
    *,
    model: str | None = None,
    loss: str | None = None,
    most: int = MOST,
    notes: Sequence[str] = (),
    asked: Questions | None = None,
    ask: Asker | None = None,
    check: Callable[[ModelKnowledge], None] | None = None,
) -> Posed:
    """Write truth and knowledge of one run from what was witnessed of it.

    Parameters
    ----------
    model, loss
        What the caller says of them, in the place of what was witnessed.
    most
        As for :func:`choose`.
    notes
        What else a reader of the report must know.
    asked
        What the owner asks besides, and what this attacker is left without.
    ask
        Asks the clients' own app for losses; ``None`` where there is no app.
    check
        Refuses a model that nobody trusts, before it is built.

    Raises
    ------
    DataError
        If nothing was witnessed that can be asked about, clients keep a part of what they train, or labels are too
        large for classes.
    ConfigError
        If no model is known, or its loss does not fit the labels.
    """
    asked = asked or Questions()
    holding = hold(witnesses)
    # Trees are no arrays of a model: there is nothing to compare them with.
    reading = Reading() if holds_trees(Record(part.record, thinned=True)) else read_sends(witnesses)
    _leave_out_unheard(holding, Record(part.record, thinned=True))
    chosen = choose(holding, most=most, seed=_SEED, auxiliary_of=origins_in(asked.groups, holding.clients))
    targets, evaluation = _examples(holding, chosen.targets), _examples(holding, chosen.evaluation)
    computing = find_computing(part, witnesses, holding, reading, targets, model=model, loss=loss, ask=ask, check=check)
    classes = _count_classes(holding, computing.model)
    notes = [*notes, *_mods_of(witnesses), *holding.notes, *reading.notes, *computing.notes]
    knowledge = _know(witnesses, holding, chosen, targets, computing, asked, notes)
    knowledge = replace(knowledge, sends=reading.known)
    if ask is not None and "training" not in asked.without:
        inquiry = Inquiry(part, witnesses, targets, reading.known)
        knowledge = replace(knowledge, shadow_losses=_train_shadows(ask, inquiry, knowledge, notes))
    clients, counts = _with_strangers(part, holding, _counts_of(holding, classes), notes)
    origins = [holding.origins[key] for key in chosen.auxiliary]
    further = pose_further(asked, Scene(holding, clients, counts, knowledge.auxiliary, origins, _SEED))
    knowledge = replace(knowledge, **further.known)
    write_knowledge(part.knowledge, knowledge)
    assumed = (*_list_assumptions(knowledge, asked), *further.notes)
    notes += [*assumed, *_notes_on_nobodys(holding, chosen, evaluation)]
    records, few = _few_records(holding)
    answers = _answers_of(part, holding, knowledge)
    is_read = computing.answers is not None and not reading.is_strange
    write_truth(
        part.truth,
        clients=clients,
        classes=[str(label) for label in range(classes)] if holding.kind == "i" else ["all"],
        counts=counts,
        owners=[holding.holders.get(key, ()) for key in chosen.targets],
        origins=[holding.origins.get(key, "") for key in chosen.targets],
        evaluation=(evaluation.x, evaluation.y) if len(evaluation) else None,
        targets=targets.fingerprint,
        records=records if len(evaluation) else None,
        notes=notes,
        sent=reading.rows,
        unread="" if is_read else reading.unread,
        answers=answers,
        **further.true,
    )
    reasons = {**_unread_gradients(witnesses, Record(part.record, thinned=True)), **further.reasons}
    return Posed(knowledge, few if len(evaluation) else (), tuple(notes), assumed, reasons)


def _unread_gradients(witnesses: Sequence[Witness], record: Record) -> dict[str, str]:
    """Say of each attack that reads gradients out of updates of SGD that clients train otherwise, if they do."""
    optimizers = {witness.training.optimizer for witness in witnesses if witness.training is not None}
    unread = {name: attack.needs.unread(record, optimizers) for name, attack in ATTACKS.items()}
    return {name: lines[0] for name, lines in unread.items() if lines}


def _count_classes(holding: Holding, model: ModelKnowledge | None) -> int:
    """Return how many classes there are; 1 for a regression.

    Raises
    ------
    DataError
        If labels are too large for classes.
    """
    if holding.kind != "i":
        return 1
    most_label = int(max(y for _, y in holding.examples.values()))
    outputs = 0 if model is None else model.classes
    classes = max(outputs, most_label + 1)
    if classes > _MOST_CLASSES:
        raise DataError(
            f"labels go up to {most_label}, and the model has {outputs} outputs; expected at most "
            f"{_MOST_CLASSES} classes, counted from 0; give the labels of a regression as floating-point numbers"
        )
    return classes


def _know(
    witnesses: Sequence[Witness],
    holding: Holding,
    chosen: Chosen,
    targets: Targets,
    computing: Computing,
    asked: Questions,
    notes: list[str],
) -> Knowledge:
    """Put together what the attacker knows, but for what ``--without`` takes."""
    has_auxiliary = bool(chosen.auxiliary) and "auxiliary" not in asked.without
    return Knowledge(
        model=computing.model,
        targets=targets,
        training=None if "training" in asked.without else _training_of(witnesses, notes),
        limits=_limits(holding) if len(holding.shape) == 3 and "limits" not in asked.without else None,
        auxiliary=_examples(holding, chosen.auxiliary) if has_auxiliary else None,
        frozen=computing.frozen,
        answers=computing.answers,
    )


def _train_shadows(ask: Asker, inquiry: Inquiry, knowledge: Knowledge, notes: list[str]) -> ShadowLosses | None:
    """Let the app train shadow models, where nobody can imitate how its clients train."""
    auxiliary, sends = knowledge.auxiliary, knowledge.sends
    if (
        auxiliary is None
        or (knowledge.model is not None and knowledge.training is not None)
        or (sends is not None and sends.factors)
    ):
        return None
    try:
        found, said = ask.shadows(inquiry, auxiliary)
    except FedAttackError as cause:
        notes.append(f"no shadow models: {short(str(cause), 200)}")
        return None
    notes += said
    return found


def _counts_of(holding: Holding, classes: int) -> NDArray[np.int64]:
    """Return (clients, classes): how many examples each client trains on."""
    counts = class_counts(holding.clients, classes)
    if holding.kind == "f":
        counts[:, 0] = [client.trained.total for client in holding.clients.values()]
    return counts


def _notes_on_nobodys(holding: Holding, chosen: Chosen, evaluation: Targets) -> Iterator[str]:
    """Say what is to be known of the examples that nobody trained on."""
    if not len(evaluation):
        yield (
            f"{holding.why_none}, so that there is no null run: what the attack says of examples that it cannot know "
            "is not known"
        )
    elif any(holding.origins.values()):
        yield "a client's own evaluation examples are taken for ones drawn as its training examples were"
    trained = _examples(holding, [key for key in chosen.targets if key in holding.holders])
    if overlapping := share_of_overlapping(evaluation.x, trained.x):
        yield (
            f"{overlapping:.0%} of the examples that nobody trained on share half of their numbers with one that "
            "somebody did, as windows of one series do: who trained on that has nearly trained on them, and membership "
            "is underestimated"
        )


def _list_assumptions(knowledge: Knowledge, asked: Questions) -> list[str]:
    """Say how much the attacker is assumed to have, and what it was left without."""
    assumed = []
    if knowledge.auxiliary is not None:
        count = len(knowledge.auxiliary)
        assumed.append(f"the attacker is assumed to have {count:,} auxiliary examples, which nobody trained on")
    if asked.without:
        left = [WITHOUT[name] for name in sorted(asked.without)]
        assumed.append(f"the attacker is assumed not to know, as --without says: {'; '.join(left)}")
    return assumed


def _mods_of(witnesses: Sequence[Witness]) -> list[str]:
    """Say which mods the messages of clients pass, such as one that adds noise."""
    mods = dict.fromkeys(mod for witness in witnesses for mod in witness.mods)
    return [f"messages of clients pass the mods {short(', '.join(mods), 200)}"] if mods else []


def _leave_out_unheard(holding: Holding, record: Record) -> None:
    """Ask of sums about no example whose holders are perhaps in none of them: it may count as held, or as nobody's."""
    if record.view != "aggregate":
        return
    heard = {node for round_ in record for node in round_.participants}
    unheard = {name for name, client in holding.clients.items() if not heard & {*client.nodes}}
    for key, names in holding.holders.items():
        if unheard.issuperset(names):
            holding.examples.pop(key, None)
    if unheard:
        holding.notes.append(
            f"it is not certain that a sum holds what the clients {short(', '.join(sorted(unheard)), 60)} trained: "
            "their examples are not asked about"
        )


def _examples(holding: Holding, keys: Sequence[bytes]) -> Targets:
    xs, ys = [], []
    for key in keys:
        x, y = holding.examples[key]
        xs.append(x)
        ys.append(y)
    labels = np.array(ys, dtype=np.int64 if holding.kind == "i" else np.float32)
    if fields(holding.sample):
        return Targets(stack_examples(xs) if xs else holding.sample[:0], labels)
    return Targets(np.array(xs, dtype=np.float32).reshape(-1, *holding.shape), labels)


def _with_strangers(
    part: Part, holding: Holding, counts: NDArray[np.int64], notes: list[str]
) -> tuple[list[str], NDArray[np.int64]]:
    """Note which client each node is, and add the record's other nodes, each as a client of its own."""
    known: set[str] = set()
    for client in holding.clients.values():
        for node in client.nodes:
            note_node(part.truth, node=node, client=client.name)
            known.add(node)
    names = list(holding.clients)
    strangers = [node for node in Record(part.record, thinned=True).nodes if node not in known]
    for node in strangers:
        note_node(part.truth, node=node, client=f"node {node}")
        names.append(f"node {node}")
    if strangers:
        notes.append(
            f"{len(strangers)} of the record's nodes were not seen to train, such as {strangers[0]}; whether they hold "
            "examples is not known"
        )
    return names, np.concatenate([counts, np.zeros((len(strangers), counts.shape[1]), dtype=np.int64)])


def _training_of(witnesses: Sequence[Witness], notes: list[str]) -> LocalSGD | None:
    """Return how clients train, if it is what attacks can imitate."""
    seen = [witness.training for witness in witnesses if witness.training is not None]
    if not seen:
        return None
    how = most_frequent([_numbers_of(training) for training in seen], notes, "ways to train")
    training = next(training for training in seen if _numbers_of(training) == how)
    if training.optimizer not in OPTIMIZERS or not training.lr:
        notes.append(f"clients train by {training.optimizer}, learning rate {training.lr}; {_IMITATED}")
        return None
    if not training.epochs or not training.batch_sizes:
        unknown = "in which batches" if training.epochs else "how often they pass over their examples"
        notes.append(f"it is not known {unknown}: no attack imitates how clients train")
        return None
    size, together = training.batch_sizes[0], max(1, round(training.together))
    if together > 1:
        notes.append(
            f"a step of clients takes {together} batches of {size}: it is imitated as one of {size * together}, as if "
            f"each loss were divided by {together}"
        )
    return LocalSGD(
        epochs=max(1, round(training.epochs)),
        batch_size=size * together,
        lr=training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        optimizer=training.optimizer,
    )


def _numbers_of(training: WitnessedTraining) -> tuple[Any, ...]:
    """Return what clients have in common: the number of steps depends on how much each holds."""
    batch = training.batch_sizes[:1]
    epochs = None if training.epochs is None else round(training.epochs)
    numbers = training.lr, training.momentum, training.weight_decay
    return training.optimizer, *numbers, batch, epochs, round(training.together)


def _limits(holding: Holding) -> tuple[tuple[float, float], ...]:
    """Return the least and the largest input of each channel."""
    lows = np.min([x.min(axis=(1, 2)) for x, _ in holding.examples.values()], axis=0)
    highs = np.max([x.max(axis=(1, 2)) for x, _ in holding.examples.values()], axis=0)
    return tuple(zip(lows.astype(float).tolist(), highs.astype(float).tolist(), strict=True))


def _answers_of(part: Part, holding: Holding, knowledge: Knowledge) -> dict[str, Mapping[str, NDArray[Any]]]:
    """Gather what judges ask for besides: examples near to plaintext, and what clients use and train on."""
    whole: list[tuple[str, NDArray[Any]]] = []
    for client in holding.clients.values():
        if len(client.trained) == client.trained.total:
            whole.append((client.name, client.trained.x))
    record = Record(part.record, thinned=True)
    found = {
        "plaintext": _beside_models(holding, record),
        "exact": held_examples(knowledge, whole),
        "sequences": trained_sequences(knowledge, whole),
        "tokens": used_rows(knowledge, whole, record),
        "trees": _tables_of(record, holding),
    }
    return {name: arrays for name, arrays in found.items() if arrays is not None}


def _tables_of(record: Record, holding: Holding) -> Mapping[str, NDArray[Any]] | None:
    """Return the rows of clients that send trees; of a large client those that its witness kept."""
    if fields(holding.sample) or len(holding.shape) != 1 or not holds_trees(record):
        return None
    tables: list[tuple[str, NDArray[Any]]] = []
    for client in holding.clients.values():
        if client.trained.x.shape[1:] == holding.shape:
            tables.append((client.name, client.trained.x[np.isfinite(client.trained.x).all(axis=1)]))
    return join_examples(tables)


def _beside_models(holding: Holding, record: Record) -> Mapping[str, NDArray[Any]] | None:
    """Find, for what clients send beside their models, the nearest of all known examples."""
    if fields(holding.sample) or not holding.examples:
        return None
    keys = [*holding.examples]
    x = np.array([holding.examples[key][0] for key in keys], dtype=np.float32)
    return nearest_examples(record, x, [holding.holders.get(key, ()) for key in keys])


def _few_records(holding: Holding) -> tuple[HeldRecords | None, tuple[str, ...]]:
    """Gather what the clients of few examples train on, each of which must be there whole."""
    keys: list[bytes] = []
    owners: list[str] = []
    nodes: list[str] = []
    for client in holding.clients.values():
        own = [key for key in map(bytes, client.trained.hashes) if key in holding.examples]
        if len(own) == client.trained.total <= FEW:
            keys += own
            owners += [client.name] * len(own)
            nodes += client.nodes
    # No attack reconstructs examples of more than one array.
    if not keys or fields(holding.sample):
        return None, ()
    examples = _examples(holding, keys)
    return HeldRecords(examples.x, examples.y, tuple(owners)), tuple(nodes)
