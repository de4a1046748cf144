"""The stage `pose` of an audit: what is asked of a run, what its attacker is assumed to know, and what is true."""

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.apps.app import App
from fedattack.apps.asking import Asker, Inquiry
from fedattack.apps.computing import Computing, explain_none, find_computing, most_frequent
from fedattack.apps.holding import Holding, count_classes, find_public
from fedattack.apps.overlaps import share_of_overlapping
from fedattack.apps.questions import NOTHING_BESIDES, WITHOUT, Questions, Scene, pose_further
from fedattack.apps.reading import Reading, read_sends
from fedattack.apps.targets import FEW, SOME, ExampleChoice, choose_targets
from fedattack.apps.witnessing import NOTHING_TRAINED
from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets, write_knowledge
from fedattack.attacks.answers import ShadowLosses
from fedattack.attacks.coding import find_coding
from fedattack.attacks.held_examples import HeldByClients
from fedattack.attacks.knowledge_files import read_public
from fedattack.attacks.needs import READS_MODELS, UNFIT
from fedattack.attacks.needs import UNKNOWN as NOT_KNOWN
from fedattack.attacks.registry import THREATS, find_answers, find_content
from fedattack.audit.numbers import count_words
from fedattack.audit.truth import HeldRecords, note_node, write_truth
from fedattack.base.errors import DataError, FedAttackError, NeedsError, TrustError, short
from fedattack.base.failures import Failure
from fedattack.base.reasons import Reason
from fedattack.base.structured import fields, finite, list_searchable, searchable, stack_examples
from fedattack.learning import OPTIMIZERS, LocalSGD
from fedattack.record import Record
from fedattack.record.folder import Part
from fedattack.record.means import identical
from fedattack.runs.watch import Watch
from fedattack.witness import Witness, WitnessedTraining

MOST = 1000
"""Examples that are asked about: half of them of clients, half of nobody; all of clients where nobody has none."""

_MOST_CLASSES = 100_000

# Why nothing is asked that asks about training, where there is none.
_UNTRAINED = Reason(NOTHING_TRAINED, UNFIT, "another run, in which clients train")
_SEED = 0


@dataclass(frozen=True)
class Posed:
    """What was written beside a record.

    Attributes
    ----------
    few
        Nodes of the clients of :data:`FEW` examples or fewer whose examples the truth holds; where there are none, of
        the smallest client, if it has :data:`SOME` or fewer.
    notes
        What a reader of the report must know.
    reasons
        By an attack, or by what it needs to know, why it cannot be asked of this run, or is not made.
    means
        What gives losses; empty where nothing does.
    mods, optimizers
        The mods that messages of clients pass through, and the optimizers by which clients train, as witnessed.
    """

    knowledge: Knowledge
    few: tuple[str, ...]
    notes: tuple[str, ...]
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    means: str = ""
    mods: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()


