"""What is asked of a witnessed run, what its attacker is assumed to know, and what is true."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.apps.holding import Holding, class_counts, hold
from fedattack.apps.questions import WITHOUT, Questions, Scene, origins_in, pose_further
from fedattack.attacks import Knowledge, ModelKnowledge, Targets, write_knowledge
from fedattack.attacks.frozen import read_frozen
from fedattack.attacks.knowledge import Answers
from fedattack.audit.truth import HeldRecords, note_node, write_truth
from fedattack.base.errors import ConfigError, DataError, FedAttackError, short
from fedattack.base.structured import fields, stacked
from fedattack.learning import OPTIMIZERS, LocalSGD
from fedattack.record import Record
from fedattack.record.folder import Part
from fedattack.witness import SERVER, Witness, WitnessedModel, WitnessedTraining

MOST = 1000
"""Examples that are asked about: half of them of clients, half of nobody."""

FEW = 8
"""Training examples of a client up to which it is attempted to reconstruct them."""

_MOST_SHARED = 100
_MOST_EVALUATION = 2000
_MOST_AUXILIARY = 2000
_LEAST_AUXILIARY = 10
_MOST_CLASSES = 100_000
_LINEAR = "torch.nn:Linear"
_UNSEEN = WitnessedModel(None, {}, (), 0, None, "none was seen")

# Streams of the seed's random numbers.
_CHOOSING = 1

Asking = Callable[[Part, Sequence[Witness], Targets], tuple[Answers, list[str]]]
"""Asks the clients' own app for the losses of targets; returns these, and what a reader must know of them."""

_IMITATED = f"attacks imitate {', '.join(OPTIMIZERS)} at one rate alone"


@dataclass(frozen=True)
class Chosen:
    """Examples by their hashes.

    Attributes
    ----------
    targets
        What is asked about, in an order that says nothing of owners.
    evaluation
        What nobody trained on and is not asked about.
    auxiliary
        The same, other examples: those that the attacker has.
    """

    targets: Sequence[bytes]
    evaluation: Sequence[bytes]
    auxiliary: Sequence[bytes] = ()


