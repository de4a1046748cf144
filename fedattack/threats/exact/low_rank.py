"""Take a batch apart: the gradient of a first ReLU layer is a product of few columns, zero in half their rows.

The gradient of weights and bias is D [X 1]: D has a column for each example, with a zero for each neuron that the
example leaves below zero. A singular value decomposition gives D up to a small square matrix: D = L Q. A column of Q is
orthogonal to the rows of L in which its example is zero. So as many neurons as there are other examples, if all of them
are below zero for one example, give its column (Dimitrov et al. 2024, SPEAR).

There such neurons are drawn at random, and hit with a chance of 2 to the power of minus the batch. Here they are drawn
among those that a mixture of the batch leaves below zero: rows of the gradient are such mixtures, and examples of one
kind of data are alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MOST = 64
"""Examples of an update up to which it is taken apart."""

# Sets of neurons that are drawn at once.
_AT_ONCE = 2_000

# How far the smallest singular value that counts is above the largest that does not.
_GAP = 10.0

# How far beyond its noise, and beyond rounding, a row may be from zero; and rows whose noise reaches further are left
# out. All are sines of angles.
_BEYOND_NOISE, _ROUNDING, _COARSEST = 20.0, 1e-9, 1e-2

# Part of the neurons whose signs an example must explain after several steps, in which signs change; after one, all.
_EXPLAINS_STEPS = 0.9

# Columns that are searched for: of more hardly any set of drawn rows leaves one alone.
_MOST_COLUMNS = 32

# How nearly columns may depend on each other: the ratio of largest and smallest singular value.
_WORST = 1e8

# How near to zero rounding may decide, as a part of the largest output.
_BORDER = 1e-4

# Sums of columns that are refused, after which the search ends.
_MOST_REFUSED = 2_000

# Draws after which the search ends if half of the columns are not found.
_PATIENCE = 20_000

# How far the signs of neurons must be from zero for some example, in a linear program.
_MARGIN = 1e-6

# Neurons in which two examples differ, at least, if they can be told apart.
_DIFFER = 3

# The second smallest eigenvalue of rows that are orthogonal to one direction alone.
_LONE = 1e-6

# An example's column leaves so many rows beyond the drawn ones at zero, at least.
_BEYOND = 3


@dataclass(frozen=True)
class TakenApart:
    """What became of an update."""

    examples: Floats  # (n, inputs): the examples; none where it could not be taken apart.
    errors: Floats  # (n,): how far an entry may be off.
    why: str = ""  # Why there are none; empty if there are some.


@dataclass(frozen=True)
class _TellingNeurons:
    """The neurons of an update that tell something."""

    directions: Floats  # (rows, rank): what their rows of L point to, of length 1.
    limits: Floats  # (rows,): how near to zero a row is that is zero but for noise.
    moved: Floats  # (rows, inputs + 1): how they moved, and where they began.
    start: Floats
    # (rows, rank): what leaves the neurons for the directions that span the batch; ``None`` after several steps.
    outputs: Floats | None

    def find_zeros(self, columns: Floats) -> Flags:
        """Say in which rows columns (n, rank) are zero, (n, rows)."""
        return np.asarray(np.abs(columns @ self.directions.T) <= self.limits)

    def is_half(self, zero: Flags) -> bool:
        """Say whether any example of the batch's span leaves these neurons (rows,) below zero, and the others above.

        With few outputs, sums of columns may be zero in more rows than a column is; but such rows are no half.
        After several steps signs have changed, and nothing is said.
        """
        if self.outputs is None:
            return True
        sides = np.where(zero, 1.0, -1.0)[:, None] * self.outputs
        bound = np.column_stack([sides, np.ones(len(sides))])
        rank = self.outputs.shape[1]
        found = linprog(
            np.append(np.zeros(rank), -1.0),
            A_ub=bound,
            b_ub=np.zeros(len(sides)),
            bounds=[(-1, 1)] * rank + [(-1, 1)],
        )
        return bool(found.status == 0 and -found.fun > _MARGIN)

    def put_in(self, examples: Floats) -> Floats:
        """Return what leaves the neurons for examples (n, inputs), (n, rows)."""
        return np.asarray(examples @ self.start[:, :-1].T + self.start[:, -1])


def refuse(inputs: int, why: str) -> TakenApart:
    """Say why an update was not taken apart."""
    return TakenApart(np.zeros((0, inputs)), np.zeros(0), why)


def take_apart(
    moved: Floats, start: Floats, rounding: Floats, batch: int, *, draws: int, steps: int, rng: np.random.Generator
) -> TakenApart:
    """Find the examples of an update of a first ReLU layer.

    Parameters
    ----------
    moved
        (neurons, inputs + 1): how weights and bias moved, or their gradient.
    start
        The weights and the bias that the client began with.
    rounding
        (neurons,): the rounding of an entry.
    batch
        How many examples it has. Those of them that pull at nothing are not looked for, as where a server fishes.
    draws
        Sets of neurons that are drawn.
    steps
        Steps that the client took: signs of neurons change on the way.
    """
    inputs = moved.shape[1] - 1
    if batch > MOST:
        return refuse(inputs, f"it is of more than {MOST} examples, the most that are separated")
    alive = np.abs(moved).max(axis=1) > 0
    moved, start, rounding = moved[alive], start[alive], rounding[alive]
    if batch >= min(moved.shape):
        return refuse(
            inputs,
            f"{batch} examples are too many: expected fewer than {min(moved.shape)}, of its inputs and live neurons",
        )
    left, values, right = np.linalg.svd(moved, full_matrices=False)
    floor = float(np.sqrt(np.square(rounding).mean())) * sum(np.sqrt(moved.shape))
    rank = _find_rank(values, batch, floor)
    if not rank:
        return refuse(
            inputs, f"its gradient has a rank above {batch}: it contains noise, weight decay or another protection"
        )
    if rank > _MOST_COLUMNS:
        return refuse(inputs, f"{rank} columns are more than the {_MOST_COLUMNS} that draws find")
    basis = left[:, :rank]
    lengths = np.linalg.norm(basis, axis=1)
    # Noise of this size in each entry has such singular values.
    noise = float(values[rank] / sum(np.sqrt(moved.shape)) / values[rank - 1])
    limits = np.maximum(_BEYOND_NOISE * noise / lengths, _ROUNDING)
    tells = limits < _COARSEST
    if tells.sum() < 2 * rank:
        return refuse(inputs, "rounding or noise hides which neurons an example leaves below zero")
    outputs = None
    if steps == 1:
        outputs = start[tells] @ right[:rank].T
        outputs /= np.linalg.norm(outputs, axis=1, keepdims=True) + 1e-300
    rows = _TellingNeurons(basis[tells] / lengths[tells, None], limits[tells], moved[tells], start[tells], outputs)
    weighted_right = np.diag(values[:rank]) @ right[:rank]
    best = refuse(inputs, f"no example explains which neurons are below zero, after up to {draws:,} draws")
    columns = 0
    for found in _find_columns(rows, rank, draws, rng):
        columns = len(found)
        if columns == rank:
            result = _solve(found, rows, weighted_right, noise, steps)
            if len(result.examples) > len(best.examples):
                best = result
            if len(result.examples) == rank:
                break
    if columns < rank:
        return refuse(inputs, f"{columns} of {rank} columns were found in up to {draws:,} draws")
    return best


def _find_rank(values: Floats, batch: int, floor: float) -> int:
    """Return how many singular values are above noise, at most a batch; 0 where they do not stand out."""
    floor = max(float(values[batch]), float(values[0]) * 1e-12, floor)
    rank = int((values[:batch] > _GAP * floor).sum())
    return rank if rank and values[rank] <= values[rank - 1] / _GAP else 0


def _find_columns(rows: _TellingNeurons, rank: int, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Draw directions that are orthogonal to more rows than were drawn; yield the sparsest (found, rank) so far."""
    if rank == 1:
        yield np.ones((1, 1))
        return
    found = np.zeros((0, rank))
    counts = np.zeros(0, dtype=np.int64)
    refused = np.zeros((0, rank))
    independent: list[int] = []
    for number, drawn in enumerate(_draw_columns(rows, rank, draws, rng), start=1):
        zero = rows.find_zeros(drawn)
        good = zero.sum(axis=1) >= rank - 1 + _BEYOND
        drawn, zero = drawn[good], zero[good]
        values, vectors = _find_orthogonal(zero, rows.directions)
        lone = _are_lone(zero, rows.directions, values, vectors)
        # The direction that is nearest to orthogonal to all of its rows is better than the drawn one.
        drawn = vectors[lone][:, :, 0]
        drawn, zero = _keep_new(drawn, rows.find_zeros(drawn), np.concatenate([found, refused]))
        fits = np.array([rows.is_half(pattern) for pattern in zero], dtype=np.bool_)
        refused = np.concatenate([refused, drawn[~fits]])
        if fits.any():
            found = np.concatenate([found, drawn[fits]])
            counts = np.concatenate([counts, zero[fits].sum(axis=1)])
            order = np.argsort(-counts, kind="stable")
            found, counts = found[order], counts[order]
            independent = _choose_independent(found, rank)
            yield found[independent]
        if len(refused) > _MOST_REFUSED or (number * _AT_ONCE >= _PATIENCE and 2 * len(independent) < rank):
            return


