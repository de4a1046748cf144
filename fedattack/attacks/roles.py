"""What the arrays of a model are to its examples, found by asking: no layer and no name is looked at.

Whoever has the gradients of a few single examples sees what each array does:

- a *table*: some rows move, and which ones depends on the example and not on the weights;
- *positions*: as many rows move as the example is long, from the first one on;
- a *linear layer*: the gradient is the outer product of two vectors, of which one is the gradient of the bias. The
  other one is what enters the layer. If that is the example itself, scaled or not, it is the *first layer*;
- a *head*: the gradient tells the label, by its sign or by the row that moves;
- a *projection*: its gradients lie in one span with those of other arrays, as those of attention do;
- a *normalisation*: two vectors of one shape that are the bias of no matrix.

A ReLU also lets only some rows of a layer move. But which ones depends on the weights, too. So the same examples are
asked about under two models. What an array is must be the same under both; else that is said.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedattack.base.errors import NeedsError, short
from fedattack.base.stored import OPTIONAL, Name, Number
from fedattack.base.structured import LABELS, MASK, SEPARATOR, leaves_of

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

TABLE, POSITIONS, FIRST, LINEAR, HEAD, PROJECTION, NORM, OTHER = (
    "table",
    "table of positions",
    "first layer",
    "linear layer",
    "head",
    "projection",
    "normalisation",
    "other",
)
"""What an array may be to the examples."""

BY_GRADIENTS = "by the gradients of single examples"
"""How it begins what is said of arrays whose roles are known."""

FEWEST = 10
"""Rows of the smallest table: of fewer, hardly any client leaves one out."""

BY_ROW = "the row that moves is the label of the example"
"""The evidence of a head that tells the label by the row that moves, and not by a sign."""

BY_SOFTMAX = "the gradient of each example is negative only at the label, and adds up to 0, as a softmax's does"
"""The evidence of a head whose loss is the cross-entropy of a softmax."""

BY_APART = "of the rows that an example does not name, the gradient is of another sign at the label alone"
"""The evidence of a head that shares a table."""

FEWEST_EXAMPLES = 3
"""Examples of which gradients are needed: of fewer, nothing shows what depends on the example."""

# How far a gradient may be from an outer product, as a share of its length.
_ROUNDING = 1e-3

# How far what enters a layer may be from the example, as a share of the span of the examples' numbers.
_NEAR = 2e-3

# A gradient whose length is a smaller share of the longest one says nothing.
_NOTHING = 1e-6

# Most examples leave more rows of a table alone than this share.
_ALONE = 0.5

# Examples of which spans are compared, and numbers by which directions are drawn together.
_COMPARED, _SKETCH = 3, 48

# How far a direction may be from a span in which it lies.
_APART = 0.02


@dataclass(frozen=True)
class Probe:
    """The gradients of examples at one model.

    Attributes
    ----------
    gradients
        By name (examples, *shape); an array that has none, or was too large to keep, is not there.
    touched
        By name (examples, rows): which rows of an array of two axes or more have a gradient at all; also of those that
        were too large.
    missing
        By name why an array has no gradients.
    weights
        By name (*shape): the model, in the order in which its arrays are sent; empty where it does not matter.
    """

    gradients: Mapping[str, NDArray[Any]]
    touched: Mapping[str, Flags] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class ArrayRole:
    """What an array is to the examples.

    Attributes
    ----------
    name, shape
        The array.
    kind
        Such as :data:`TABLE`.
    evidence
        What shows it, or why nothing does, for people.
    bias
        The array that is the layer's bias; empty where it has none.
    is_transposed
        Whether a neuron of the layer is a column of the array.
    is_tied
        Whether an output layer shares a table: the array is then a table, and a head as well where it tells labels.
    ids
        The place in examples whose ids are the rows of a table; empty where nothing shows one.
    is_softmax
        Whether the gradients of a head's outputs add up to 0, as those of a softmax's cross-entropy do.
    is_relu
        Whether a neuron below zero passes nothing on.
    scale, shift
        What enters a first layer is the example's numbers times ``scale`` plus ``shift``: one number for all, or one
        for each.
    columns
        Which of the example's numbers enter a first layer, in their order; empty for all.
    form
        Of which form of model the array is, where clients send models of several: their order in the record.
    """

    name: Name
    shape: tuple[Number, ...]
    kind: Name
    evidence: Name
    bias: Name = ""
    is_transposed: bool = False
    is_tied: bool = False
    ids: Annotated[Name, OPTIONAL] = ""
    is_softmax: bool = False
    is_relu: bool = False
    scale: Annotated[tuple[float, ...], Field(min_length=1)] = (1.0,)
    shift: Annotated[tuple[float, ...], Field(min_length=1)] = (0.0,)
    columns: tuple[Number, ...] = ()
    form: Annotated[Number, OPTIONAL] = 0

    @property
    def is_bias(self) -> bool:
        """Whether it is the bias of a layer."""
        return self.name == self.bias

    @property
    def is_unchanged(self) -> bool:
        """Whether a first layer takes the example as it is."""
        return self.scale == (1.0,) and self.shift == (0.0,) and not self.columns


@dataclass(frozen=True)
class FoundRoles:
    """What arrays are, in their order; its own form on disk."""

    roles: tuple[ArrayRole, ...]


@dataclass(frozen=True)
class _Layer:
    """A matrix whose gradients are outer products."""

    rows: Floats  # (examples, neurons): the gradients of what leaves it.
    entering: Floats  # (examples, inputs): what enters it.
    bias: str  # Empty where it has none: rows and entering are then known up to a factor for each example.
    is_transposed: bool
    seen: Flags  # (examples,): which examples have a gradient.


def find_roles(probes: Sequence[Probe], x: NDArray[Any], y: NDArray[Any]) -> tuple[ArrayRole, ...]:
    """Say what each array is to these examples; an array may be several things, such as first layer and head.

    Parameters
    ----------
    probes
        The gradients of the examples at one model, or better at two, 1 or more.
    x, y
        (n, …), (n,): the examples and their labels.

    Returns
    -------
    tuple of ArrayRole
        In the order of the arrays, one or more for each.
    """
    names: list[str] = []
    for probe in probes:
        for known in (probe.weights, probe.gradients, probe.touched, probe.missing):
            names += [name for name in known if name not in names]
    shapes = _list_shapes(probes, names)
    if len(y) < FEWEST_EXAMPLES:
        why = f"{len(y)} examples are too few to see what depends on the example; expected {FEWEST_EXAMPLES} or more"
        return tuple(ArrayRole(name, shapes[name], OTHER, why) for name in names)
    found = [_Finder(probe, x, y).find(names, shapes) for probe in probes]
    tables = {role.name: role for role in _find_tables(probes, shapes, x, y, found)}
    roles: list[ArrayRole] = []
    for name in names:
        if name in tables:
            roles.append(tables[name])
            if tables[name].is_tied and _tells_apart(probes[0].gradients[name], x, y, tables[name].ids):
                roles.append(replace(tables[name], kind=HEAD, evidence=BY_APART))
        else:
            telling = [of_probe[name] for of_probe, probe in zip(found, probes, strict=True) if _tells(probe, name)]
            roles += _agree(telling or [found[0][name]])
    return tuple(roles)


def list_forms(roles: Sequence[ArrayRole]) -> list[tuple[ArrayRole, ...]]:
    """List the roles of each form of model, in the order of the forms."""
    forms = sorted({role.form for role in roles})
    return [tuple(role for role in roles if role.form == form) for form in forms]


def choose_form(roles: Sequence[ArrayRole], arrays: Mapping[str, NDArray[Any]]) -> tuple[ArrayRole, ...]:
    """Return the roles of the form of model that these arrays have; those of the first form where none has it."""
    forms = list_forms(roles)
    for of_form in forms:
        if all(role.name in arrays and np.shape(arrays[role.name]) == role.shape for role in of_form):
            return of_form
    return next(iter(forms), ())


def find_head(roles: Sequence[ArrayRole]) -> ArrayRole | None:
    """Return the weights of the last layer of a softmax; ``None`` where there are none, and the last one of several.

    Where all weights are a table's or unknown, it is the bias of that layer, if there is one.
    """
    heads = [role for role in roles if role.kind == HEAD and role.is_softmax]
    weights = [role for role in heads if not role.is_bias and len(role.shape) == 2]
    owned = {role.bias for role in heads if not role.is_bias}
    biases = [role for role in heads if role.is_bias and role.name not in owned]
    return next(reversed(weights or biases), None)


def find_words(roles: Sequence[ArrayRole]) -> ArrayRole:
    """Return the table of tokens of a model with attention.

    Raises
    ------
    NeedsError
        If no array is a table of the ids in the examples, or none are projections of attention.
    """
    tables = [role for role in roles if role.kind == TABLE and role.ids]
    if not tables:
        raise NeedsError(f"{BY_GRADIENTS}, no array is a table whose rows are the ids in the examples")
    if not any(role.kind == PROJECTION for role in roles):
        raise NeedsError(f"{BY_GRADIENTS}, no arrays are projections of attention")
    return max(tables, key=lambda role: role.shape[0])


def _list_shapes(probes: Sequence[Probe], names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        for probe in probes:
            if name in probe.weights:
                shapes[name] = np.shape(probe.weights[name])
            elif name in probe.gradients:
                shapes[name] = np.shape(probe.gradients[name])[1:]
            elif name in probe.touched:
                shapes[name] = (probe.touched[name].shape[1],)
        shapes.setdefault(name, ())
    return shapes


def _tells(probe: Probe, name: str) -> bool:
    """Say whether half of the examples have a gradient of an array, which a model that is sure of them has not."""
    if name not in probe.gradients:
        return False
    lengths = np.abs(probe.gradients[name]).reshape(len(probe.gradients[name]), -1).max(axis=1)
    return bool(2 * (lengths > _NOTHING * lengths.max(initial=0)).sum() >= len(lengths))


def _agree(found: Sequence[Sequence[ArrayRole]]) -> list[ArrayRole]:
    """Return what an array is under all models; where it differs, that is said."""
    first = found[0]
    kinds = [sorted(role.kind for role in roles) for roles in found]
    if all(other == kinds[0] for other in kinds):
        return [*first]
    said = "; ".join(" and ".join(of_model) for of_model in kinds)
    return [ArrayRole(first[0].name, first[0].shape, OTHER, f"its role changes with the weights: {said}")]


class _Finder:
    """What arrays are at one model."""

    def __init__(self, probe: Probe, x: NDArray[Any], y: NDArray[Any]) -> None:
        self._probe, self._x, self._y = probe, x, y
        self._numbers = _flatten(x)
        self._labels = _read_labels(y)
        self._gradients = {name: np.asarray(array, np.float64) for name, array in probe.gradients.items()}
        self._biases: set[str] = set()

    def find(self, names: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[ArrayRole]]:
        """Return by name what each array is, but for tables."""
        layers: dict[str, _Layer] = {}
        for index, name in enumerate(names):
            # A bias mostly follows the weights; of several vectors that would do, the next one is taken.
            order = [*names[index + 1 :], *names[:index]]
            layer = self._find_layer(name, order)
            if layer is not None:
                layers[name] = layer
                self._biases.add(layer.bias)
        roles: dict[str, list[ArrayRole]] = {}
        for name in names:
            made = [replace(role, name=name, shape=shapes[name]) for role in self._find_of(name, layers.get(name))]
            roles[name] = made
        self._mark_projections(roles)
        self._mark_norms(names, roles)
        for name in self._biases & roles.keys():
            owner = next(weight for weight, layer in layers.items() if layer.bias == name)
            said = f"its gradient times the layer's input is that of {owner}: it is the bias of that layer"
            roles[name] = [replace(roles[owner][-1], name=name, shape=shapes[name], evidence=said)]
        return roles

    def _find_layer(self, name: str, others: Sequence[str]) -> _Layer | None:
        """Take the gradients of a matrix apart into outer products; ``None`` where they are none."""
        if name not in self._gradients:
            return None
        gradient = self._gradients[name]
        if gradient.ndim == 2 and gradient.shape[1] > 1:
            # A vector of weights has one neuron.
            gradient = gradient[:, None, :]
        if gradient.ndim != 3 or not gradient.any():
            return None
        for is_transposed in (False, True):
            oriented = gradient.transpose(0, 2, 1) if is_transposed else gradient
            for other in others:
                bias = self._gradients.get(other)
                if bias is None or bias.size != len(bias) * oriented.shape[1]:
                    continue
                layer = _divide(oriented, bias.reshape(len(bias), -1), other, is_transposed)
                # Any row is an outer product with one number: only the next array may be its bias.
                if layer is not None and (oriented.shape[1] > 1 or other == others[0]):
                    return layer
        if self._gradients[name].ndim == 2:
            return None
        return _split(gradient)

    def _find_of(self, name: str, layer: _Layer | None) -> Iterator[ArrayRole]:
        """Yield what one array is, but for what other arrays show."""

        def role(kind: str, evidence: str, **facts: Any) -> ArrayRole:
            return ArrayRole(name, (), kind, evidence, **facts)

        if layer is None:
            yield self._find_unlayered(name)
            return
        facts = {"bias": layer.bias, "is_transposed": layer.is_transposed}
        found = False
        entering = self._read_entering(layer)
        if entering is not None:
            said, facts_of_first = entering
            found = True
            yield role(FIRST, said, **facts, **facts_of_first, is_relu=self._is_relu(name, layer))
        if told := self._tell_labels(layer):
            found = True
            yield role(HEAD, told, **facts, is_softmax=told == BY_SOFTMAX)
        if not found:
            by_bias = f"the gradient of {layer.bias}" if layer.bias else "a vector"
            yield role(LINEAR, f"its gradient is the outer product of {by_bias} and what enters it", **facts)

    def _find_unlayered(self, name: str) -> ArrayRole:
        """Return what an array is whose gradients are no outer products."""
        if name in self._probe.missing:
            return ArrayRole(name, (), OTHER, self._probe.missing[name])
        if name not in self._gradients:
            why = "no gradients of it are known"
            if name in self._probe.touched:
                why = "its gradients are too large to be compared"
            return ArrayRole(name, (), OTHER, why)
        if not self._gradients[name].any():
            return ArrayRole(name, (), OTHER, "no example moves it")
        if self._tells_by_row(name):
            return ArrayRole(name, (), HEAD, BY_ROW)
        if self._is_bias_of_softmax(name):
            return ArrayRole(name, (), HEAD, BY_SOFTMAX, bias=name, is_softmax=True)
        why = "its gradients are not outer products, and all of its rows move"
        if self._gradients[name].ndim < 3:
            why = "no matrix has gradients that are outer products with it"
        return ArrayRole(name, (), OTHER, why)

    def _read_entering(self, layer: _Layer) -> tuple[str, dict[str, Any]] | None:
        """Say how the example enters a layer with a bias; ``None`` if it does not, or nothing shows it."""
        if not layer.bias or self._numbers is None or layer.seen.sum() < FEWEST_EXAMPLES:
            return None
        entering, numbers = layer.entering[layer.seen], self._numbers[layer.seen]
        outer = f"its gradient is the outer product of the gradient of {layer.bias} and the example"
        span = float(np.ptp(numbers)) or 1.0
        if entering.shape == numbers.shape:
            if np.abs(entering - numbers).max() <= _NEAR * span:
                return f"{outer} itself", {}
            scale, shift = np.polyfit(numbers.reshape(-1), entering.reshape(-1), 1)
            if _is_near(entering, scale * numbers + shift):
                return (
                    f"{outer}, times {scale:.4g} plus {shift:.4g}",
                    {"scale": (float(scale),), "shift": (float(shift),)},
                )
            if (fit := _fit_each(numbers, entering)) is not None:
                return f"{outer}, each number scaled by itself", fit
        columns = _match_columns(numbers, entering)
        if columns is None:
            return None
        return f"{outer}: {len(columns)} of its {numbers.shape[1]} numbers", {"columns": columns}

    def _is_relu(self, name: str, layer: _Layer) -> bool:
        """Say whether neurons below zero have no gradient at all, and some above zero have one."""
        weights = self._probe.weights
        if name not in weights or layer.bias not in weights:
            return False
        weight = np.asarray(weights[name], np.float64)
        if weight.ndim != 2:
            return False
        if layer.is_transposed:
            weight = weight.T
        outputs = layer.entering @ weight.T + np.asarray(weights[layer.bias], np.float64).reshape(-1)
        below = (outputs <= 0) & layer.seen[:, None]
        above = (outputs > 0) & layer.seen[:, None]
        return bool(below.any() and not layer.rows[below].any() and layer.rows[above].any())

    def _tell_labels(self, layer: _Layer) -> str:
        """Say how the gradient of a layer tells the labels; empty if it does not."""
        if self._labels is None:
            return ""
        labels, rows = self._labels[layer.seen], layer.rows[layer.seen]
        # If there is one label alone, any neuron seems to tell it.
        if len(np.unique(labels)) < 2 or len(labels) < FEWEST_EXAMPLES:
            return ""
        neurons = rows.shape[1]
        if neurons == 1 and layer.bias and labels.max() <= 1:
            return "the sign of its gradient is the label" if ((rows[:, 0] < 0) == (labels == 1)).all() else ""
        if labels.max() >= neurons:
            return ""
        if not layer.bias:
            rows = _orient(rows, layer.entering[layer.seen])
        own = np.arange(len(labels)), labels
        others = rows.copy()
        others[own] = np.inf
        if rows[own].all() and (others == 0).sum() == others.size - len(labels):
            return BY_ROW
        lowest = np.abs(rows).max(axis=1) * _ROUNDING
        if (rows[own] >= 0).any() or (others.min(axis=1) < -lowest).any():
            return ""
        if (np.abs(rows.sum(axis=1)) <= lowest).all():
            return BY_SOFTMAX
        return "the gradient of each example is negative only at the label"

    def _tells_by_row(self, name: str) -> bool:
        """Say whether only the row of the label moves, as by a loss of the label's output alone."""
        touched = self._probe.touched.get(name)
        if touched is None or self._labels is None or touched.shape[1] <= self._labels.max():
            return False
        labels = self._labels
        alone = (touched.sum(axis=1) == 1).all() and touched[np.arange(len(labels)), labels].all()
        return bool(alone and len(np.unique(labels)) > 1)

    def _is_bias_of_softmax(self, name: str) -> bool:
        """Say whether a vector that is the bias of no matrix moves as the outputs of a softmax."""
        gradient = self._gradients[name]
        if name in self._biases or gradient.ndim != 2 or gradient.shape[1] < 2:
            return False
        seen = np.asarray(gradient.any(axis=1))
        return self._tell_labels(_Layer(gradient, np.ones((len(gradient), 1)), name, False, seen)) == BY_SOFTMAX

    def _mark_projections(self, roles: dict[str, list[ArrayRole]]) -> None:
        """Mark matrices whose gradients lie in one span with those of another one, of few directions.

        Queries, keys and values may also be the thirds of one matrix.
        """
        spans: dict[tuple[str, bool, int], list[Floats]] = {}
        for name, of_array in roles.items():
            gradient = self._gradients.get(name, np.zeros(0))
            if of_array[0].kind != OTHER or gradient.ndim != 3:
                continue
            for is_transposed, oriented in ((False, gradient), (True, gradient.transpose(0, 2, 1))):
                blocks = [oriented]
                if len(oriented[0]) == 3 * oriented.shape[2]:
                    blocks = np.split(oriented, 3, axis=1)
                for number, block in enumerate(blocks):
                    found = [_span_of(each) for each in block[:_COMPARED]]
                    # A span of all directions says nothing, and of one direction nearly nothing.
                    if all(1 < span.shape[1] < min(block.shape[1:]) for span in found):
                        spans[name, is_transposed, number] = found
        for (name, is_transposed, number), own in spans.items():
            alike = []
            for (other, way, other_number), others in spans.items():
                if (other, other_number) != (name, number) and way == is_transposed and _are_within(own, others):
                    alike.append(other)
            if alike and roles[name][0].kind == OTHER:
                whose = ", ".join(dict.fromkeys(other for other in alike if other != name)) or "its own thirds"
                said = f"its gradients span few directions, together with those of {short(whose, 80)}"
                made = replace(roles[name][0], kind=PROJECTION, evidence=said, is_transposed=is_transposed)
                roles[name] = [made]

    def _mark_norms(self, names: Sequence[str], roles: dict[str, list[ArrayRole]]) -> None:
        """Mark two vectors of one shape, one after the other, of which none is the bias of a matrix."""
        run: list[str] = []
        # An empty name ends the last run.
        for name in [*names, ""]:
            gradient = self._gradients.get(name, np.zeros(0))
            if gradient.ndim == 2 and name not in self._biases and roles[name][0].kind == OTHER:
                run.append(name)
                continue
            # From the end: the first of an odd number is the bias of what comes before.
            for index in range(len(run) - 2, -1, -2):
                self._mark_norm(run[index], run[index + 1], roles)
            run = []

    def _mark_norm(self, name: str, after: str, roles: dict[str, list[ArrayRole]]) -> None:
        one, other = self._gradients[name], self._gradients[after]
        if one.shape != other.shape or one.shape[1] < 2 or not (one.any() and other.any()):
            return
        for own, beside in ((name, after), (after, name)):
            said = f"a vector beside {beside}, of the same shape, and the bias of no matrix{_say_normal(one, other)}"
            roles[own] = [replace(roles[own][0], kind=NORM, evidence=said)]