def pose(
    part: Part,
    holding: Holding,
    asked: Questions = NOTHING_BESIDES,
    *,
    most: int = MOST,
    notes: Sequence[str] = (),
    app: App | None = None,
    watch: Watch | None = None,
    check: Callable[[ModelKnowledge], None] | None = None,
) -> Posed:
    """Write truth and knowledge of one run from what clients hold.

    Parameters
    ----------
    most
        Targets in all.
    notes
        What else a reader of the report must know.
    app
        The clients' own, which is asked for losses; ``None`` where there is none.
    check
        Refuses a model that nobody trusts, before it is built.

    Raises
    ------
    NeedsError
        If clients send predictions alone.
    DataError
        If labels are too large for classes.
    TrustError
        If the model is one that nobody trusts.
    """
    record, witnesses = Record(part.record, thinned=True), holding.witnesses
    ask = None
    if app is not None:
        ask = Asker(app, watch, asked.functions)
    reading = _read_arrays(record, holding, asked)
    # Groups are asked of auxiliary examples whose client is known.
    chosen = choose_targets(holding, most=most, seed=_SEED, of_clients=bool(asked.groups))
    targets, evaluation = _examples(holding, chosen.targets), _examples(holding, chosen.evaluation)
    said_of_training: list[str] = []
    besides = _know_besides(holding, chosen, asked, said_of_training)
    computing = _find_computing(record, part, holding, reading, targets, asked, ask=ask, besides=besides, check=check)
    if holding.incomplete:
        is_incomplete = np.array([key in holding.incomplete for key in chosen.targets])
        # Once more, now without the incomplete ones: targets and evaluation are drawn anew.
        if not computing.tells(targets, is_incomplete):
            left = holding.leave_out_incomplete("the clients' model gives no finite loss of them")
            return pose(part, left, asked, most=most, notes=notes, app=app, watch=watch, check=check)
    mods = dict.fromkeys(mod for witness in witnesses for mod in witness.mods)
    if mods:
        notes = [*notes, f"messages of clients pass through the mods {short(', '.join(mods), 200)}"]
    notes = [*notes, *holding.notes, *_note_public(holding), *reading.notes, *computing.notes]
    if holding.incomplete:
        notes.append(
            "examples with a value that is not finite are only asked about by their losses; attacks that compare or "
            "rebuild numbers are judged without them"
        )
    notes += said_of_training
    classes = _count_outputs(holding, computing.model)
    knowledge = replace(besides, targets=targets, sends=reading.known, **computing.known())
    if reading.public is not None:
        knowledge = replace(knowledge, public=read_public(reading.public), training=None)
        notes.append(_describe_public(reading))
    if ask is not None and len(record) and "training" not in asked.without:
        inquiry = Inquiry(part, witnesses, targets, reading.known)
        knowledge = replace(knowledge, shadow_losses=_train_shadows(ask, inquiry, knowledge, notes))
    clients, counts = _name_nodes(part, record, holding, classes, notes)
    origins = [holding.origins[key] for key in chosen.auxiliary]
    has_model = knowledge.model is not None
    further = pose_further(asked, Scene(holding, clients, counts, knowledge.auxiliary, origins, _SEED, has_model))
    knowledge = replace(knowledge, record=record.origin, **further.known)
    write_knowledge(part.knowledge, knowledge)
    notes += [*_list_assumptions(knowledge, asked), *further.notes, *_note_nobodys(holding, chosen, evaluation)]
    # Judges of reconstructions need all examples of a client, and not many.
    records, few = _find_few(holding, has_nobodys=len(evaluation) > 0)
    classes_named = ["all"]
    if holding.kind == "i":
        classes_named = list(map(str, range(classes)))
    unanswered: dict[str, Failure] = {}
    answers = _find_answers(record, holding, knowledge, computing, unanswered)
    unread = reading.unread
    # The app computed these losses itself, and so knows how to read what clients send.
    if computing.answers is not None and not reading.is_strange:
        unread = ""
    compared: dict[str, Any] = {"evaluation": None, "records": records}
    if len(evaluation):
        compared["evaluation"] = evaluation.x, evaluation.y
    write_truth(
        part.truth,
        clients=clients,
        classes=classes_named,
        counts=counts,
        owners=[holding.holders.get(key, ()) for key in chosen.targets],
        origins=[holding.origins.get(key, "") for key in chosen.targets],
        targets=targets.fingerprint,
        notes=notes,
        sent=reading.rows,
        unread=unread,
        record=record.origin,
        answers=answers,
        **compared,
        **further.true,
    )
    # Later ones win: what is known of the record itself is the most exact reason.
    reasons = {
        **_find_untrained(record),
        **_find_unknown(computing),
        **_find_unread(witnesses, record),
        **further.reasons,
        **_find_unlike(record, knowledge),
        **_find_large(record, knowledge, few),
    }
    for threat, failure in unanswered.items():
        why = f"the truth about it cannot be found out: {failure.why}"
        remedy = "a function in the app that gives each client's examples: --examples module:function"
        reasons |= dict.fromkeys(THREATS[threat].judged, Reason(why, NOT_KNOWN, remedy))
    optimizers = dict.fromkeys(witness.training.optimizer for witness in witnesses if witness.training is not None)
    return Posed(knowledge, few, tuple(notes), reasons, computing.means, tuple(mods), tuple(optimizers))


def _read_arrays(record: Record, holding: Holding, asked: Questions) -> Reading:
    """Say what the arrays are that clients send; a :class:`NeedsError` if they are predictions alone."""
    # What is no arrays of a model, such as trees, is compared with nothing.
    if find_content(record):
        return Reading()
    reading = read_sends(holding.witnesses, record)
    if reading.predictions and reading.public is None and asked.model is None:
        raise NeedsError(_say_way_of_predictions(reading.predictions, holding))
    return reading


