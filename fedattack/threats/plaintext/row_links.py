"""What arrays with a row for each example tell of these, where it is known which row is which example.

Two questions of vertical and split learning have an answer in closed form. Are a party's columns a linear image of the
embedding that it sends? And does the norm of the gradient that it is sent tell the labels?

Both go by *passes*: rows of a table, each once, with what passed for them. A message that holds the whole table is one.
Mini-batches are put together: by the numbers that name their rows; else as if they were consecutive, which is assumed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from fedattack.audit.significance import Significance, significance_of
from fedattack.threats.plaintext.contents import KnownExamples
from fedattack.threats.plaintext.row_batches import NO_ID, RowBatches

DRAWS = 2_000
"""Exchanges of rows by which a link is tested."""

FEWEST_ROWS = 8
"""Rows of a client that are known, at least."""

# Rows that are compared; of more, some are drawn. Columns of an embedding, and known rows for each of these.
_MOST_ROWS, _MOST_WIDTH, _ROWS_EACH = 400, 64, 2

# Passes of one name that are looked at, spread over the run.
_MOST_PASSES = 6

Floats = NDArray[np.float64]
Order = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class RowPass:
    """Rows of a table (rows,), each once, and what passed for them, (rows, width)."""

    rows: Order
    values: Floats


@dataclass(frozen=True, eq=False)
class Passes:
    """What passed under one name, row by row.

    ``is_assumed`` says that no number names the rows of mini-batches, so that these were taken as consecutive.
    """

    name: str
    passes: Sequence[RowPass]
    is_assumed: bool


class Link(Protocol):
    """How arrays of one client and what is true of its examples hang together.

    ``assumed`` names the mini-batches whose rows are assumed to be consecutive, if there are no others.
    """

    rows: int
    assumed: str

    def score(self, order: Order) -> float:
        """Return how well the arrays tell what is true of the examples in this order (rows,) of them: 0 … 1."""


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The examples of one client in the order of its table.

    Attributes
    ----------
    total
        How many rows the table has; up to the last that is known, where not all are.
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
    is_own = examples.owners == client
    own = np.flatnonzero(is_own & (examples.rows >= 0))
    if len(own) < FEWEST_ROWS:
        return None
    own = own[np.argsort(examples.rows[own])]
    rows = examples.rows[own]
    total = int(rows[-1]) + 1
    if client in examples.whole:
        # Equal rows at the end are among them, although it is not known which is which.
        total = max(total, int(is_own.sum()))
    return OwnRows(total, rows, examples.x[own].astype(np.float64), examples.labels[own])


def find_passes(batches: RowBatches, total: int) -> Passes | None:
    """Put rows of a table of so many rows together, pass by pass; ``None`` where nobody can say which row is which."""
    form = batches.form
    name = f"{form.name} ({form.type})"
    whole = [values for _, values, _ in batches.list_kept() if len(values) == total]
    found = [RowPass(np.arange(total), values.astype(np.float64)) for values in spread_over(whole)]
    named = _find_named_rows(batches.ids, total)
    if named is not None:
        found += spread_over(_gather(named, batches))
    if found:
        return Passes(name, found, False)
    # Ordinary replies to training bring other tables, such as centres.
    if form.type == "train" and not form.is_sent:
        return None
    for starts in _list_starts(batches, total):
        # Less than a batch may go on with the first rows at the end of a table.
        consecutive = [(starts[index] + np.arange(form.sizes[index])) % total for index in form.kept]
        passes = _gather(np.concatenate(consecutive), batches)
        # Less than a batch may be dropped at the end of a table.
        found += spread_over([one for one in passes if len(one.rows) > total - max(form.sizes)])
    return Passes(name, found, True) if found else None


def _find_named_rows(ids: Order, total: int) -> Order | None:
    """Return the rows that numbers name, as indices or by their order; ``None`` where they name none."""
    if not len(ids) or (ids == NO_ID).any():
        return None
    different = np.unique(ids)
    if len(different) == total:
        return np.searchsorted(different, ids)
    return ids if different[-1] < total else None


def _gather(all_rows: Order, batches: RowBatches) -> list[RowPass]:
    """Put messages together whose rows are known; a pass ends where most rows of a message are there already."""
    passes: list[RowPass] = []
    seen: set[int] = set()
    rows: list[Order] = []
    values: list[Floats] = []

    def end() -> None:
        if rows:
            passes.append(RowPass(np.concatenate(rows), np.concatenate(values)))
        seen.clear()
        rows.clear()
        values.clear()

    start = 0
    for _, block, _ in batches.list_kept():
        of_message = all_rows[start : start + len(block)]
        start += len(block)
        is_new = np.array([row not in seen for row in of_message.tolist()])
        if 2 * is_new.sum() < len(is_new):
            end()
            is_new[:] = True
        seen.update(of_message.tolist())
        rows.append(of_message[is_new])
        values.append(block[is_new].astype(np.float64))
    end()
    return passes


def _list_starts(batches: RowBatches, total: int) -> Iterator[Order]:
    """Yield where the rows of each message may start, (messages,), if they are consecutive.

    They follow the message before. Where the table ends, its last rows are dropped or are a smaller batch, or the
    batch goes on with the first rows. Or a number in the message says where its rows start, or which batch it is.
    """
    sizes = np.array(batches.form.sizes)
    # Nothing shows that a larger one is a mini-batch of this table.
    if 2 * sizes.max() > total:
        return
    following, start = [], 0
    for size in sizes.tolist():
        # What is left of a table at its end may be dropped.
        if start + size > total:
            start = 0
        following.append(start)
        start = (start + size) % total
    orders = [np.array(following), (np.cumsum(sizes) - sizes) % total]
    for marks in batches.marks.T:
        for starts in (marks, (marks - marks.min()) * sizes.max()):
            if (starts + sizes <= total).all():
                orders.append(starts)
    for index, starts in enumerate(orders):
        if not any(np.array_equal(starts, before) for before in orders[:index]):
            yield starts


def spread_over(things: Sequence[T]) -> list[T]:
    """Return some of many, from the first to the last."""
    chosen = np.linspace(0, len(things) - 1, min(_MOST_PASSES, len(things))).astype(int)
    return [things[index] for index in chosen.tolist()]


class ColumnsLink:
    """Columns of examples, as linear images of embeddings: fitted on one half of the rows, tried on the other.

    The attacker is assumed to know the examples of the first half. By least squares each column is made of an
    embedding's numbers and a constant. The score is the mean over columns of R² on the other half, 0 where it is below.
    The pass with the largest score counts.

    Parameters
    ----------
    passes
        Those of the embeddings; their rows are indices of ``x``. Those with too few rows are left out.
    x
        (rows, columns).
    assumed
        See :class:`Link`.
    """

    def __init__(self, passes: Sequence[RowPass], x: Floats, rng: np.random.Generator, assumed: str = "") -> None:
        self.rows = len(x)
        self.assumed = assumed
        self._x = x
        split = rng.permutation(len(x))
        is_known = np.zeros(len(x), np.bool_)
        is_known[split[: len(x) // 2]] = True
        # What makes the other half's columns of the known half's, and which rows these are.
        self._images: list[tuple[Floats, Order, Order]] = []
        for one in passes:
            width = one.values.shape[1]
            known = is_known[one.rows]
            is_fit = _ROWS_EACH * (width + 1) <= known.sum() < len(known) - 1
            if width > _MOST_WIDTH or not is_fit or not np.isfinite(one.values).all():
                continue
            table = np.column_stack([np.ones(len(one.values)), one.values])
            self._images.append((table[~known] @ np.linalg.pinv(table[known]), one.rows[known], one.rows[~known]))

    @property
    def is_linked(self) -> bool:
        """Whether a pass has enough rows for the numbers of its embeddings."""
        return bool(self._images)

    def score(self, order: Order) -> float:
        """Return the mean R² of the columns of the examples in this order."""
        return max(float(r2.mean()) for r2 in self._list_r2(order))

    def _list_r2(self, order: Order) -> Iterator[Floats]:
        x = self._x[order]
        for image, known, tried in self._images:
            variation = ((x[tried] - x[tried].mean(axis=0)) ** 2).sum(axis=0)
            varies = variation > 0
            rest = ((x[tried] - image @ x[known]) ** 2).sum(axis=0)
            r2 = np.zeros(x.shape[1])
            r2[varies] = np.clip(1 - rest[varies] / variation[varies], 0, 1)
            yield r2


class NormsLink:
    """Labels of two classes, as told by norms of gradients: the area under the ROC curve, forward or backward.

    Nobody tells which class is which. The pass that tells most counts.

    Parameters
    ----------
    passes
        Those of the norms, of width 1; their rows are indices of ``y``.
    y
        (rows,): labels of two classes.
    assumed
        See :class:`Link`.
    """

    def __init__(self, passes: Sequence[RowPass], y: Floats, assumed: str = "") -> None:
        self.rows = len(y)
        self.assumed = assumed
        self._ranks = [(one.rows, rankdata(one.values[:, 0])) for one in passes]
        self._is_last = y == y.max()

    def score(self, order: Order) -> float:
        """Return the area under the curve for labels in this order, 0.5 or more."""
        best = 0.5
        for rows, ranks in self._ranks:
            is_last = self._is_last[order[rows]]
            count = int(is_last.sum())
            pairs = count * (len(is_last) - count)
            if not pairs:
                continue
            # Mann and Whitney: how often a row of the one class is longer than one of the other.
            area = float((ranks[is_last].sum() - count * (count + 1) / 2) / pairs)
            best = max(best, area, 1 - area)
        return best


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
    def assumed(self) -> str:
        """The mini-batches whose rows are assumed to be consecutive, if any client has no others."""
        return ", ".join(dict.fromkeys(link.assumed for of_run in self.links for link in of_run if link.assumed))

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


def link_columns(own: OwnRows, sent: Sequence[RowBatches], rng: np.random.Generator) -> ColumnsLink | None:
    """Link a client's columns to what it sends with rows for examples; ``None`` where nothing can be linked."""
    chosen = _choose_rows(own, rng)
    passes, assumed = _align(sent, own, chosen)
    if not passes or not np.ptp(own.x[chosen], axis=0).any():
        return None
    link = ColumnsLink(passes, own.x[chosen], rng, assumed)
    return link if link.is_linked else None


