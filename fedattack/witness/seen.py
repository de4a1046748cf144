"""What a witness notes about one client: examples, model, training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, JsonValue

from fedattack.base.errors import short
from fedattack.base.stored import ANY_KIND, OPTIONAL, AsJson, Axes, Count, Finite
from fedattack.base.structured import fault
from fedattack.base.untrusted import PLAIN, Text
from fedattack.witness.sent import MOST_ARRAYS, SentArray

SERVER = "server"
"""The node of what the server's own process did."""

UNKNOWN = -1
"""The label of an example whose label nobody saw."""

ONLY_APP = "only the app can give losses"
"""How the note of a witness ends that saw a training whose weights follow no loss."""

GENERATOR = f"clients send a generator alone, and keep the model that takes examples beside what it makes: {ONLY_APP}"
"""Why no model is known that gives losses, where clients send no model that takes an example."""

DISCRIMINATOR = f"clients send a discriminator, which scores an example beside what a generator makes: {ONLY_APP}"
"""Why no model is known that gives losses, where a model takes examples without labels, beside what another makes."""

CONDITIONAL = f"clients train a generator and a discriminator that take more than examples, such as labels: {ONLY_APP}"
"""Why no model is known that gives losses, where nobody can tell examples from what a model makes."""

HASH = 16
"""Bytes of an example's hash."""


def _write_counts(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(label): count for label, count in counts.items()}


def _read_counts(counts: Mapping[str, int]) -> dict[int, int]:
    try:
        return {int(label): count for label, count in counts.items()}
    except ValueError:
        raise ValueError("expected classes as numbers") from None


@dataclass(frozen=True, eq=False)
class SeenExamples:
    """Distinct examples, as the model took them.

    Attributes
    ----------
    x
        (kept, …): the examples with the smallest hashes, a uniform sample of all; of structured type if the model takes
        more than one array of numbers, see :mod:`fedattack.base.structured`.
    y
        (kept,): their labels, int64, or float32 if they are not classes; :data:`UNKNOWN` if no label was seen.
    hashes
        (kept, 16) uint8: keyed hash of the inputs of each, without labels, in ascending order.
    total
        Number of distinct examples; an estimate if a note says so.
    counts
        Number of distinct examples of each class.
    places
        (kept,): number of the example to which each input belongs, if one example came as several inputs; empty if that
        is not known, or each input is an example.
    again, again_y
        (again,): for each further copy of a kept example, its index among these, and the copy's label, like ``y``;
        empty if it is not known how often the client has each.
    order
        (kept,): row of each in the owner's own table, -1 for one that comes again; ``None`` if no owner states a table.
    """

    x: Annotated[NDArray[Any], Axes("examples", rest=True, nan=True, kinds=ANY_KIND)]
    y: Annotated[NDArray[Any], Axes("labels", nan=True)]
    hashes: Annotated[NDArray[np.uint8], Axes("examples", "bytes", kinds="u")]
    total: Count
    counts: Annotated[dict[int, int], AsJson(dict[Text, Count], _write_counts, _read_counts)]
    places: Annotated[NDArray[np.int64], Axes("places")] = field(default_factory=lambda: np.zeros(0, np.int64))
    again: Annotated[NDArray[np.int64], Axes("again", low=0), OPTIONAL] = field(
        default_factory=lambda: np.zeros(0, np.int64)
    )
    again_y: Annotated[NDArray[Any], Axes("again", nan=True), OPTIONAL] = field(
        default_factory=lambda: np.zeros(0, np.int64)
    )
    order: Annotated[NDArray[np.int64] | None, Axes("examples", low=-1)] = None

    @classmethod
    def none(cls) -> "SeenExamples":
        """Return no examples."""
        return cls(np.zeros((0, 0), np.float32), np.zeros(0, np.int64), np.zeros((0, HASH), np.uint8), 0, {})

    def __len__(self) -> int:
        return len(self.hashes)

    def fault(self) -> str:
        """Say which arrays of examples that were read do not fit together; empty if all do."""
        if self.hashes.shape[1] != HASH:
            return f"hashes: expected uint8 (n, {HASH}), got {self.hashes.shape}"
        if self.y.dtype not in (np.int64, np.float32) or len(self.y) != len(self):
            return f"y: expected {len(self)} labels, int64 or float32, got {self.y.dtype} {self.y.shape}"
        if len(self.places) not in (0, len(self)):
            return f"places: expected int64 of {len(self)} or none, got {self.places.shape}"
        if len(self.again_y) != len(self.again) or self.again.max(initial=-1) >= len(self):
            return f"again: expected copies of {len(self)} examples, each with a label"
        if fault(self.x):
            got = short(f"{self.x.dtype} {self.x.shape}", 100)
            return f"x: expected {len(self)} examples of numbers, got {got}"
        if self.total < len(self):
            return f"total: {len(self)} examples, of a total of {self.total}"
        return ""


def _write_name(file: Path) -> str:
    return file.name