def _note_public(holding: Holding) -> Iterator[str]:
    """Say that some examples are of all clients, if they are."""
    if public := find_public(holding):
        clients = len(holding.clients)
        yield (
            f"all {clients} clients hold {len(public):,} of the {len(holding.holders):,} training examples, as is "
            "usual for public examples: these cannot tell clients apart"
        )


def _describe_public(reading: Reading) -> str:
    """Say how predictions are read, and what the attacker is assumed to have."""
    return (
        f"clients send predictions and no weights, as in FedMD: {short(', '.join(reading.predictions), 80)} are "
        "outputs of their models on the same examples. The attacker is assumed to have these examples, and to "
        "know the architecture. It trains a student on each client's predictions, and uses the student's losses "
        "in place of the client's"
    )


def _say_way_of_predictions(arrays: Sequence[str], holding: Holding) -> str:
    """Say what clients send that send no weights, and which attack there is on it."""
    public = ""
    if find_public(holding):
        public = ", and all train on some examples that all have, as is usual for public ones"
    return (
        f"clients send predictions and no weights, as in FedMD: {short(', '.join(arrays), 80)} are outputs of their "
        f"models{public}; record them by `fedattack observe --protocol fedmd`, then `fedattack attack sia --public`"
    )


def _find_computing(record: Record, *arguments: Any, **options: Any) -> Computing:
    """Find what computes losses; where there is nothing, what clients send is asked all the same.

    Raises
    ------
    TrustError
        If the model is one that nobody trusts.
    """
    if not len(record):
        return Computing(why_none=_UNTRAINED)
    try:
        return find_computing(*arguments, **options)
    except TrustError:
        raise
    except FedAttackError as cause:
        return Computing(why_none=explain_none(cause))


def _find_unknown(computing: Computing) -> dict[str, Reason]:
    """Say, by what attacks need, why nothing computes losses; nothing where something does."""
    if computing.why_none is None:
        return {}
    return dict.fromkeys(READS_MODELS, computing.why_none)


def _find_untrained(record: Record) -> dict[str, Reason]:
    """Say of each attack that asks about training why it is not made where nothing is trained."""
    if len(record):
        return {}
    return {name: _UNTRAINED for name, attack in ATTACKS.items() if "untrained" not in attack.needs.takes}


def _find_unread(witnesses: Sequence[Witness], record: Record) -> dict[str, Reason]:
    """Say of each attack that reads gradients out of updates of SGD that clients train otherwise, if they do."""
    optimizers = {witness.training.optimizer for witness in witnesses if witness.training is not None}
    unread: dict[str, Reason] = {}
    for name, attack in ATTACKS.items():
        for reason in attack.needs.find_unread(record, optimizers):
            unread.setdefault(name, reason)
    return unread


def _find_unlike(record: Record, knowledge: Knowledge) -> dict[str, Reason]:
    """Say of each attack that needs a model why replies give none, where these hold nothing that clients were sent."""
    sends = knowledge.sends
    # Indices and values are no model by themselves, and become one; so does a vector.
    if knowledge.answers is not None or (sends is not None and (sends.sparse or sends.flat)):
        return {}
    why = ""
    for round_ in record:
        for reply in round_.observations:
            if not reply.arrays or not reply.received:
                continue
            sent, received = _list_forms(reply.arrays), _list_forms(reply.received)
            # The same names, or the same shapes: then a model can be read out of replies.
            if sent.keys() & received.keys() or {*sent.values()} & {*received.values()}:
                return {}
            why = why or (
                f"replies hold {_describe_forms(sent)}, and not the arrays that clients were sent, "
                f"{_describe_forms(received)}: no attack can read a model from them"
            )
    # No reply with arrays was compared.
    if not why:
        return {}
    remedy = "functions of yours that read what clients send: --losses module:function, and --update for more"
    reason = Reason(why, UNFIT, remedy)
    return {name: reason for name, attack in ATTACKS.items() if READS_MODELS & {*attack.needs.knowledge}}


