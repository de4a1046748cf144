"""What arrays with a row for each example tell of these, where it is known which row is which example.

Two questions of vertical and split learning have an answer in closed form. Are a party's columns a linear image of the
embedding that it sends? And does the norm of the gradient that it is sent tell the labels?
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from fedattack.audit.significance import Significance, significance_of
from fedattack.threats.plaintext.contents import KnownExamples
from fedattack.threats.plaintext.row_norms import FEWEST_ROWS, has_rows

DRAWS = 2_000
"""Exchanges of rows by which a link is tested."""

# Rows that are compared; of more, some are drawn. Columns of an embedding, and known rows for each of these.
_MOST_ROWS, _MOST_WIDTH, _ROWS_EACH = 400, 64, 2

Floats = NDArray[np.float64]
Order = NDArray[np.int64]


class Link(Protocol):
    """How arrays of one client and what is true of its examples hang together."""

    rows: int

    def score(self, order: Order) -> float:
        """Return how well the arrays tell what is true of the examples in this order (rows,) of them: 0 … 1."""


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The examples of one client in the order of its table.

    Attributes
    ----------
    total
        How many rows the table has, up to the last that is known.
    rows, x, y
        (known,), (known, columns), (known,): the rows that are known, ascending, their examples and labels.
    """

    total: int
    rows: Order
    x: Floats
    y: Floats


def list_own_rows(examples: KnownExamples, client: str) -> OwnRows | None:
    """Return the examples of a client in the order of its table; ``None`` where that is not known."""
    if examples.rows is None:
        return None
    own = np.flatnonzero((examples.owners == client) & (examples.rows >= 0))
    if len(own) < FEWEST_ROWS:
        return None
    own = own[np.argsort(examples.rows[own])]
    rows = examples.rows[own]
    return OwnRows(int(rows[-1]) + 1, rows, examples.x[own].astype(np.float64), examples.labels[own])


class ColumnsLink:
    """Columns of examples, as linear images of embeddings: fitted on one half of the rows, tried on the other.

    The attacker is assumed to know the examples of the first half. By least squares each column is made of an
    embedding's numbers and a constant. The score is the mean over columns of R² on the other half, 0 where it is below.
    Of several embeddings that of which the score is largest counts.

    Parameters
    ----------
    embeddings
        Each (rows, width).
    x
        (rows, columns).
    """

    def __init__(self, embeddings: Sequence[Floats], x: Floats, rng: np.random.Generator) -> None:
        self.rows = len(x)
        split = rng.permutation(len(x))
        half = len(x) // 2
        self._known, self._tried = split[:half], split[half:]
        self._x = x
        self._images: list[Floats] = []
        for embedding in embeddings:
            table = np.column_stack([np.ones(len(embedding)), embedding])
            # One matrix makes the other half's columns of the known half's.
            self._images.append(table[self._tried] @ np.linalg.pinv(table[self._known]))

    @staticmethod
    def fits(width: int, rows: int) -> bool:
        """Say whether there are enough rows for so many numbers of an embedding."""
        return width <= _MOST_WIDTH and rows // 2 >= _ROWS_EACH * (width + 1)

    def score(self, order: Order) -> float:
        """Return the mean R² of the columns of the examples in this order."""
        return max(float(r2.mean()) for r2 in self._list_r2(order))

    def _list_r2(self, order: Order) -> Iterator[Floats]:
        x = self._x[order]
        known, tried = x[self._known], x[self._tried]
        variation = ((tried - tried.mean(axis=0)) ** 2).sum(axis=0)
        varies = variation > 0
        for image in self._images:
            rest = ((tried - image @ known) ** 2).sum(axis=0)
            r2 = np.zeros(x.shape[1])
            r2[varies] = np.clip(1 - rest[varies] / variation[varies], 0, 1)
            yield r2


class NormsLink:
    """Labels of two classes, as told by norms of gradients: the area under the ROC curve, forward or backward.

    Nobody tells which class is which. Of several arrays that which tells most counts.

    Parameters
    ----------
    norms
        Each (rows,).
    y
        (rows,): labels of two classes.
    """

    def __init__(self, norms: Sequence[Floats], y: Floats) -> None:
        self.rows = len(y)
        self._ranks = np.stack([rankdata(of_array) for of_array in norms])
        self._is_last = y == y.max()

    def score(self, order: Order) -> float:
        """Return the area under the curve for labels in this order, 0.5 or more."""
        is_last = self._is_last[order]
        count = int(is_last.sum())
        pairs = count * (len(is_last) - count)
        # Mann and Whitney: how often a row of the one class is longer than one of the other.
        area = (self._ranks[:, is_last].sum(axis=1) - count * (count + 1) / 2) / pairs
        return float(np.maximum(area, 1 - area).max())


@dataclass(frozen=True)
class Linked:
    """Links of all clients of all runs: their mean score, and what exchanges of rows give."""

    links: Sequence[Sequence[Link]]
    scores: Sequence[Floats] = field(init=False)

    def __post_init__(self) -> None:
        scores = []
        for of_run in self.links:
            scores.append(np.array([link.score(np.arange(link.rows)) for link in of_run]))
        object.__setattr__(self, "scores", scores)

    @property
    def value(self) -> float:
        """The mean over clients."""
        return float(np.concatenate(self.scores).mean())

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Return the mean score where the examples of each client change their rows, (count,)."""
        links = [link for of_run in self.links for link in of_run]
        drawn = np.zeros(count)
        for index in range(count):
            drawn[index] = np.mean([link.score(rng.permutation(link.rows)) for link in links])
        return drawn

    def test(self, rng: np.random.Generator) -> Significance:
        """Say how likely so high a score is by accident."""
        return significance_of(self.value, self.draw, rng, "the rows of each client exchanged", draws=DRAWS)


def link_columns(own: OwnRows, arrays: Sequence[NDArray[np.float32]], rng: np.random.Generator) -> ColumnsLink | None:
    """Link a client's columns to arrays that it sends with a row for each example; ``None`` where none has."""
    embeddings = []
    chosen = _choose_rows(own, rng)
    for array in arrays:
        fits = has_rows(array) and len(array) == own.total and ColumnsLink.fits(array.shape[1], len(chosen))
        if fits and np.isfinite(array).all():
            embeddings.append(array[own.rows[chosen]].astype(np.float64))
    if not embeddings or not np.ptp(own.x[chosen], axis=0).any():
        return None
    return ColumnsLink(embeddings, own.x[chosen], rng)


def link_norms(own: OwnRows, norms: Sequence[Floats], rng: np.random.Generator) -> NormsLink | None:
    """Link a client's labels to norms of rows that it is sent; ``None`` without both classes or rows."""
    chosen = _choose_rows(own, rng)
    y = own.y[chosen]
    fitting = [of_array[own.rows[chosen]] for of_array in norms if len(of_array) == own.total]
    if not fitting or not np.isfinite(y).all() or len(np.unique(y)) != 2:
        return None
    return NormsLink(fitting, y)


def _choose_rows(own: OwnRows, rng: np.random.Generator) -> Order:
    """Return indices of the rows that are compared, ascending."""
    count = min(_MOST_ROWS, len(own.rows))
    return np.sort(rng.choice(len(own.rows), count, replace=False))
