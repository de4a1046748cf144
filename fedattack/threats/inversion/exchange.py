"""Could the likeness of reconstructions be an accident? They are held against other examples than the true ones.

A reply may tell nothing beyond labels, and how many examples there are. Then the true examples are no more like its
reconstructions than others of the same labels, on which nobody trained. So both are put together, label by label, and
exchanged. What stands in the place of a client's examples is paired with the reconstructions as the true examples are.
An example of several rounds is exchanged once for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

from fedattack.audit.significance import count_of, exchange_within
from fedattack.threats.inversion.images import Images, peak_ratio, similarities

OTHERS = 500
"""Examples that nobody trained on, at most, in an exchange; but :data:`OF_A_LABEL` of each label if there are."""

OF_A_LABEL = 39
"""With one target p can then reach 1/40, which is enough beside other findings."""

# Pairings, and values in a table, that are worth their time.
_PAIRINGS, _VALUES = 150_000, 4_000_000

# Exchanges that are made in any case.
_FEWEST = 999

# Exchanges that are drawn together.
_AT_ONCE = 1_000

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class AttackedClient:
    """A client's examples, and what was made of its replies.

    Attributes
    ----------
    examples
        (k, …): in 0 … 1, or cells.
    labels
        (k,): whole numbers; all 0 where there are no classes.
    replies
        For each reply (m, …): the reconstructions.
    """

    examples: Numbers
    labels: Integers
    replies: Sequence[Numbers]


@dataclass(frozen=True)
class Exchanged:
    """What the reconstructions of one run come to in exchanges; row 0 is the truth.

    Attributes
    ----------
    ratio, similarity
        (1 + exchanges, examples): peak signal-to-noise ratio in dB and structural similarity, median over an example's
        rounds. The latter is None for what is no image.
    recognised
        (1 + exchanges, examples): in which share of its rounds an example is recognised.
    arrangements
        How many exchanges differ.
    """

    ratio: NDArray[np.float32]
    similarity: NDArray[np.float32] | None
    recognised: NDArray[np.float32]
    arrangements: float


def exchange(
    attacked: Sequence[AttackedClient],
    others: tuple[Images, Integers],
    recognised: float,
    rng: np.random.Generator,
    draws: int,
) -> Exchanged:
    """Exchange the true examples of a run with others of their labels, and measure each time.

    Parameters
    ----------
    attacked
        The clients.
    others
        Examples (n, …) in 0 … 1 that nobody trained on, and their labels (n,).
    recognised
        The peak signal-to-noise ratio in dB from which an example counts as recognised.
    rng
        Which others take part, and who is exchanged with whom.
    draws
        Exchanges; fewer of them where there is much to pair.
    """
    pool, labels, indices = _draw_exchanges(attacked, others, rng, draws)
    ratios, similar, found = [], [], []
    start = 0
    for client in attacked:
        own = indices[:, start : start + len(client.labels)]
        rounds = [_measure_pairs(images, pool, labels, own) for images in client.replies]
        ratio = np.stack([of_round["ratio"] for of_round in rounds])
        ratios.append(np.median(ratio, axis=0))
        found.append((ratio >= recognised).mean(axis=0))
        if pool.ndim == 4:
            similar.append(np.median([of_round["similarity"] for of_round in rounds], axis=0))
        start += len(client.labels)
    return Exchanged(
        _join(ratios),
        _join(similar) if similar else None,
        _join(found),
        _arrangements([client.labels for client in attacked], labels),
    )


@dataclass(frozen=True)
class ExchangedCells:
    """What the cells of one run's rows come to in exchanges; row 0 is the truth.

    Attributes
    ----------
    cells, rows
        (1 + exchanges, examples): the share of an example's cells that is right, and in which share of its rounds all
        are.
    arrangements
        How many exchanges differ.
    """

    cells: NDArray[np.float32]
    rows: NDArray[np.float32]
    arrangements: float


def exchange_cells(
    attacked: Sequence[AttackedClient],
    others: tuple[Floats, Integers],
    tolerance: Floats,
    rng: np.random.Generator,
    draws: int,
) -> ExchangedCells:
    """Exchange the true rows of a table with others of their labels, and count the right cells each time.

    Parameters
    ----------
    attacked, others
        As for :func:`exchange`; examples and reconstructions are cells (n, columns).
    tolerance
        (columns,): how far a cell may be off.
    rng, draws
        As for :func:`exchange`.
    """
    pool, labels, indices = _draw_exchanges(attacked, others, rng, draws)
    shares, whole = [], []
    start = 0
    for client in attacked:
        own = indices[:, start : start + len(client.labels)]
        rounds = []
        for found in client.replies:
            right = right_cells(pool, found, tolerance).mean(axis=2)
            # Nothing stands for an example where there are fewer reconstructions.
            given = np.concatenate([right, np.zeros((len(pool), 1))], axis=1)
            rounds.append(given[own, _pair(-right, own)])
        shares.append(np.mean(rounds, axis=0))
        whole.append(np.mean(np.array(rounds) == 1, axis=0))
        start += len(client.labels)
    arrangements = _arrangements([client.labels for client in attacked], labels)
    return ExchangedCells(_join(shares), _join(whole), arrangements)


def right_cells(rows: Numbers, found: Numbers, tolerance: Floats) -> NDArray[np.bool_]:
    """Return which cells (n, m, columns) of rows (n, columns) each of m reconstructions has right."""
    return np.asarray(np.abs(rows[:, np.newaxis] - found) <= tolerance)


def arrangements_of(of_clients: Sequence[Integers], of_others: Integers) -> float:
    """Count the exchanges of :func:`exchange` that differ.

    Parameters
    ----------
    of_clients
        For each client the labels (k,) of its examples.
    of_others
        (n,): labels of the others.
    """
    of_truth = np.concatenate(of_clients)
    chosen = _chosen(of_truth, of_others, np.random.default_rng(0))
    return _arrangements(of_clients, np.concatenate([of_truth, of_others[chosen]]))


def _join(of_clients: Sequence[Floats]) -> NDArray[np.float32]:
    return np.concatenate(of_clients, axis=1).astype(np.float32)


def _draw_exchanges(
    attacked: Sequence[AttackedClient], others: tuple[Numbers, Integers], rng: np.random.Generator, draws: int
) -> tuple[Numbers, Integers, Integers]:
    """Draw exchanges of the true examples with others of their labels.

    Returns
    -------
    pool, labels, indices
        The true examples and chosen others (n, …), their labels (n,), and what of the pool stands for each true example
        in each exchange, (1 + draws, examples); first these themselves.
    """
    of_truth = np.concatenate([client.labels for client in attacked])
    chosen = _chosen(of_truth, others[1], rng)
    pool = np.concatenate([*(client.examples for client in attacked), others[0][chosen]])
    labels = np.concatenate([of_truth, others[1][chosen]])
    return pool, labels, _draw_indices(labels, len(of_truth), rng, _worth(attacked, draws))


def _chosen(of_truth: Integers, of_others: Integers, rng: np.random.Generator) -> Integers:
    """Choose others of the labels that are asked about; all where there are few."""
    asked = np.unique(of_truth)
    most = max(OF_A_LABEL, OTHERS // len(asked))
    chosen = []
    for label in asked:
        alike = np.flatnonzero(of_others == label)
        chosen.append(rng.permutation(alike)[:most])
    return np.concatenate(chosen)


def _worth(attacked: Sequence[AttackedClient], draws: int) -> int:
    """Say how many exchanges are worth their time."""
    pairings, examples, largest = 0.0, 0, 0
    for client in attacked:
        size = len(client.labels)
        examples += size
        pairings += len(client.replies) * (1 + (size / 16) ** 2)
        largest = max(largest, size * max(map(len, client.replies)))
    most = min(_PAIRINGS / pairings, _VALUES / max(examples, largest))
    return min(draws, max(_FEWEST, int(most)))


def _draw_indices(labels: Integers, examples: int, rng: np.random.Generator, draws: int) -> Integers:
    """Draw what of the pool stands for each true example, (1 + draws, examples); first these themselves."""
    indices = [np.arange(examples)[np.newaxis]]
    for start in range(0, draws, _AT_ONCE):
        exchanged = exchange_within(labels, rng, min(_AT_ONCE, draws - start))
        indices.append(exchanged[:, :examples])
    return np.concatenate(indices)


def _measure_pairs(images: Images, pool: Images, labels: Integers, indices: Integers) -> dict[str, Floats]:
    """Pair reconstructions with what stands for the true examples, and measure them.

    Parameters
    ----------
    images
        (m, …): reconstructions of one reply.
    pool, labels
        (n, …), (n,)
    indices
        (exchanges, k): in the pool.

    Returns
    -------
    dict of ndarray
        (exchanges, k): ``ratio`` in dB and, of images, ``similarity``.
    """
    asked = np.flatnonzero(np.isin(labels, labels[indices[0]]))
    where = np.zeros(len(pool), dtype=np.int64)
    where[asked] = np.arange(len(asked))
    # Grey stands in where there are fewer reconstructions than examples.
    given = np.concatenate([images, np.full_like(images[:1], 0.5)])
    errors = _errors(given, pool[asked])
    at = where[indices]
    paired = _pair(np.ascontiguousarray(errors[:-1].T), at)
    measures = {"ratio": peak_ratio(errors[paired, at])}
    if pool.ndim == 4:
        measures["similarity"] = similarities(given, pool[asked])[paired, at]
    return measures


def _errors(one: Images, other: Images) -> Floats:
    """Return the mean squared error (n, m) of each of n examples with each of m others."""
    a, b = one.reshape(len(one), -1).astype(np.float64), other.reshape(len(other), -1).astype(np.float64)
    squares = np.square(a).mean(axis=1)[:, np.newaxis] + np.square(b).mean(axis=1)
    return np.asarray(np.maximum(squares - 2 / a.shape[1] * (a @ b.T), 0))


def _pair(cost: Floats, at: Integers) -> Integers:
    """Return which reconstruction stands for each example (exchanges, k), −1 for none, at the least cost.

    Parameters
    ----------
    cost
        (n, m): of each example with each reconstruction.
    at
        (exchanges, k): which examples.
    """
    paired = np.full(at.shape, -1, dtype=np.int64)
    for stand_in, indices in zip(paired, at, strict=True):
        rows, columns = linear_sum_assignment(cost[indices])
        stand_in[rows] = columns
    return paired


def _arrangements(of_clients: Sequence[Integers], labels: Integers) -> float:
    """Count the exchanges that differ; within a client the order does not count."""
    logarithm = 0.0
    asked = np.concatenate(of_clients)
    for label in np.unique(asked):
        size, taken = int((labels == label).sum()), int((asked == label).sum())
        # So many of a label are chosen in order; within a client the order makes no difference.
        logarithm += float(gammaln(size + 1) - gammaln(size - taken + 1))
        for of_client in of_clients:
            logarithm -= float(gammaln((of_client == label).sum() + 1))
    return count_of(logarithm)