def _find_large(record: Record, knowledge: Knowledge, few: Sequence[str]) -> dict[str, Reason]:
    """Say of each attack on clients of few examples that there is no client whose examples it could search for."""
    if few:
        return {}
    what = (
        f"no client that was witnessed whole trains on at most {SOME} examples whose values are all finite, beside "
        "others that it does not hold"
    )
    reason = Reason(what, UNFIT, f"a run with a client of at most {SOME} examples that are all witnessed")
    # What else is in the way is a better reason.
    return {
        name: reason
        for name, attack in ATTACKS.items()
        if attack.in_apps.of_few and len(record) and not attack.find_obstacles(record, knowledge)
    }


def _list_forms(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(array) for name, array in arrays.items()}


def _describe_forms(forms: Mapping[str, tuple[int, ...]]) -> str:
    return short(", ".join(f"{name} {shape}" for name, shape in forms.items()), 100)


def _count_outputs(holding: Holding, model: ModelKnowledge | None) -> int:
    """Return how many classes there are; 1 for a regression."""
    if holding.kind != "i":
        return 1
    most_label = int(max(y for _, y in holding.examples.values()))
    outputs = 0
    if model is not None:
        outputs = model.classes
    # Labels may lie beyond the outputs, as where a client has classes of its own.
    classes = max(outputs, most_label + 1)
    if classes > _MOST_CLASSES:
        raise DataError(
            f"labels go up to {most_label}, and the model has {outputs} outputs; expected at most "
            f"{_MOST_CLASSES} classes, counted from 0; give the labels of a regression as floating-point numbers"
        )
    return classes


def _know_besides(holding: Holding, chosen: ExampleChoice, asked: Questions, notes: list[str]) -> Knowledge:
    """Put together what the attacker knows besides models and targets, but for what ``--without`` takes."""
    knowledge = Knowledge()
    if "training" not in asked.without:
        knowledge = replace(knowledge, training=_find_training(holding.witnesses, notes))
    # Three axes: channels, height, width, as images have.
    if len(holding.shape) == 3 and holding.complete and "limits" not in asked.without:
        knowledge = replace(knowledge, limits=_limits(holding))
    if len(holding.shape) == 1 and holding.complete and "limits" not in asked.without:
        knowledge = replace(knowledge, coding=find_coding(np.stack([x for x, _ in holding.complete.values()])))
    if chosen.auxiliary and "auxiliary" not in asked.without:
        knowledge = replace(knowledge, auxiliary=_examples(holding, chosen.auxiliary))
    return knowledge


def _train_shadows(ask: Asker, inquiry: Inquiry, knowledge: Knowledge, notes: list[str]) -> ShadowLosses | None:
    """Let the app train shadow models, where nobody can imitate how its clients train."""
    auxiliary, sends = knowledge.auxiliary, knowledge.sends
    # A model that the attacker can build and train makes its own shadows.
    is_imitated = knowledge.model is not None and knowledge.training is not None
    if auxiliary is None or is_imitated or (sends is not None and sends.factors):
        return None
    try:
        found, said = ask.shadows(inquiry, auxiliary)
    except FedAttackError as cause:
        notes.append(f"no shadow models: {short(str(cause), 200)}")
        return None
    notes += said
    return found


def _note_nobodys(holding: Holding, chosen: ExampleChoice, evaluation: Targets) -> Iterator[str]:
    """Say what is to be known of the examples that nobody trained on."""
    if not len(evaluation):
        yield (
            f"{holding.why_none}, so there is no null run: it is not measured how often the attack is wrong about "
            "examples that it cannot know"
        )
    elif any(holding.origins.values()):
        yield "a client's own evaluation examples are assumed to be drawn as its training examples were"
    trained = _examples(holding, [key for key in chosen.targets if key in holding.holders])
    if overlapping := share_of_overlapping(evaluation.x, trained.x):
        yield (
            f"{overlapping:.0%} of the examples that nobody trained on share half of their numbers with one that "
            "somebody trained on, as windows of one series do: a client that trained on that one has nearly "
            "trained on them, and membership is underestimated"
        )


def _list_assumptions(knowledge: Knowledge, asked: Questions) -> Iterator[str]:
    """Say how much the attacker is assumed to have, and what it was left without."""
    if knowledge.auxiliary is not None:
        count = len(knowledge.auxiliary)
        yield f"the attacker is assumed to have {count:,} auxiliary examples, which nobody trained on"
    if asked.without:
        left = "; ".join(map(WITHOUT.__getitem__, sorted(asked.without)))
        yield f"the attacker is assumed not to know, as --without says: {left}"