def _say_normal(scale: Floats, shift: Floats) -> str:
    """Say that gradients of scale and shift have the quotient of mean 0 and variance 1, if they have."""
    usable = (np.abs(shift) > _NOTHING * np.abs(shift).max()).all(axis=1)
    if not usable.any():
        return ""
    quotient = scale[usable] / shift[usable]
    if np.abs(quotient.mean(axis=1)).max() < 0.01 and np.abs(quotient.var(axis=1) - 1).max() < 0.05:
        return "; what it scales has mean 0 and variance 1"
    return ""


def _flatten(x: NDArray[Any]) -> Floats | None:
    """Return the numbers of examples (n, m) that are no masks and no labels; ``None`` without any."""
    parts = []
    for place, leaf in leaves_of(x).items():
        if place.split(SEPARATOR)[-1] not in (MASK, *LABELS) and leaf.dtype.kind in "biuf":
            parts.append(np.asarray(leaf, np.float64).reshape(len(leaf), -1))
    if not parts:
        return None
    numbers = np.concatenate(parts, axis=1)
    return numbers if np.isfinite(numbers).all() else None


def _read_labels(y: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return labels that are classes (n,); ``None`` for others."""
    if y.ndim != 1 or not np.isfinite(y).all() or (y < 0).any() or (y != np.round(y)).any():
        return None
    return np.asarray(y, np.int64)


def _divide(gradient: Floats, bias: Floats, name: str, is_transposed: bool) -> _Layer | None:
    """Divide gradients (n, neurons, inputs) by those of a bias (n, neurons); ``None`` if they are no outer products."""
    squares = np.square(bias).sum(axis=1)
    seen = squares > _NOTHING**2 * squares.max(initial=0)
    # What has no gradient of the bias has none of the weights.
    if not seen.any() or gradient[~seen].any():
        return None
    entering = np.zeros((len(bias), gradient.shape[2]))
    entering[seen] = np.einsum("nk,nkd->nd", bias[seen], gradient[seen]) / squares[seen, None]
    if not _is_outer(gradient, bias, entering):
        return None
    return _Layer(bias, entering, name, is_transposed, seen)


def _split(gradient: Floats) -> _Layer | None:
    """Split gradients (n, neurons, inputs) into outer products, without a bias; ``None`` if they are none."""
    # The longest row shows the one direction that all rows have.
    longest = np.square(gradient).sum(axis=2).argmax(axis=1)
    entering = gradient[np.arange(len(gradient)), longest]
    squares = np.square(entering).sum(axis=1)
    seen = squares > 0
    if not seen.any():
        return None
    rows = np.zeros(gradient.shape[:2])
    rows[seen] = np.einsum("nkd,nd->nk", gradient[seen], entering[seen]) / squares[seen, None]
    if not _is_outer(gradient, rows, entering):
        return None
    return _Layer(rows, entering, "", False, seen)


def _is_outer(gradient: Floats, rows: Floats, entering: Floats) -> bool:
    """Say whether gradients are outer products, down to rounding."""
    apart = np.linalg.norm((gradient - rows[:, :, None] * entering[:, None, :]).reshape(len(gradient), -1), axis=1)
    lengths = np.linalg.norm(gradient.reshape(len(gradient), -1), axis=1)
    return bool((apart <= _ROUNDING * lengths + 1e-12 * lengths.max()).all())


def _orient(rows: Floats, entering: Floats) -> Floats:
    """Choose the signs of rows without a bias: what enters a last layer is mostly above zero, as after a ReLU."""
    signs = np.sign(entering.sum(axis=1, keepdims=True))
    if rows.shape[1] > 2:
        # One row is of another sign than all others: that of the label.
        signs = np.where((rows < 0).sum(axis=1, keepdims=True) > rows.shape[1] / 2, -1.0, 1.0)
    return rows * np.where(signs == 0, 1.0, signs)


def _is_near(entering: Floats, wanted: Floats) -> bool:
    return bool(np.abs(entering - wanted).max() <= _NEAR * (float(np.ptp(entering)) or 1.0))


def _fit_each(numbers: Floats, entering: Floats) -> dict[str, Any] | None:
    """Fit a scale and a shift for each number; ``None`` where they do not fit, or too few examples show it."""
    # Two examples fit any line.
    if len(numbers) < FEWEST_EXAMPLES + 1:
        return None
    means, middles = numbers.mean(axis=0), entering.mean(axis=0)
    variances = np.square(numbers - means).sum(axis=0)
    varies = variances > 0
    # A number that is always the same enters as it is, but for the shift.
    scale = np.ones(numbers.shape[1])
    scale[varies] = ((numbers - means) * (entering - middles)).sum(axis=0)[varies] / variances[varies]
    shift = middles - scale * means
    if not varies.any() or not _is_near(entering, numbers * scale + shift):
        return None
    return {"scale": tuple(scale.tolist()), "shift": tuple(shift.tolist())}


def _match_columns(numbers: Floats, entering: Floats) -> tuple[int, ...] | None:
    """Return which numbers of the examples enter a layer as they are; ``None`` unless all that enters is one of them.

    A column that enters must be like one column alone, or like several that are alike in all examples.
    """
    near = _NEAR * (float(np.ptp(numbers)) or 1.0)
    order = np.argsort(numbers[0], kind="stable")
    columns = []
    for column in entering.T:
        first, last = np.searchsorted(numbers[0, order], (column[0] - near, column[0] + near))
        candidates = order[first:last]
        fits = (np.abs(numbers[:, candidates] - column[:, None]) <= near).all(axis=0)
        if not fits.any():
            return None
        columns.append(int(candidates[fits.argmax()]))
    # A constant is no number of the example.
    if not (np.ptp(numbers[:, columns], axis=0) > near).any():
        return None
    return tuple(columns)


def _span_of(gradient: Floats) -> Floats:
    """Return directions (width, rank) of the rows of a gradient (rows, width), at most :data:`_SKETCH` of them."""
    if len(gradient) > _SKETCH:
        # Random sums of rows have the span of the rows, if that is of fewer directions than there are sums.
        gradient = np.random.default_rng(0).normal(size=(_SKETCH, len(gradient))) @ gradient
    _, values, directions = np.linalg.svd(gradient, full_matrices=False)
    return np.asarray(directions[values > 1e-5 * max(values.max(initial=0), 1e-300)].T)


def _are_within(spans: Sequence[Floats], others: Sequence[Floats]) -> bool:
    """Say whether of each two spans one lies in the other, down to rounding."""
    for one, other in zip(spans, others, strict=True):
        small, large = sorted((one, other), key=lambda span: span.shape[1])
        if len(small) != len(large):
            return False
        if np.linalg.norm(small - large @ (large.T @ small)) > _APART * np.sqrt(small.shape[1]):
            return False
    return True


def _find_tables(
    probes: Sequence[Probe],
    shapes: Mapping[str, tuple[int, ...]],
    x: NDArray[Any],
    y: NDArray[Any],
    found: Sequence[Mapping[str, Sequence[ArrayRole]]],
) -> Iterator[ArrayRole]:
    """Yield tables and positions: some rows move, and which ones depends on the example and not on the weights."""
    for name in probes[0].touched:
        # A bias is a vector, and what tells labels by its rows is no table.
        kinds = {role.kind for of_probe in found for role in of_probe.get(name, ())}
        touched = [probe.touched[name] for probe in probes if name in probe.touched]
        rows = touched[0].shape[1]
        if rows < FEWEST or len(shapes[name]) > 2 or kinds & {HEAD, FIRST}:
            continue
        ids = _name_rows(x, touched[0])
        moved = touched[0].any(axis=1)
        if moved.sum() < FEWEST_EXAMPLES:
            continue
        patterns = np.unique(touched[0][moved], axis=0)
        share = float(np.median(touched[0][moved].mean(axis=1)))
        is_same = len(touched) > 1 and all(_move_alike(touched[0], other) for other in touched[1:])
        if is_same and not ids and _are_positions(touched[0][moved], x):
            evidence = (
                f"rows move one after the other, as many as the example is long: up to {touched[0].sum(axis=1).max()}"
            )
            yield ArrayRole(name, shapes[name], POSITIONS, evidence)
            continue
        if len(patterns) > 1 and (ids or (is_same and share <= _ALONE)):
            said = ids and f"the rows that move are those that examples name in {ids}"
            by_weights = "which rows move depends on the example, and not on the weights"
            evidence = said or f"{by_weights}: {share:.0%} of {rows:,} rows in the middle"
            yield ArrayRole(name, shapes[name], TABLE, evidence, ids=ids)
        elif place := _find_tied(probes[0].gradients.get(name), x, rows):
            evidence = (
                "the rows that examples name and all others, which a shared output moves, move in different directions"
            )
            yield ArrayRole(name, shapes[name], TABLE, evidence, is_tied=True, ids=place)


def _are_positions(touched: Flags, x: NDArray[Any]) -> bool:
    """Say whether rows move one after the other, from the same one on, as many as examples are long."""
    counts, starts = touched.sum(axis=1), touched.argmax(axis=1)
    rows = np.arange(touched.shape[1])
    run = (rows >= starts[:, None]) & (rows < (starts + counts)[:, None])
    if (starts != starts[0]).any() or (touched != run).any() or counts.max() < 2:
        return False
    longest = [ids.shape[1] for _, ids in _list_ids(x) if ids.ndim == 2]
    # If all examples have one length, each has to move that many.
    return any(counts.max() == most or (counts.max() < most and len(np.unique(counts)) > 1) for most in longest)


def _move_alike(touched: Flags, others: Flags) -> bool:
    """Say whether the same rows move under two models, by the examples that have a gradient under both."""
    both = touched.any(axis=1) & others.any(axis=1)
    return bool(both.sum() >= FEWEST_EXAMPLES and (touched[both] == others[both]).all())


def _name_rows(x: NDArray[Any], touched: Flags) -> str:
    """Return the place in examples whose ids are just the rows that move; empty if there is none.

    A row may be left out in all examples, such as that of a padding.
    """
    for place, ids in _list_ids(x):
        if ids.max() >= touched.shape[1]:
            continue
        named = np.zeros_like(touched)
        for row, of_example in enumerate(ids.reshape(len(ids), -1).astype(np.int64)):
            named[row, of_example] = True
        never = ~touched.any(axis=0)
        # At most one row, which stands for nothing, never moves.
        if (named & never).any(axis=0).sum() <= 1 and (touched == (named & ~never)).all():
            return place
    return ""


def _list_ids(x: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the places of examples that hold whole numbers from 0 on, also where these are stored as floats."""
    for place, leaf in leaves_of(x).items():
        if place.split(SEPARATOR)[-1] in (MASK, *LABELS) or leaf.dtype.kind not in "iuf" or not leaf.size:
            continue
        if np.isfinite(leaf).all() and leaf.min() >= 0 and (leaf == np.round(leaf)).all():
            yield place, leaf


def _find_tied(gradient: NDArray[Any] | None, x: NDArray[Any], rows: int) -> str:
    """Return the place in examples whose rows stick out of the span of the others, as where a layer shares a table.

    It is empty if there is none. All rows move by what enters the shared output, in few directions; those that are
    looked up move aside as well.
    """
    if gradient is None or gradient.ndim != 3:
        return ""
    for place, ids in _list_ids(x):
        if ids.max() >= rows:
            continue
        apart = []
        for moved, own in zip(gradient.astype(np.float64)[:_COMPARED], ids, strict=False):
            named = np.unique(own).astype(np.int64)
            span = _span_of(np.delete(moved, named, axis=0))
            if span.shape[1] >= moved.shape[1]:
                return ""
            aside = moved[named] - moved[named] @ span @ span.T
            apart.append(np.linalg.norm(aside) > _ROUNDING * np.linalg.norm(moved[named]))
        if apart and all(apart):
            return place
    return ""


def _tells_apart(gradient: NDArray[Any], x: NDArray[Any], y: NDArray[Any], place: str) -> bool:
    """Say whether a table that an output layer shares tells labels, by the rows that an example does not name."""
    labels = _read_labels(y)
    if labels is None or labels.max() >= gradient.shape[1]:
        return False
    told = set()
    seen = 0
    for moved, own, label in zip(gradient.astype(np.float64), leaves_of(x)[place], labels, strict=True):
        named = np.unique(own).astype(np.int64)
        # A label that is looked up, too, moves both ways.
        if label in named:
            continue
        others = np.delete(moved, [*named, label], axis=0)
        # All rows go the way of what enters the output.
        way = others[np.square(others).sum(axis=1).argmax()]
        along = others @ way
        lowest = _ROUNDING * along.max()
        if moved[label] @ way >= -lowest or along.min() < -lowest:
            return False
        told.add(label)
        seen += 1
    return seen >= FEWEST_EXAMPLES and len(told) > 1