def _find_orthogonal(zero: Flags, directions: Floats) -> tuple[Floats, Floats]:
    """Return for sets of rows how much is in each direction (n, rank), ascending, and these (n, rank, rank)."""
    spreads = np.einsum("nm,mi,mj->nij", zero.astype(np.float64), directions, directions, optimize=True)
    values, vectors = np.linalg.eigh(spreads)
    return values, vectors


def _are_lone(zero: Flags, directions: Floats, values: Floats, vectors: Floats) -> Flags:
    """Say of which sets of rows (n, rows) all but any one leave one direction alone that is orthogonal to them.

    Rows that two examples both leave at zero are orthogonal to all sums of their columns. One more row then seems to
    choose a direction.
    """
    inverse = np.where(values > _LONE, 1 / np.maximum(values, _LONE), 0.0)
    # How much a row adds of its own: 1 if no other one holds what it does.
    shares = np.square(np.einsum("mi,nij->nmj", directions, vectors, optimize=True)) @ inverse[..., None]
    own = np.where(zero, shares[..., 0], 0.0).max(axis=1, initial=0.0)
    return np.asarray((values[:, 1] > _LONE) & (own < 1 - _LONE))


def _draw_columns(rows: _TellingNeurons, rank: int, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Draw sets of neurons below zero, and yield the directions (n, rank) that are orthogonal to them."""
    biases = rows.moved[:, -1:]
    mixtures = rows.moved[:, :-1] / np.where(biases == 0, np.inf, biases)
    outputs = rows.put_in(mixtures)
    chances = np.maximum(-outputs / (np.abs(outputs).max(axis=1, keepdims=True) + 1e-300), 0) + 1e-9
    for first in range(0, draws, _AT_ONCE):
        count = min(_AT_ONCE, draws - first)
        # The last tenth is drawn alike: mixtures may be unlike an example.
        weights = chances[rng.integers(len(chances), size=count)]
        weights[: count // 10] = 1.0
        keys = np.log(rng.random(weights.shape)) / weights
        chosen = np.argpartition(-keys, rank - 2, axis=1)[:, : rank - 1]
        system = np.concatenate([rows.directions[chosen], rng.normal(size=(count, 1, rank))], axis=1)
        wanted = np.zeros((count, rank, 1))
        wanted[:, -1] = 1.0
        # Rows that depend on each other have no such direction, or several.
        is_whole = np.abs(np.linalg.det(system)) > 1e-200
        if is_whole.any():
            drawn = np.linalg.solve(system[is_whole], wanted[is_whole])[..., 0]
            drawn = drawn[np.isfinite(drawn).all(axis=1)]
            yield drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def _keep_new(drawn: Floats, zero: Flags, known: Floats) -> tuple[Floats, Flags]:
    """Keep of directions that are the same the one with most zeros, and none that is known."""
    kept: list[int] = []
    for row in np.argsort(-zero.sum(axis=1), kind="stable").tolist():
        others = np.concatenate([known, drawn[kept]])
        if not len(others) or np.abs(others @ drawn[row]).max() < 1 - 1e-6:
            kept.append(row)
    return drawn[kept], zero[kept]


def _choose_independent(found: Floats, rank: int) -> list[int]:
    """Choose directions, in their order, that are no sums of those before."""
    chosen: list[int] = []
    basis = np.zeros((0, found.shape[1]))
    for row, direction in enumerate(found):
        rest = direction - basis.T @ (basis @ direction)
        length = np.linalg.norm(rest)
        if length > 1e-3:
            basis = np.vstack([basis, rest / length])
            chosen.append(row)
        if len(chosen) == rank:
            break
    return chosen


def _solve(columns: Floats, rows: _TellingNeurons, right: Floats, noise: float, steps: int) -> TakenApart:
    """Find the examples that belong to the columns, and look whether they explain which neurons are below zero."""
    better = columns.copy()
    if len(columns) > 1:
        # All rows of zeros together tell a column better than the drawn ones.
        for place, own in enumerate(rows.find_zeros(columns)):
            better[place] = np.linalg.svd(rows.directions[own])[2][-1]
    if np.linalg.cond(better) > _WORST:
        return refuse(right.shape[1] - 1, "its columns cannot be told apart")
    zero = rows.find_zeros(better)
    scaled = np.linalg.solve(better.T, right)
    moves_bias = np.abs(scaled[:, -1]) > 0
    examples = scaled[:, :-1] / np.where(moves_bias, scaled[:, -1], 1.0)[:, None]
    outputs = rows.put_in(examples)
    # Rounding decides whether a neuron at zero is below.
    is_sure = np.abs(outputs) > _BORDER * np.abs(outputs).max(axis=1, keepdims=True)
    explained = ((outputs > 0) != zero) | ~is_sure
    fits = moves_bias & (explained.mean(axis=1) >= (1.0 if steps == 1 else _EXPLAINS_STEPS))
    # Sums of two examples that leave the same neurons below zero explain as much as these.
    differ = (zero[:, None] != zero[None]).sum(axis=2) + _DIFFER * np.eye(len(zero), dtype=np.int64)
    fits &= (differ >= _DIFFER).all(axis=1)
    spread = np.linalg.cond(better) * noise * np.abs(examples).max(axis=1)
    return TakenApart(examples[fits], spread[fits])