def link_norms(own: OwnRows, received: Sequence[RowBatches], rng: np.random.Generator) -> NormsLink | None:
    """Link a client's labels to norms of rows that it is sent; ``None`` without both classes or rows."""
    chosen = _choose_rows(own, rng)
    y = own.y[chosen]
    if not np.isfinite(y).all() or len(np.unique(y)) != 2:
        return None
    passes, assumed = _align(received, own, chosen)
    return NormsLink(passes, y, assumed) if passes else None


def _align(sent: Sequence[RowBatches], own: OwnRows, chosen: Order) -> tuple[list[RowPass], str]:
    """Return passes with indices of the chosen rows, and the names of those whose rows are assumed.

    What is known goes before what is assumed.
    """
    found = [passes for passes in (find_passes(batches, own.total) for batches in sent) if passes is not None]
    named = [passes for passes in found if not passes.is_assumed]
    rows = own.rows[chosen]
    aligned = []
    for one in (one for passes in named or found for one in passes.passes):
        index = np.minimum(np.searchsorted(rows, one.rows), len(rows) - 1)
        is_chosen = rows[index] == one.rows
        if is_chosen.sum() >= FEWEST_ROWS:
            aligned.append(RowPass(index[is_chosen], one.values[is_chosen]))
    assumed = ""
    if not named:
        assumed = ", ".join(dict.fromkeys(passes.name for passes in found))
    return aligned, assumed


def _choose_rows(own: OwnRows, rng: np.random.Generator) -> Order:
    """Return indices of the rows that are compared, ascending."""
    count = min(_MOST_ROWS, len(own.rows))
    return np.sort(rng.choice(len(own.rows), count, replace=False))