def _read_name(name: str) -> Path:
    if not PLAIN.fullmatch(name):
        raise ValueError("it is not the name of a file")
    return Path(name)


@dataclass(frozen=True)
class WitnessedModel:
    """The model that the client shares.

    Attributes
    ----------
    spec
        ``package.module:Name`` of what builds a model of the same names and shapes when it is called with
        ``arguments``; ``None`` if none is known.
    arguments
        Keyword arguments, as JSON values.
    input_shape
        Shape of one example.
    classes
        Width of the output.
    loss
        A name in :data:`fedattack.learning.LOSSES`; ``None`` for any other loss.
    why
        Why ``spec`` or ``loss`` is ``None``, else empty.
    personal
        Names of the arrays that the client trains and does not send.
    frozen
        An ``.npz`` with the weights that no client sends or trains, by the model's names; ``None`` if there are none.
    """

    spec: Text | None
    arguments: Annotated[dict[str, Any], AsJson(dict[Text, JsonValue])]
    input_shape: tuple[Count, ...]
    classes: Count
    loss: Text | None
    why: Text
    personal: tuple[Text, ...] = ()
    frozen: Annotated[Path | None, AsJson(Text, _write_name, _read_name), OPTIONAL] = None


@dataclass(frozen=True)
class WitnessedTraining:
    """How the client trains in one round.

    Attributes
    ----------
    optimizer
        Name of its class, with those of its other numbers that are not PyTorch's defaults.
    lr
        Learning rate; ``None`` if it is not one number.
    momentum, weight_decay
        0 if the optimizer has none.
    batch_sizes
        Sizes of batches, the most frequent first.
    steps
        Steps of the optimizer in one round.
    epochs
        Passes over the training examples in one round; ``None`` if that is not known.
    augmented
        Whether one example came as several inputs; ``None`` if this is not known.
    together
        Batches in one step of the optimizer, on average: more than one if gradients are accumulated.
    """

    optimizer: Text
    lr: Finite | None
    momentum: Finite
    weight_decay: Finite
    batch_sizes: tuple[Count, ...]
    steps: Count
    epochs: Finite | None
    augmented: bool | None
    together: Annotated[float, Field(ge=0, le=10**6, allow_inf_nan=False)] = 1.0


_Plain = bool | int | Finite | Text


@dataclass(frozen=True)
class AskedToTrain:
    """The form of the message by which the server last asked the client to train, without its arrays' numbers.

    Attributes
    ----------
    type
        The message's type, such as ``train``.
    arrays
        Names of the arrays, by the name of the record that holds them.
    configs
        Settings that are numbers, texts or lists of these, by the name of the record that holds them.
    """

    type: Text
    arrays: Mapping[Text, Annotated[tuple[Text, ...], Field(max_length=100_000)]]
    configs: Annotated[Mapping[str, Mapping[str, Any]], AsJson(dict[Text, dict[Text, _Plain | list[_Plain]]])]


@dataclass(frozen=True, eq=False)
class Witness:
    """What a witness saw of one node.

    Attributes
    ----------
    node
        The node's id, as the record names it, or :data:`SERVER`.
    client
        Its ``partition-id``, if it has one, else empty.
    trained
        Examples that led to a step of the optimizer.
    evaluated
        Examples that the model took and that never led to one.
    model, training
        ``None`` if none was seen.
    mods
        The ClientApp's mods, with their numbers.
    notes
        What a reader must know: what the witness did not cover, and what is an estimate.
    run
        Flower's id of the run; empty if it is not known.
    private
        For a client that trains by DP-SGD, the keys of a privacy claim about one round; see
        :func:`fedattack.claims.make_claim`.
    asked
        ``None`` if the client was not asked to train.
    sends
        What each array of its replies is; empty if that is not known.
    public
        An ``.npz`` with the examples ``x`` whose predictions it sends, in their order; ``None`` if it sends none.
    """

    node: Text
    client: Text = ""
    trained: SeenExamples = field(default_factory=SeenExamples.none)
    evaluated: SeenExamples = field(default_factory=SeenExamples.none)
    model: WitnessedModel | None = None
    training: WitnessedTraining | None = None
    mods: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
    run: Text = ""
    private: Annotated[Mapping[str, Any], AsJson(dict[Text, Text | Count | Finite], dict)] = field(default_factory=dict)
    asked: AskedToTrain | None = None
    sends: Annotated[tuple[SentArray, ...], Field(max_length=MOST_ARRAYS)] = ()
    public: Annotated[Path | None, AsJson(Text, _write_name, _read_name), OPTIONAL] = None


def counts_of(labels: Mapping[Any, float | None]) -> dict[int, int]:
    """Count the classes among labels, in ascending order; labels that are not whole numbers are not classes."""
    counts: dict[int, int] = {}
    for label in labels.values():
        # Python counts no number of floating type as whole, not even 1.0: what a regression predicts is no class.
        if isinstance(label, int) and label >= 0:
            counts[label] = counts.get(label, 0) + 1
    return dict(sorted(counts.items()))