def _examples(holding: Holding, keys: Sequence[bytes]) -> Targets:
    xs, ys = [], []
    for key in keys:
        x, y = holding.examples[key]
        xs.append(x)
        ys.append(y)
    labels = np.array(ys, dtype={"i": np.int64}.get(holding.kind, np.float32))
    if not fields(holding.sample):
        return Targets(np.array(xs, dtype=np.float32).reshape(-1, *holding.shape), labels)
    if not xs:
        # sample[:0] has the structure of examples, and no example.
        return Targets(holding.sample[:0], labels)
    return Targets(stack_examples(xs), labels)


def _name_nodes(
    part: Part, record: Record, holding: Holding, classes: int, notes: list[str]
) -> tuple[list[str], NDArray[np.int64]]:
    """Note which client each node is; return clients and how many examples of each class each trains on.

    The record's other nodes are each a client of its own.
    """
    names, known = list(holding.clients), set()
    for client in holding.clients.values():
        for node in client.nodes:
            note_node(part.truth, node=node, client=client.name)
            known.add(node)
    # Nodes without a witness hold nobody knows what: they are clients of their own.
    strangers = [node for node in record.nodes if node not in known]
    for node in strangers:
        note_node(part.truth, node=node, client=f"node {node}")
        names.append(f"node {node}")
    idle = _name_idle(record, holding.witnesses, strangers)
    if idle:
        whose = short(", ".join(idle.values()), 200)
        notes.append(
            f"{count_words(len(idle), 'client')} did not train, and sent the model back unchanged "
            f"({whose}): no "
            "example is theirs"
        )
    if unknown := [node for node in strangers if node not in idle]:
        notes.append(
            f"{len(unknown)} of the record's nodes were not seen to train, such as {unknown[0]}; it is not known "
            "whether they hold examples"
        )
    counts = count_classes(holding.clients, classes)
    # A regression has one class, in which all examples count.
    if holding.kind == "f":
        counts[:, 0] = [client.trained.total + len(client.trained.again) for client in holding.clients.values()]
    # Rows of zeros for strangers, at the end, as their names are.
    return names, np.pad(counts, ((0, len(strangers)), (0, 0)))


def _name_idle(record: Record, witnesses: Sequence[Witness], nodes: Collection[str]) -> dict[str, str]:
    """Name, by node, clients that were watched, and that always sent back the very model that they were sent."""
    names = {witness.node: witness.client or f"node {witness.node}" for witness in witnesses if witness.asked}
    idle: dict[str, bool] = {}
    for round_ in record:
        for reply in round_.observations:
            if reply.node in nodes and reply.node in names and reply.arrays is not None:
                is_same = reply.received is not None and identical(dict(reply.arrays), dict(reply.received))
                # One reply that differs shows that the client trains.
                idle[reply.node] = is_same and idle.get(reply.node, True)
    return {node: names[node] for node, is_idle in idle.items() if is_idle}


