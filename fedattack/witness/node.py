"""From one call of a client to what is known of its node, which lies on disk: other processes may serve it next."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.files import make_private
from fedattack.untrusted import parse_json
from fedattack.witness.sample import Examples
from fedattack.witness.seen import Witness, WitnessedModel, WitnessedTraining
from fedattack.witness.store import read_memory, read_witness, witness_file, write_witness
from fedattack.witness.watch import Arrays, SeenModel, Watch, same

_NOTES = 50
_ROLES = ("trained", "evaluated")


@dataclass(frozen=True)
class Call:
    """What is known of one call of a client besides what was watched.

    Attributes
    ----------
    node, client, mods
        See :class:`fedattack.witness.Witness`.
    sent
        The arrays of each model that the client replied.
    stated
        With how many examples it says it trained, if it says so.
    trains
        Whether it was asked to train.
    failed
        Why it ended early, else empty.
    """

    node: str
    client: str = ""
    mods: tuple[str, ...] = ()
    sent: Sequence[Arrays] = ()
    stated: int | None = None
    trains: bool = False
    failed: str = ""


@dataclass
class Node:
    """All that is known of a node."""

    node: str
    keep: int
    client: str = ""
    model: WitnessedModel | None = None
    training: WitnessedTraining | None = None
    mods: tuple[str, ...] = ()
    notes: dict[str, None] = field(default_factory=dict)
    trained: Examples = field(init=False)
    evaluated: Examples = field(init=False)
    # Of the last call in which it trained: how many examples of each class, for what comes augmented.
    counts: dict[str, int] = field(default_factory=dict)
    augmented: bool | None = None

    def __post_init__(self) -> None:
        self.trained, self.evaluated = Examples(self.keep), Examples(self.keep)

    def witness(self) -> Witness:
        """Return what the witness says."""
        notes = dict(self.notes)
        if self.evaluated.without(self.trained.labels):
            notes["some evaluated examples were left out: whether they were trained on is not known"] = None
        for role in _ROLES:
            examples: Examples = getattr(self, role)
            if examples.labels.dropped:
                notes[f"the number of {role} examples is an estimate"] = None
            if examples.other_shapes:
                notes[f"{role} examples of other shapes or types than the first are counted, but not kept"] = None
            if examples.too_large:
                notes[f"{role} examples are large: fewer than {self.keep} are kept"] = None
        if self.augmented:
            notes["inputs are augmented: what is counted and kept are inputs, of which one example gives several"] = (
                None
            )
        return Witness(
            self.node,
            self.client,
            self.trained.seen(),
            self.evaluated.seen(),
            self.model,
            self.training,
            self.mods,
            tuple(notes)[:_NOTES],
        )

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return the arrays from which another process goes on."""
        extras = json.dumps({"counts": self.counts, "augmented": self.augmented}).encode()
        arrays = {"extras": np.frombuffer(extras, np.uint8)}
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
        known.notes = dict.fromkeys(said.notes)
        names = [f"{role}_{name}" for role in _ROLES for name in known.trained.memory()]
        arrays = read_memory(path, "extras", *names)
        for role in _ROLES:
            own = {name.removeprefix(f"{role}_"): array for name, array in arrays.items() if name.startswith(role)}
            getattr(known, role).remember(own, getattr(said, role))
        extras = parse_json(arrays["extras"].tobytes())
        known.counts, known.augmented = extras["counts"], extras["augmented"]
        return known


def save(folder: Path, watch: Watch, call: Call) -> None:
    """Add what was watched to what is known of the node, on disk.

    Raises
    ------
    OSError
        If the folder cannot be written.
    ConfigError
        If what lies there was written by something else.
    """
    with watch.lock:
        watch.end(without_steps=call.trains and not watch.steps)
        make_private(folder)
        path = witness_file(folder, call.node)
        with _locked(path):
            known = Node.read(path, call.node, watch.keep)
            known.client, known.mods = call.client or known.client, call.mods or known.mods
            if call.failed:
                watch.note(f"a call ended early, and what it did is left out: {call.failed}")
            else:
                _add(known, watch, call)
            for note in watch.notes:
                known.notes[note] = None
            write_witness(folder, known.witness(), known.memory())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time change a file; a system without such locks (Windows) lets all."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _add(known: Node, watch: Watch, call: Call) -> None:
    """Add one call."""
    shared, alike = _shared(watch, call)
    trained = [model for model in shared if len(model.trained.labels)]
    if trained:
        _add_training(known, watch, call, trained)
    for model in alike:
        known.evaluated.join(model.evaluated)
    described = next((model for model in [*trained, *shared] if model.describe is not None), None)
    if described is None or described.describe is None:
        return
    with_loss = described.describe(described)
    if known.model is None or trained:
        known.model = with_loss