def choose(holding: Holding, *, most: int, seed: int, auxiliary_of: Collection[str] | None = None) -> Chosen:
    """Choose targets: as many of each client, as far as there are; and as many of nobody as of all clients.

    Parameters
    ----------
    most
        Targets in all.
    seed
        Of what is drawn: which examples, and their order.
    auxiliary_of
        Clients from whose evaluation alone the attacker's examples come; ``None`` for anybody's.
    """
    rng = np.random.default_rng((seed, _CHOOSING))
    alone: dict[str, list[bytes]] = {name: [] for name in holding.clients}
    shared: list[bytes] = []
    for key in sorted({*holding.holders} & {*holding.examples}):
        names = holding.holders[key]
        (alone[names[0]] if len(names) == 1 else shared).append(key)
    free: dict[str, list[bytes]] = {}
    for key in sorted(holding.origins):
        free.setdefault(holding.origins[key], []).append(key)
    held = _drawn(list(alone.values()), most - most // 2, rng)
    several = _drawn([shared], min(_MOST_SHARED, most // 10), rng)
    there = len(holding.origins)
    nobody = _drawn(list(free.values()), min(len(held) + len(several), most // 2, there // 2), rng)
    asked = [*held, *several, *nobody]
    asked_of_nobody = {*nobody}
    rest = [key for keys in free.values() for key in keys if key not in asked_of_nobody]
    targets = [asked[index] for index in rng.permutation(len(asked))]
    fits = [key for key in rest if auxiliary_of is None or holding.origins[key] in auxiliary_of]
    auxiliary = _drawn([fits], min(_MOST_AUXILIARY, len(rest) // 2), rng)
    if len(auxiliary) < _LEAST_AUXILIARY:
        auxiliary = []
    the_attackers = {*auxiliary}
    evaluation = _drawn([[key for key in rest if key not in the_attackers]], _MOST_EVALUATION, rng)
    return Chosen(targets, evaluation, auxiliary)


def _drawn(groups: Sequence[Sequence[bytes]], most: int, rng: np.random.Generator) -> list[bytes]:
    """Draw from each group, as many from each as its size allows."""
    chosen: list[bytes] = []
    for group, count in zip(groups, even(list(map(len, groups)), most), strict=True):
        chosen += [group[index] for index in rng.permutation(len(group))[:count]]
    return chosen


def even(sizes: Sequence[int], total: int) -> list[int]:
    """Share a total among groups as evenly as their sizes allow.

    Examples
    --------
    >>> even([1, 9, 9], 11)
    [1, 5, 5]
    """
    shares = [0] * len(sizes)
    smallest_first = sorted(range(len(sizes)), key=sizes.__getitem__)
    for place, index in enumerate(smallest_first):
        shares[index] = min(sizes[index], total // (len(sizes) - place))
        total -= shares[index]
    return shares


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
        By the name of a threat, why what the owner declared of it cannot be asked of this run.
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
    seed: int = 0,
    most: int = MOST,
    notes: Sequence[str] = (),
    asked: Questions | None = None,
    ask: Asking | None = None,
) -> Posed:
    """Write truth and knowledge of one run from what was witnessed of it.

    Parameters
    ----------
    model, loss
        What the caller says of them, in the place of what was witnessed.
    seed, most
        As for :func:`choose`.
    notes
        What else a reader of the report must know.
    asked
        What the owner asks besides, and what this attacker is left without.
    ask
        Asks the clients' own app for losses; ``None`` where there is no app.

    Raises
    ------
    DataError
        If nothing was witnessed that can be asked about, clients keep a part of what they train, or labels are too
        large for classes.
    ConfigError
        If no model is known, or its loss does not fit the labels.
    """
    holding = hold(witnesses)
    why_ask = _why_ask(witnesses, Record(part.record, thinned=True)) if model is None and ask is not None else ""
    if not why_ask:
        _refuse_personal(witnesses)
    asked = asked or Questions()
    _leave_out_unheard(holding, Record(part.record, thinned=True))
    chosen = choose(holding, most=most, seed=seed, auxiliary_of=origins_in(asked.groups, holding.clients))
    targets, evaluation = _examples(holding, chosen.targets), _examples(holding, chosen.evaluation)
    notes = [*notes, *_mods_of(witnesses), *holding.notes]
    answers: Answers | None = None
    shared: ModelKnowledge | None = None
    if why_ask and ask is not None:
        try:
            answers, said = ask(part, witnesses, targets)
        except DataError as cause:
            raise DataError(f"the app itself was asked for losses, as {why_ask}: {cause}") from None
        notes += [f"the attacker is assumed to run the clients' own app, which gives the losses: {why_ask}", *said]
    else:
        shared = _model_of(witnesses, holding, Record(part.record, thinned=True), notes, model, loss)
    # Of a regression there are no classes to count.
    most_label = int(max(y for _, y in holding.examples.values()))
    outputs = 0 if shared is None else shared.classes
    classes = max(outputs, most_label + 1) if holding.kind == "i" else 1
    if classes > _MOST_CLASSES:
        raise DataError(
            f"labels go up to {most_label}, and the model has {outputs} outputs; expected at most "
            f"{_MOST_CLASSES} classes, counted from 0; give the labels of a regression as floating-point numbers"
        )
    has_auxiliary = bool(chosen.auxiliary) and "auxiliary" not in asked.without
    knowledge = Knowledge(
        model=shared,
        targets=targets,
        training=None if "training" in asked.without else _training_of(witnesses, notes),
        limits=_limits(holding) if len(holding.shape) == 3 and "limits" not in asked.without else None,
        auxiliary=_examples(holding, chosen.auxiliary) if has_auxiliary else None,
        frozen=None if why_ask else _frozen_of(witnesses, notes),
        answers=answers,
    )
    counts = class_counts(holding.clients, classes)
    if holding.kind == "f":
        counts[:, 0] = [client.trained.total for client in holding.clients.values()]
    clients, counts = _with_strangers(part, holding, counts, notes)
    origins = [holding.origins[key] for key in chosen.auxiliary]
    further = pose_further(asked, Scene(holding, clients, counts, knowledge.auxiliary, origins, seed))
    knowledge = replace(knowledge, **further.known)
    write_knowledge(part.knowledge, knowledge)
    assumed = (*_assumed(knowledge, asked), *further.notes)
    notes += assumed
    if not len(evaluation):
        notes.append(
            f"{holding.why_none}, so that there is no null run: what the attack says of examples that it cannot know "
            "is not known"
        )
    elif any(holding.origins.values()):
        notes.append("a client's own evaluation examples are taken for ones drawn as its training examples were")
    records, few = _few_records(holding)
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
        **further.true,
    )
    return Posed(knowledge, few if len(evaluation) else (), tuple(notes), assumed, further.reasons)


def _why_ask(witnesses: Sequence[Witness], record: Record) -> str:
    """Say why losses are asked of the app itself, and not of a model that the attacker builds; empty if not."""
    trained = [witness for witness in witnesses if witness.node != SERVER and witness.trained.total]
    models = [witness.model for witness in trained if witness.model is not None]
    for model in models:
        if model.spec is None or model.loss is None:
            return model.why
        if model.personal:
            return f"clients do not send {short(', '.join(model.personal), 100)}"
    if models and (misfit := _misfit(models[0], record)):
        return misfit
    for round_ in record:
        if any(reply.singled_out for reply in round_.observations):
            return "the server sends clients different models"
    return ""


def _misfit(model: WitnessedModel, record: Record) -> str:
    """Say what of the record's arrays is not an array of the clients' model as it is; empty if all are."""
    if model.frozen is not None:
        # A part of the model travels, such as an adapter; what it must fit is checked where it is put together.
        return ""
    try:
        known = ModelKnowledge(str(model.spec), model.input_shape, max(model.classes, 1), arguments=model.arguments)
        state = known.build().state_dict()
    except FedAttackError:
        return ""
    parameters = record.parameters
    if len(parameters) != len(state):
        return f"clients send {len(parameters)} arrays, and their model has {len(state)}"
    for parameter, (name, tensor) in zip(parameters, state.items(), strict=True):
        tensor = state.get(parameter.name, tensor)
        kinds = (
            np.dtype(parameter.dtype).kind,
            "f" if tensor.is_floating_point() else "c" if tensor.is_complex() else "i",
        )
        if kinds[0] == "c" or (kinds[0] == "f") != (kinds[1] == "f"):
            return (
                f"clients send {short(name, 60)} as {parameter.dtype}, and it is {str(tensor.dtype).partition('.')[2]}"
            )
    return ""


def _assumed(knowledge: Knowledge, asked: Questions) -> list[str]:
    """Say how much the attacker is assumed to have, and what it was left without."""
    assumed = []
    if knowledge.auxiliary is not None:
        count = len(knowledge.auxiliary)
        assumed.append(f"the attacker is assumed to have {count:,} auxiliary examples, which nobody trained on")
    if asked.without:
        left = [WITHOUT[name] for name in sorted(asked.without)]
        assumed.append(f"the attacker is assumed not to know, as --without says: {'; '.join(left)}")
    return assumed


def _refuse_personal(witnesses: Sequence[Witness]) -> None:
    """Refuse a run of whose models no attack has a whole one, since each client trains a part that it keeps."""
    trained = [witness for witness in witnesses if witness.node != SERVER and witness.trained.total]
    kept = [witness.model.personal for witness in trained if witness.model is not None]
    if kept and all(kept):
        raise DataError(
            f"clients train {short(', '.join(kept[0]), 100)} and do not send it: no reply holds a whole model, and no "
            "attack asks with a part of one; the record is kept"
        )


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
        return Targets(stacked(xs) if xs else holding.sample[:0], labels)
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


def _model_of(
    witnesses: Sequence[Witness],
    holding: Holding,
    record: Record,
    notes: list[str],
    named: str | None,
    named_loss: str | None,
) -> ModelKnowledge:
    """Return the model that the caller names, or most witnesses saw; else a linear layer, if the arrays fit one."""
    # Who only evaluates, be it a client or the server, says nothing of how clients train.
    of_clients = [witness for witness in witnesses if witness.node != SERVER and witness.model is not None]
    # Each machine has a file of its own for what is frozen.
    trained = [witness for witness in of_clients if witness.trained.total]
    seen: list[WitnessedModel] = []
    for one in [witness.model for witness in trained or of_clients or witnesses if witness.model is not None]:
        seen.append(replace(one, frozen=None))
    known = [model for model in seen if model.spec is not None]
    model = _most(known or seen, notes, "models") if seen else _UNSEEN
    if named is not None:
        model = replace(model, spec=named)
    elif model.spec is None:
        outputs = _outputs_of_linear(record, holding)
        if outputs is None:
            raise ConfigError(
                f"the clients' model is not known ({model.why}): name it by --model package.module:function; "
                "`fedattack audit APP` asks an app itself"
            )
        notes.append(f"the record's arrays are those of a linear layer, which the model is taken for ({model.why})")
        sizes = {"in_features": holding.shape[0], "out_features": outputs}
        model = replace(model, spec=_LINEAR, arguments=sizes, classes=outputs)
    most = max((y for _, y in holding.examples.values()), default=0)
    classes = model.classes or (int(most) + 1 if holding.kind == "i" else 1)
    loss = named_loss or model.loss
    if loss is None:
        loss = "cross-entropy" if holding.kind == "i" else "mse"
        notes.append(f"the clients' loss is not known ({model.why}); it is taken for {loss}")
    if loss == "cross-entropy" and (holding.kind != "i" or most >= classes):
        raise ConfigError(
            f"the clients' loss is not known: labels go up to {most:g}, and the model has {classes} outputs; name it "
            "by --loss package.module:function, of outputs and labels, one loss an example"
        )
    # With which arguments the caller's own is made, nobody saw.
    arguments = None if named is not None else model.arguments
    return ModelKnowledge(str(model.spec), holding.shape, classes, loss=loss, arguments=arguments)


def _frozen_of(witnesses: Sequence[Witness], notes: list[str]) -> dict[str, NDArray[Any]] | None:
    """Return the weights that no client sends, if all clients have the same."""
    # A file is named by what is in it, and each machine has its own.
    files: dict[str, Path] = {}
    for witness in witnesses:
        if witness.node != SERVER and witness.model is not None and witness.model.frozen is not None:
            files.setdefault(witness.model.frozen.name, witness.model.frozen)
    if len(files) > 1:
        notes.append("what clients do not send of their models differs from client to client")
    if len(files) != 1:
        return None
    notes.append("the attacker is assumed to have the weights that no client sends or trains")
    return read_frozen(*files.values())


def _outputs_of_linear(record: Record, holding: Holding) -> int | None:
    """Return how many outputs the record's model has, if it is a matrix and a vector that fit the examples."""
    shapes = [parameter.shape for parameter in record.parameters]
    if len(shapes) != 2 or len(shapes[0]) != 2 or len(holding.shape) != 1:
        return None
    outputs, inputs = shapes[0]
    fits = shapes[1] == (outputs,) and inputs == holding.shape[0]
    return outputs if fits and (outputs > 1) == (holding.kind == "i") else None


def _most(seen: Sequence[Any], notes: list[str], what: str) -> Any:
    """Return what is there most often; a note tells of others."""
    counts = Counter(map(repr, seen))
    most = counts.most_common(1)[0][0]
    if len(counts) > 1:
        notes.append(f"clients were seen with {len(counts)} different {what}; that of most is taken")
    return next(each for each in seen if repr(each) == most)


def _training_of(witnesses: Sequence[Witness], notes: list[str]) -> LocalSGD | None:
    """Return how clients train, if it is what attacks can imitate."""
    seen = [witness.training for witness in witnesses if witness.training is not None]
    if not seen:
        return None
    how = _most([_numbers_of(training) for training in seen], notes, "ways to train")
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