def _find_training(witnesses: Sequence[Witness], notes: list[str]) -> LocalSGD | None:
    """Return how clients train, if it is what attacks can imitate."""
    seen = [witness.training for witness in witnesses if witness.training is not None]
    if not seen:
        return None
    how = most_frequent([_numbers_of(training) for training in seen], notes, "ways to train")
    # The exact numbers of one client that trains as most do.
    training = next(training for training in seen if _numbers_of(training) == how)
    if training.optimizer not in OPTIMIZERS or not training.lr:
        notes.append(
            f"clients train by {training.optimizer}, learning rate {training.lr}; attacks only imitate "
            f"{', '.join(OPTIMIZERS)} at one rate"
        )
        return None
    if not training.epochs:
        notes.append(
            "fedattack does not know how often clients pass over their examples: no attack imitates how clients train"
        )
        return None
    if not training.batch_sizes:
        notes.append("fedattack does not know the clients' batch size: no attack imitates how clients train")
        return None
    # Gradients that are accumulated over batches are one step with their sum of examples.
    size, together = training.batch_sizes[0], max(1, round(training.together))
    if together > 1:
        notes.append(
            f"a step of clients takes {together} batches of {size}: attacks imitate it as one batch of "
            f"{size * together}, as if each loss were divided by {together}"
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
    epochs = training.epochs and round(training.epochs)
    numbers = training.lr, training.momentum, training.weight_decay
    return training.optimizer, *numbers, training.batch_sizes[:1], epochs, round(training.together)


def _limits(holding: Holding) -> tuple[tuple[float, float], ...]:
    """Return the least and the largest input of each channel."""
    x = np.stack([x for x, _ in holding.complete.values()])
    # Over examples, height and width.
    lows, highs = x.min(axis=(0, 2, 3)), x.max(axis=(0, 2, 3))
    return tuple(zip(lows.astype(float).tolist(), highs.astype(float).tolist(), strict=True))


def _find_answers(
    record: Record,
    holding: Holding,
    knowledge: Knowledge,
    computing: Computing,
    failed: MutableMapping[str, Failure],
) -> dict[str, Mapping[str, NDArray[Any]]]:
    """Gather what the judges of attacks ask for besides, by the name of the threat, of which `failed` is told, too."""
    seen, whole = {}, []
    for client in holding.clients.values():
        # What is put together must be of one form; of the others a note tells.
        if not holding.fits(client.trained.x):
            continue
        seen[client.name] = client.trained.x[finite(client.trained.x), ...]
        # A witness that lists all that it saw.
        if len(client.trained) == client.trained.total:
            whole.append(client.name)
    examples = labels = None
    copies = holding.list_copies()
    if not fields(holding.sample) and holding.complete:
        examples = np.array([holding.complete[key][0] for key, _ in copies], dtype=np.float32)
        labels = np.array([label for _, label in copies], dtype=np.float64)
    holders = list(copies.values())
    held = HeldByClients(
        *(knowledge, record, find_content(record), seen, whole, examples, holders, labels),
        touched=computing.touched,
        rows=dict(_list_rows(holding, copies)),
    )
    return find_answers(held, failed)


def _list_rows(
    holding: Holding, copies: Mapping[tuple[bytes, float], Sequence[str]]
) -> Iterator[tuple[tuple[int, str], int]]:
    """Yield, by the index of a copy and by client, which row of its table the owner says that it is."""
    indices: dict[bytes, list[int]] = {}
    for index, (key, _) in enumerate(copies):
        indices.setdefault(key, []).append(index)
    for client in holding.clients.values():
        order = client.trained.order
        for key, row in zip(map(bytes, client.trained.hashes), [] if order is None else order.tolist(), strict=False):
            for index in indices.get(key, ()):
                yield (index, client.name), row


def _find_few(holding: Holding, *, has_nobodys: bool) -> tuple[HeldRecords | None, tuple[str, ...]]:
    """Gather what the clients of few examples train on, each of which must be there whole, and their nodes.

    Where no client has few, it is what the smallest one trains on; and that and examples of other clients, to compare
    with, where there are none of nobody's.
    """
    # No attack reconstructs ids or masks.
    if fields(holding.sample) and not list_searchable(holding.sample):
        return None, ()
    whole = []
    for client in holding.clients.values():
        complete = client.own(holding.complete)
        # All examples of the client are complete and listed.
        if 0 < len(complete) == client.trained.total <= SOME:
            whole.append((client, complete))
    few = [each for each in whole if len(each[1]) <= FEW]
    if not few or not has_nobodys:
        few = sorted(whole, key=lambda each: len(each[1]))[:1]
    keys: list[bytes] = []
    owners: list[str] = []
    nodes: list[str] = []
    for client, complete in few:
        keys += complete
        owners += [client.name] * len(complete)
        nodes += client.nodes
    if few and not has_nobodys:
        asked = {*owners}
        others = [key for key, (name, *more) in holding.holders.items() if not more and name not in asked]
        others = [key for key in others if key in holding.complete]
        # A stream of its own, so that other draws of the seed do not move with it.
        chosen = np.random.default_rng((_SEED, 3)).permutation(len(others))[:MOST]
        keys += [others[index] for index in chosen]
        owners += [holding.holders[others[index]][0] for index in chosen]
        if not len(chosen):
            return None, ()
    if not keys:
        return None, ()
    examples = _examples(holding, keys)
    return HeldRecords(searchable(examples.x), examples.y, tuple(owners)), tuple(nodes)