def _add_training(known: Node, watch: Watch, call: Call, trained: list[SeenModel]) -> None:
    own = Examples(watch.keep)
    for model in trained:
        own.join(model.trained)
    before = known.trained.total
    known.trained.join(own)
    grew = before > 0 and known.trained.total > before
    counts = {str(label): count for label, count in own.seen().counts.items()}
    count, uses = own.total, sum(model.uses for model in trained)
    same_mix = len(counts) > 1 and counts == known.counts
    if known.augmented or (call.stated and count > call.stated) or (grew and same_mix):
        known.augmented = True
    elif call.stated and not grew and (uses > count or before):
        known.augmented = False
    else:
        known.augmented = None
    if grew and not known.augmented:
        watch.note("the client trains on other examples in other rounds")
    known.counts = counts
    examples = call.stated if known.augmented else count
    known.training = _training(known, watch, trained, uses / examples if examples else None)


def _training(known: Node, watch: Watch, trained: list[SeenModel], epochs: float | None) -> WitnessedTraining | None:
    kinds = {kind: None for model in trained for kind in model.optimizers}
    if not kinds:
        return None
    name, lr, momentum, decay = next(iter(kinds))
    before = known.training
    if len(kinds) > 1:
        watch.note("the optimizer, or one of its numbers, changed within a round; the first is noted, without its rate")
        lr = None
    elif before is not None and before.lr != lr:
        watch.note("the learning rate changed from round to round")
        lr = None
    sizes = sum((model.batch_sizes for model in trained[1:]), trained[0].batch_sizes)
    return WitnessedTraining(
        optimizer=name,
        lr=lr,
        momentum=momentum,
        weight_decay=decay,
        batch_sizes=tuple(size for size, _ in sizes.most_common(8)),
        steps=max(model.steps for model in trained),
        epochs=epochs,
        augmented=known.augmented,
    )


def _shared(watch: Watch, call: Call) -> tuple[list[SeenModel], list[SeenModel]]:
    """Find the models that the client shares, and those of their kind, whose evaluations count, too."""
    models = [*watch.models.values()]
    if watch.stated is not None:
        if any(len(model.trained.labels) for model in models):
            watch.note("the client states what it trains on: what hooks saw is left out")
        return [watch.stated], [watch.stated]
    shared = _found(watch, call, models)
    kinds = {model.signature for model in shared}
    for model in models:
        if len(model.trained.labels) and model not in shared:
            watch.note(f"a model {model.name} was trained that the client did not share: its examples are left out")
    return shared, [model for model in models if model.signature in kinds]


def _found(watch: Watch, call: Call, models: list[SeenModel]) -> list[SeenModel]:
    sent = [model for model in models if _is_in(model, call.sent)]
    received = [model for model in models if model.received]
    if found := [model for model in sent if len(model.trained.labels)] or sent:
        return found
    if found := [model for model in received if len(model.trained.labels)] or received:
        return found
    # What is sent may be compressed, noisy, or a part of the model.
    busy = [model for model in models if len(model.trained.labels)] or models
    if not busy:
        return []
    if len({model.signature for model in busy}) > 1:
        watch.note("the client used several models, and none has the state that it received or sent: left out")
        return []
    if call.trains:
        watch.note(f"{busy[0].name} is the only model seen; its state is not what the client received or sent")
    return busy


def _is_in(model: SeenModel, states: Sequence[Arrays]) -> bool:
    if model.state is None:
        return False
    own = [array for _, array in model.state()]
    return any(same(own, state) for state in states)
