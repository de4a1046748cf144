"""From one call of a client to what is known of its node, which lies on disk: other processes may serve it next."""

import json
import math
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError, short
from fedattack.base.files import make_private
from fedattack.base.untrusted import parse_json
from fedattack.witness.arrays import Arrays, find_indices, same
from fedattack.witness.comparing import find_outputs, kinds_of
from fedattack.witness.private import join_rounds, private_keys
from fedattack.witness.sample import Examples
from fedattack.witness.seen import (
    CONDITIONAL,
    DISCRIMINATOR,
    GENERATOR,
    ONLY_APP,
    AskedToTrain,
    Witness,
    WitnessedModel,
    WitnessedTraining,
)
from fedattack.witness.seen_model import SeenModel
from fedattack.witness.sent import MOST_ARRAYS, OUTPUTS, SentArray, joined_kinds
from fedattack.witness.store import read_memory, read_witness, witness_file, write_frozen, write_public, write_witness
from fedattack.witness.watch import CallWatch, FittedEstimator

FROZEN_BYTES = 2**30
"""Bytes of weights that no client sends, up to which they are kept."""

NO_TRAINING = (
    "the client replied with a model, and no training was seen: state examples by fedattack.witness.trained_on"
)
"""Note of a client whose training no hook saw."""

_CHANGES = "the part of its model that the client does not send changes from round to round"

_OTHERS_PREDICTED = "the examples whose predictions the client sends change from round to round"

_NOTES = 50

# Fewer labels may be those of a reply by accident.
_FEWEST_LABELS = 3
_ROLES = ("trained", "evaluated")
# The number of many examples is an estimate.
_MORE = 1.05

_EXTRAS = ("counts", "count", "changed", "augmented", "stepwise")


@dataclass(frozen=True)
class Call:
    """What is known of one call of a client besides what was watched.

    Attributes
    ----------
    node, client, mods, run
        See :class:`fedattack.witness.Witness`.
    sent, names
        The arrays of each model that the client replied, and their names.
    stated
        With how many examples it says it trained, if it says so.
    trains
        Whether it was asked to train.
    failed
        The kind of error that it ended by, else empty.
    asked
        How it was asked to train; ``None`` if it was not.
    type
        Of the message.
    lists
        By their names, the lists of numbers that the client replied beside arrays.
    """

    node: str
    client: str = ""
    mods: tuple[str, ...] = ()
    sent: Sequence[Arrays] = ()
    names: Sequence[Sequence[str]] = ()
    stated: int | None = None
    trains: bool = False
    failed: str = ""
    run: str = ""
    asked: AskedToTrain | None = None
    type: str = ""
    lists: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def vectors(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the arrays of the reply, and its lists, by their names."""
        for arrays, names in zip(self.sent, self.names, strict=True):
            yield from zip(names, arrays, strict=True)
        yield from self.lists.items()


@dataclass
class Node:
    """All that is known of a node."""

    node: str
    keep: int
    client: str = ""
    model: WitnessedModel | None = None
    training: WitnessedTraining | None = None
    mods: tuple[str, ...] = ()
    private: Mapping[str, Any] = field(default_factory=dict)
    asked: AskedToTrain | None = None
    notes: dict[str, None] = field(default_factory=dict)
    trained: Examples = field(init=False)
    evaluated: Examples = field(init=False)
    # How many examples of each class the last call trained on, for what comes augmented.
    counts: dict[str, int] = field(default_factory=dict)
    count: int = 0
    # Whether its inputs changed from one round to the next, as those that are augmented do.
    changed: bool = False
    augmented: bool | None = None
    # Whether its examples are all that a step takes.
    stepwise: bool = False
    run: str = ""
    sends: tuple[SentArray, ...] = ()
    public: Path | None = None

    def __post_init__(self) -> None:
        self.trained, self.evaluated = Examples(self.keep), Examples(self.keep)

    def witness(self) -> Witness:
        """Return what the witness says."""
        notes = dict(self.notes)
        # What was trained on in any call is no evaluated example, though it was evaluated in another.
        if self.evaluated.without(self.trained.labels):
            notes["some evaluated examples were left out, because they may have been trained on"] = None
        for role in _ROLES:
            examples: Examples = getattr(self, role)
            if examples.labels.dropped:
                notes[f"the number of {role} examples is an estimate"] = None
            if examples.other_shapes:
                notes[f"{role} examples with another shape or type than the first are counted, but not kept"] = None
            if examples.too_large:
                notes[f"{role} examples are large: fewer than {self.keep} are kept"] = None
        by_place = bool(self.augmented) and self.trained.has_places
        if by_place:
            notes["inputs are augmented: of each example, known by its index in a loader, one input is asked about"] = (
                None
            )
        elif self.augmented:
            notes[
                "inputs are augmented, or are others in each round: inputs are counted and kept, and one example "
                "may give several of them, so n is too large and intervals are too narrow"
            ] = None
        return Witness(
            self.node,
            self.client,
            self.trained.seen(by_place=by_place),
            self.evaluated.seen(),
            self.model,
            self.training,
            self.mods,
            tuple(notes)[:_NOTES],
            private=self.private,
            run=self.run,
            asked=self.asked,
            sends=self.sends,
            public=self.public,
        )

    def facts(self) -> tuple[Any, ...]:
        """Return what may change without other examples."""
        counts = tuple(self.counts.items())
        said = self.client, self.model, self.training, self.mods, self.private, tuple(self.notes), self.sends
        return *said, self.asked, self.public, counts, self.count, self.changed, self.augmented

    def rows(self) -> Collection[bytes]:
        """Return the hashes of the examples that are kept."""
        return {*self.trained.rows, *self.evaluated.rows}

    def size(self) -> int:
        """Return how many bytes the examples that are kept take."""
        return sum(row.nbytes for role in (self.trained, self.evaluated) for row in role.rows.items.values())

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return the arrays from which another process goes on."""
        extras = {name: getattr(self, name) for name in _EXTRAS}
        arrays = {"extras": np.frombuffer(json.dumps(extras).encode(), np.uint8)}
        for role in _ROLES:
            for name, array in getattr(self, role).memory().items():
                arrays[f"{role}_{name}"] = array
        return arrays

    @classmethod
    def read(cls, path: Path, node: str, keep: int) -> "Node":
        """Go on from a file, if it is there.

        Raises
        ------
        ConfigError
            If it is no witness's.
        """
        known = cls(node, keep)
        if not path.exists():
            return known
        said = read_witness(path)
        known.client, known.model, known.training, known.mods = said.client, said.model, said.training, said.mods
        known.notes, known.run, known.private = dict.fromkeys(said.notes), said.run, said.private
        known.asked = said.asked
        known.sends, known.public = said.sends, said.public
        names = [f"{role}_{name}" for role in _ROLES for name in known.trained.memory()]
        arrays = read_memory(path, "extras", *names)
        for role in _ROLES:
            of_role = {name.removeprefix(f"{role}_"): array for name, array in arrays.items() if name.startswith(role)}
            getattr(known, role).remember(of_role, getattr(said, role))
        for name, value in parse_json(arrays["extras"].tobytes()).items():
            if name in _EXTRAS:
                setattr(known, name, value)
        return known


# Nodes that this process has served, by file, with what tells a file from a newer one, and their bytes; latest last.
_Stamp = tuple[int, int, int]
_served: dict[Path, tuple[_Stamp, Node, int]] = {}
_SERVED = 16
_SERVED_BYTES = 2**27


def known_rows(folder: Path, node: str) -> Collection[bytes]:
    """Return hashes of the examples that are kept of a node, as far as this process knows them."""
    _, known, _ = _served.get(witness_file(folder, node), (None, None, 0))
    return known.rows() if known is not None else ()


def _open(path: Path, call: Call, keep: int) -> tuple[Node, int]:
    """Return what is known of a node, and how many bytes its examples take."""
    stamp, known, size = _served.get(path, (None, None, 0))
    # Another process of the same machine may have served the node meanwhile.
    if known is None or stamp != _stamp(path):
        known = Node.read(path, call.node, keep)
        size = known.size()
    return known, size


def _serve(path: Path, known: Node, size: int) -> None:
    """Hold a node for its next call, and let go of those that were served long ago."""
    _served.pop(path, None)
    _served[path] = _stamp(path), known, size
    while len(_served) > _SERVED or sum(size for _, _, size in _served.values()) > _SERVED_BYTES:
        _served.pop(next(iter(_served)))


def _stamp(path: Path) -> _Stamp:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return 0, 0, 0
    # A file that is replaced has another inode, also within one tick of a coarse clock.
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def save(folder: Path, watch: CallWatch, call: Call) -> None:
    """Add what was watched to what is known of the node, on disk.

    Raises
    ------
    OSError
        If the folder cannot be written.
    ConfigError
        If what lies there was written by something else, or in another run.
    """
    # Threads that the client started may still be at work.
    with watch.lock:
        if not call.trains:
            watch.guard("labels in the reply", _note_labels, call)
        watch.end(without_steps=call.trains and not watch.steps)
        path = witness_file(folder, call.node)
        if not path.exists():
            make_private(folder)
        with _lock_file(path):
            known, size = _open(path, call, watch.keep)
            if call.run != known.run and known.run:
                raise ConfigError(f"{folder} has witnesses of run {known.run}; give run {call.run} a folder of its own")
            known.run = call.run
            # Whatever fails below, the next call goes on from the file.
            _served.pop(path, None)
            before = known.facts()
            known.client, known.mods = call.client or known.client, call.mods or known.mods
            # Settings may change from round to round: that they do is no news.
            known.asked = known.asked or call.asked
            news = not path.exists()
            # An example counts as trained where a step followed, and of a call that failed nobody knows what its reply
            # would have been.
            if call.failed:
                watch.note(
                    f"a call ended early ({call.failed}), and what it did is left out; the client's log shows why"
                )
            else:
                news |= _add(known, watch, call, folder)
            known.notes |= watch.notes
            if news or known.facts() != before:
                write_witness(folder, known.witness(), known.memory())
                size = known.size()
            _serve(path, known, size)


@contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    """Let one process at a time change a file; a system without such locks (Windows) lets all."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        # A lock of an open file ends with its process, however that ends. The file is another one than the witness's,
        # which is replaced.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _add(known: Node, watch: CallWatch, call: Call, folder: Path) -> bool:
    """Add one call, and return whether it brought other examples."""
    shared, alike = _find_shared(watch, call)
    trained = _choose_trained(shared)
    generators = []
    if call.trains and not trained:
        # Who sends a generator alone trains on what another model takes beside that.
        generators = [model for model in shared if _choose_trained(model.makes_for)]
        trained = [judge for model in generators for judge in _choose_trained(model.makes_for)][:1]
    news = _add_training(known, watch, call, trained) if trained else False
    for model in alike:
        news |= known.evaluated.join(model.batches.evaluated)
    if news:
        # An example that was known in one role may have been seen in the other.
        known.trained.take_rows(known.evaluated)
        known.evaluated.take_rows(known.trained)
    is_conditional = any(model.is_conditional for model in watch.models.values())
    is_silent = call.trains and not watch.fitted and not len(known.trained.labels) and not is_conditional
    if is_silent and any(not _is_received(watch, arrays) for arrays in call.sent):
        watch.note(NO_TRAINING)
    if call.trains and trained:
        watch.guard("what the client sends", _add_sends, known, call, trained[0], folder)
    if call.trains:
        trains_model = any(model in trained for model in watch.models.values())
        watch.guard("what the client fitted", _note_fitted, call, trains_model)
    if generators:
        known.model = WitnessedModel(None, {}, trained[0].input_shape, 0, None, GENERATOR)
    elif call.trains and trained and _scores_alone(watch, trained[0]):
        known.model = WitnessedModel(None, {}, trained[0].input_shape, 0, None, DISCRIMINATOR)
    elif call.trains and is_conditional:
        known.model = WitnessedModel(None, {}, (), 0, None, CONDITIONAL)
    elif trained or known.model is None:
        _describe_model(known, watch, call, [*trained, *shared], folder)
    return news


def _scores_alone(watch: CallWatch, model: SeenModel) -> bool:
    """Say whether a model gives one number for an example without a label, beside what another model makes."""
    if model.classes > 1 or not any(model in maker.makes_for for maker in watch.models.values()):
        return False
    # All that training says of its own examples is that they are examples.
    return len({*model.batches.trained.labels.items.values()}) == 1


def _is_received(watch: CallWatch, arrays: Arrays) -> bool:
    """Say whether a client that replies these arrays sends back what it got, as one without examples does."""
    # Bit for bit: one step on one example would change something.
    return any(same(arrays, state) for state in watch.received())


def _note_labels(watch: CallWatch, call: Call) -> None:
    """Note where a reply holds the labels of all examples that the client took, in their order or in another."""
    for model in watch.models.values():
        # A server that is told the labels needs no attack; the report says so.
        labels = model.list_labels()
        if len(labels) < _FEWEST_LABELS:
            continue
        for name, vector in call.vectors():
            if vector.shape != (len(labels),) or vector.dtype.kind not in "fiub":
                continue
            # The order of a loader is not that of the reply.
            if np.array_equal(np.sort(vector), np.sort(labels)):
                watch.note(
                    f"replies to {call.type} hold the label of each example that the client evaluates on, as "
                    f"{name}: the server receives the labels in plaintext"
                )


def _note_fitted(watch: CallWatch, call: Call, has_trained: bool) -> None:
    """Note estimators that are no models, if they were fitted and are sent, or nothing else was trained."""
    for fitted in watch.fitted.values():
        sent = _list_sent(fitted, call)
        if sent or not has_trained:
            sends = ""
            if sent:
                sends = f", and replies hold {', '.join(sent)}"
            what = "has no weights that follow a loss"
            if fitted.weights():
                what = "is neither a classifier nor a regressor"
            watch.note(f"{fitted.name}, which {what}, was fitted{sends}: {ONLY_APP}")


def _list_sent(fitted: FittedEstimator, call: Call) -> list[str]:
    """List the statistics of an estimator that a reply holds, each with its name there."""
    statistics = fitted.statistics()
    sent = []
    for name, array in call.vectors():
        for attribute, values in statistics:
            if values.any() and _are_same_numbers(array, values):
                sent.append(f"its {attribute} as {name}")
                break
    return sent


def _are_same_numbers(sent: NDArray[Any], known: NDArray[Any]) -> bool:
    # Who has no example of a class sends 0 for its mean, which is not a number.
    return sent.shape == known.shape and np.array_equal(np.nan_to_num(sent), np.nan_to_num(known))


def _describe_model(known: Node, watch: CallWatch, call: Call, models: Sequence[SeenModel], folder: Path) -> None:
    """Note which model it is, by the first that can be described."""
    for model in models:
        if model.describe is None:
            continue
        described = watch.guard("which model it is", lambda _, model=model: model.describe(model))
        if described is not None:
            personal, frozen = _not_sent(known, watch, call, model, folder)
            known.model = replace(described, personal=personal, frozen=frozen)
        return


def _add_sends(watch: CallWatch, known: Node, call: Call, model: SeenModel, folder: Path) -> None:
    """Note what each array of the reply is, beside what it was in earlier calls."""
    after = model.state() if model.state is not None else []
    # A reply of several models, such as that of a GAN, is compared array by array.
    # Several records of arrays in a reply are several models.
    names = [name for of_model in call.names for name in of_model]
    sent = [array for of_model in call.sent for array in of_model]
    # What SecAgg+ masks is in no record of arrays.
    if not after or not sent:
        return
    if len(sent) > MOST_ARRAYS:
        watch.note(f"the client sends {len(sent)} arrays, which are too many: their kinds are not noted")
        return
    now = kinds_of(
        names,
        sent,
        watch.received(),
        before=model.state_at_start(),
        after=after,
        learns=model.learned(),
        mods=call.mods,
        outputs=model.outputs.read,
        others=lambda: [one.state() for one in watch.models.values() if one is not model and one.state is not None],
    )
    known.sends = joined_kinds(known.sends, now)[:MOST_ARRAYS]
    for array, described in zip(sent, now, strict=False):
        if described.kind == OUTPUTS:
            _add_public(watch, known, array, model, folder)


def _add_public(watch: CallWatch, known: Node, predictions: NDArray[Any], model: SeenModel, folder: Path) -> None:
    """Write the examples that predictions in a reply are of, if they are the same in each round."""
    batches = find_outputs(predictions, model.outputs.read())
    if batches is None or _OTHERS_PREDICTED in known.notes:
        return
    x = model.outputs.read_inputs(batches)
    if x is None:
        return
    path = write_public(folder, x)
    if known.public in (None, path):
        known.public = path
        return
    watch.note(_OTHERS_PREDICTED)
    known.public = None


def _not_sent(
    known: Node, watch: CallWatch, call: Call, model: SeenModel, folder: Path
) -> tuple[tuple[str, ...], Path | None]:
    """Name what of a model the client trains and does not send; write what it does neither with.

    An attacker is assumed to have what nobody trains, too.
    """
    before = ((), None) if known.model is None else (known.model.personal, known.model.frozen)
    arrays = _find_not_sent(model, call)
    if arrays is None:
        return before
    learned = {*arrays} & model.learned()
    if learned:
        watch.note(
            f"the client trains {short(', '.join(sorted(learned)), 80)} and does not send it: no reply holds the "
            "whole model"
        )
        return tuple(sorted(learned)), None
    if sum(array.nbytes for array in arrays.values()) > FROZEN_BYTES:
        watch.note(
            "the part of its model that the client does not send is too large to be kept: give it by --frozen FILE"
        )
        return (), None
    path = write_frozen(folder, arrays)
    if before[1] not in (None, path):
        watch.note(_CHANGES)
    return (), None if _CHANGES in {*known.notes, *watch.notes} else path


def _find_not_sent(model: SeenModel, call: Call) -> dict[str, NDArray[Any]] | None:
    """Return the entries of a model that are not sent; ``None`` if what is sent is all of it, or no part of it."""
    named = model.state() if model.state is not None else []
    largest = max(call.sent, key=len, default=())
    sent = find_indices([array for _, array in named], [*largest])
    if sent is None or len(sent) == len(named):
        return None
    arrays: dict[str, NDArray[Any]] = {}
    for index, (name, array) in enumerate(named):
        if index not in sent:
            arrays[name] = array
    return arrays


def _add_training(known: Node, watch: CallWatch, call: Call, trained: list[SeenModel]) -> bool:
    _add_privacy(known, watch, trained)
    examples = trained[0].batches.trained
    for model in trained[1:]:
        examples.join(model.batches.trained)
    if trained[0].stepwise and not known.stepwise:
        # What was noted of it before has no labels, and another form.
        known.stepwise = True
        known.trained, known.evaluated = Examples(known.keep), Examples(known.keep)
    before = known.trained.total
    news = known.trained.join(examples)
    count = examples.total
    counts = {str(label): number for label, number in examples.counts(count).items()}
    # Augmentation changes inputs from one epoch to the next: within a round a loader shows it, and between rounds the
    # counts do.
    known.changed |= examples.has_views or _is_changed(known, before, count, counts)
    uses = sum(model.batches.uses for model in trained)
    sizes = sum((model.batches.sizes for model in trained), Counter[int]())
    # If clients have one batch, it has all examples.
    whole = next(iter(sizes)) if len(sizes) == 1 else None
    known.trained.repeats |= examples.find_repeats([call.stated, whole])
    passes = _passes(call.stated, uses, sizes)
    # All inputs of the round were known before it.
    again = before > 0 and known.trained.total == count
    known.augmented = _is_augmented(known.changed, call.stated, count, uses, passes=passes, again=again)
    if _has_grown(known, before) and not known.augmented:
        watch.note("the client trains on different examples in different rounds")
    known.counts, known.count = counts, count
    epochs: float | None = uses / count
    if known.augmented:
        epochs = uses / len(examples.drawn) if examples.has_places else passes
    known.training = _training(known, watch, trained, sizes, epochs)
    return news


def _add_privacy(known: Node, watch: CallWatch, trained: list[SeenModel]) -> None:
    now = watch.guard("what makes it private", lambda _: private_keys(trained))
    if now:
        known.private = join_rounds(known.private, now)


def _has_grown(known: Node, before: int) -> bool:
    """Say whether a node with so many examples before trained on further ones."""
    return before > 0 and known.trained.total > before


def _is_changed(known: Node, before: int, count: int, counts: Mapping[str, int]) -> bool:
    """Say whether the inputs of a round, of which there are so many of each class, are those of the last, but changed.

    Parameters
    ----------
    known
        With the examples of this round, and the counts of the last one.
    before
        How many examples there were before this round.
    count, counts
        Distinct inputs of this round, in all and of each class.
    """
    # As many inputs as before: examples without labels, such as public ones, may have come to those of before.
    if _has_grown(known, before) and len(counts) > 1 and counts == known.counts and count <= known.count:
        return True
    # As many as the last time, and none of those before: a stream of new examples may look the same.
    return before > 0 and count == known.count and known.trained.total >= before + count


def _passes(stated: int | None, uses: int, sizes: Mapping[int, int]) -> float | None:
    """Return how often a client passed over its examples, by their stated number; ``None`` if that does not fit.

    What clients state may be their number of batches, or anything else.

    Parameters
    ----------
    stated
        What the client says.
    uses
        How often it took an input in the round.
    sizes
        How many batches there were of each size.
    """
    if not stated or uses % stated:
        return None
    # With n examples and batches of b, an epoch has ⌈n/b⌉ batches: a stated number that fits neither these nor the uses
    # is no number of examples.
    passes, batches, largest = uses // stated, sum(sizes.values()), max(sizes)
    if largest > 1 and batches % stated == 0:
        return None
    return passes if batches == passes * math.ceil(stated / largest) else None


def _is_augmented(
    changed: bool, stated: int | None, count: int, uses: int, *, passes: float | None, again: bool
) -> bool | None:
    """Say whether one example comes as several inputs; ``None`` if that is not known.

    Parameters
    ----------
    changed
        Whether inputs changed from one round to the next.
    stated, uses, passes
        As for :func:`_passes`, and what it returned.
    count
        Distinct inputs of the round.
    again
        Whether the round had the very inputs that the rounds before had.
    """
    if changed:
        return True
    # What is stated may be how often it took an input; else it is no less than the number of its examples.
    within = stated is not None and count <= stated != uses
    repeated = uses > count and (uses % count == 0 or within)
    more = passes is not None and stated is not None and count > _MORE * stated
    if repeated or again:
        # Who states less than that may count otherwise, or change each example in the same few ways.
        return None if more else False
    return True if more else None


def _training(
    known: Node, watch: CallWatch, trained: list[SeenModel], sizes: Counter[int], epochs: float | None
) -> WitnessedTraining | None:
    kinds = {kind: None for model in trained for kind in model.optimizers}
    if not kinds:
        return None
    name, lr, momentum, decay = next(iter(kinds))
    before = known.training
    if len(kinds) > 1:
        watch.note("the optimizer has several settings within a round; the first is noted, without its learning rate")
        lr = None
    elif before is not None and before.lr != lr:
        watch.note("the learning rate changed from round to round")
        lr = None
    # Gradients of several batches may be added up before a step.
    most = max(sum(model.batches.sizes.values()) / model.steps for model in trained if model.steps)
    if most > 1:
        watch.note(f"a step of the optimizer takes {most:.3g} batches: the noted batch size is that of a single batch")
    return WitnessedTraining(
        optimizer=name,
        lr=lr,
        momentum=momentum,
        weight_decay=decay,
        batch_sizes=tuple(size for size, _ in sizes.most_common(8)),
        steps=max(model.steps for model in trained),
        epochs=epochs,
        augmented=known.augmented,
        together=most,
    )


def _find_shared(watch: CallWatch, call: Call) -> tuple[list[SeenModel], list[SeenModel]]:
    """Find the models that the client shares, and those of their kind, whose evaluations count, too."""
    models = [*watch.models.values()]
    if watch.stated is not None:
        if _choose_trained(models):
            watch.note("the client states what it trains on: what the hooks saw is left out")
        return [watch.stated], [watch.stated]
    shared = _find_exchanged(watch, call, models)
    if not models or (call.trains and not _choose_trained(models)):
        # Where no model is trained, what is fitted without one is what the client trains.
        fitted = _find_fitted(watch, call)
        if fitted:
            if not any(any(each.batches.trained.labels.items.values()) for each in fitted):
                watch.note(f"{fitted[0].name} takes no labels: 0 stands for the label of each example")
            return fitted, fitted
    kinds = {model.signature for model in shared}
    judges = [judge for model in shared for judge in model.makes_for]
    for model in _choose_trained(models):
        if model not in shared and (model not in judges or _choose_trained(shared)):
            watch.note(f"a model {model.name} was trained that the client does not exchange: its examples are left out")
    return shared, [model for model in models if model.signature in kinds]


def _find_fitted(watch: CallWatch, call: Call) -> list[SeenModel]:
    """Return what is seen of estimators that are no models: of one that is sent, or the first, and its kind."""
    seen = [fitted.seen for fitted in watch.fitted.values() if fitted.seen.input_shape]
    sent = [fitted.seen for fitted in watch.fitted.values() if fitted.seen in seen and _list_sent(fitted, call)]
    first = next(iter([*sent, *seen]), None)
    return [
        each for each in seen if (each.kind, each.input_shape) == (first and first.kind, first and first.input_shape)
    ]


def _find_exchanged(watch: CallWatch, call: Call, models: list[SeenModel]) -> list[SeenModel]:
    # A reply that is all of a model says more than one that is a part of it: two models may share an encoder.
    sent = [model for model in models if _is_in(model, call.sent, whole=True)]
    if not sent:
        sent = [model for model in models if _is_in(model, call.sent, whole=False)]
    received = [model for model in models if model.received]
    # An average of what was trained may be what is sent: what was received and trained comes before it.
    for candidates in (_choose_trained(sent), _choose_trained(received), sent, received):
        if candidates:
            return candidates
    return _find_only(watch, call, models)


def _find_only(watch: CallWatch, call: Call, models: list[SeenModel]) -> list[SeenModel]:
    """Find models of the only kind there is: what is sent may be compressed, noisy, or a part of the model."""
    busy = _choose_trained(models) or models
    if not busy:
        return []
    if len({model.signature for model in busy}) > 1:
        watch.note(
            "the client used several models, and none has the state that the client received or sent: they are left out"
        )
        return []
    has_state = busy[0].state is None or bool(busy[0].state())
    start = [array for _, array in busy[0].state_at_start()]
    is_vector = any(_is_vector_of(start, array) for state in watch.received() for array in state)
    if call.trains and has_state and not is_vector:
        watch.note(
            f"{busy[0].name} is the only model that was seen, and its state is not what the client received or sent"
        )
    return busy


def _choose_trained(models: list[SeenModel]) -> list[SeenModel]:
    return [model for model in models if len(model.batches.trained.labels)]


def _is_in(model: SeenModel, states: Sequence[Arrays], *, whole: bool) -> bool:
    """Say whether one of the states is the model's, or a part of it."""
    if model.state is None:
        return False
    arrays = [array for _, array in model.state()]
    if any(_is_vector_of(arrays, array) for state in states for array in state):
        return True
    exchanged = [state for state in states if find_indices(arrays, state) is not None]
    return any(len(state) == len(arrays) or not whole for state in exchanged)


def _is_vector_of(arrays: Arrays, sent: NDArray[Any]) -> bool:
    """Say whether a vector holds all numbers with a point of a state, one array behind the other."""
    reals = [array.reshape(-1) for array in arrays if array.dtype.kind == "f"]
    if len(reals) < 2 or sent.shape != (sum(map(len, reals)),):
        return False
    return same([np.concatenate(reals)], [sent])
