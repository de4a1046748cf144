"""What may stand in what clients send: their examples, and the statistics of these."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from fedattack.attacks.accidents import count_repeats
from fedattack.threats.plaintext.arrays import digest_of

Floats = NDArray[np.float64]

EXAMPLES = "examples"
"""The kind of items that are single examples."""

MEANS_BY_CLASS = "means by class"
"""The kind of items that are means of a client's examples of one class."""

NONE = -1
"""Stands for a holder of examples that no client holds."""

# Classes by which statistics are made, at most.
_MOST_CLASSES = 100

# How often one client may hold a row of another one, because single rows were entered twice.
_FEW_TWICE = 0.002

# Numbers of all statistics of a kind, at most.
_MOST_NUMBERS = 2**22

# Numbers of rows that are worked on at once, and columns.
_AT_ONCE, _COLUMNS = 2**20, 16

# By name, what rows (n, columns) are summed up by, and of how many rows at least.
_STATISTICS: Mapping[str, tuple[Callable[[Floats], Floats], int]] = {
    "means": (lambda x: x.mean(axis=0), 1),
    "sums": (lambda x: x.sum(axis=0), 2),
    "sums of squares": (lambda x: (x**2).sum(axis=0), 2),
    "variances": (lambda x: x.var(axis=0), 2),
    "variances (n - 1)": (lambda x: x.var(axis=0, ddof=1), 2),
    "standard deviations": (lambda x: x.std(axis=0), 2),
    "standard deviations (n - 1)": (lambda x: x.std(axis=0, ddof=1), 2),
    "least values": (lambda x: x.min(axis=0), 2),
    "largest values": (lambda x: x.max(axis=0), 2),
    # The median of two rows is their mean.
    "medians": (lambda x: np.median(x, axis=0), 3),
    "lower quartiles": (lambda x: np.quantile(x, 0.25, axis=0), 3),
    "upper quartiles": (lambda x: np.quantile(x, 0.75, axis=0), 3),
}


def contents_of(rows: NDArray[np.floating]) -> NDArray[np.void]:
    """Return what equal rows (n, columns) alone have in common, (n,)."""
    digests: list[bytes] = []
    for block in _list_blocks(*rows.shape):
        # As float32, in which examples are known. Adding 0 makes −0 to 0.
        single = np.ascontiguousarray(rows[block], dtype=np.float32) + np.float32(0)
        digests += map(digest_of, single.view(f"V{single.shape[1] * 4}").ravel().tolist())
    return np.array(digests, dtype="V16")


def _list_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of so many rows that little memory is taken at once."""
    size = max(1, _AT_ONCE // max(1, columns))
    for start in range(0, rows, size):
        yield slice(start, start + size)


@dataclass(frozen=True)
class Spread:
    """How the numbers of rows spread in each column: all (columns,)."""

    means: Floats
    deviations: Floats
    least: Floats
    spans: Floats

    @classmethod
    def of(cls, rows: NDArray[np.floating]) -> "Spread":
        """Find it, in double precision, of rows (n, columns): one or more."""
        parts = []
        for columns in np.array_split(np.arange(rows.shape[1]), max(1, rows.shape[1] // _COLUMNS)):
            x = rows[:, columns].astype(np.float64)
            parts.append((x.mean(axis=0), x.std(axis=0), x.min(axis=0), np.ptp(x, axis=0)))
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


@dataclass(frozen=True, eq=False)
class Known:
    """Examples whose holders are known.

    Attributes
    ----------
    x, y
        (n, columns), (n,): an example once for each copy that each client has of it, and its label; NaN for none.
    holders
        (n,): index of the client; :data:`NONE` for nobody.
    whole
        (clients,): whether all examples of a client are among these.
    shape
        Of an example.
    """

    x: NDArray[np.floating]
    y: Floats
    holders: NDArray[np.int64]
    whole: NDArray[np.bool_]
    shape: tuple[int, ...]

    @cached_property
    def firsts(self) -> NDArray[np.int64]:
        """(distinct,): the rows without further copies of one holder's example with one label, ascending."""
        single = (self.x, self.y.astype(np.float32), self.holders.astype(np.float32))
        _, first = np.unique(contents_of(np.column_stack(single)), return_index=True)
        return np.sort(first)

    @cached_property
    def distinct(self) -> "Known":
        """The same without further copies."""
        if len(self.firsts) == len(self.x):
            return self
        rows = self.firsts
        return replace(self, x=self.x[rows], y=self.y[rows], holders=self.holders[rows])

    @cached_property
    def _contents(self) -> frozenset[bytes]:
        """What :func:`contents_of` returns of the examples."""
        return frozenset(contents_of(self.x).tolist())

    @cached_property
    def singles(self) -> frozenset[int]:
        """The rows that are the only example of their class which their holder has, of holders that are known whole."""
        singles: list[int] = []
        for client in np.flatnonzero(self.whole).tolist():
            rows = self.rows_of(client)
            of_class = [rows[self.y[rows] == label] for label in self.classes]
            singles += [int(some[0]) for some in of_class if len(some) == 1]
        return frozenset(singles)

    @cached_property
    def classes(self) -> list[int]:
        """The labels that are whole numbers, ascending; none of a regression, or of too many classes."""
        labels = np.unique(self.y[np.isfinite(self.y)])
        if len(labels) > _MOST_CLASSES or not (labels == np.rint(labels)).all():
            return []
        return list(map(int, labels))

    def rows_of(self, client: int) -> NDArray[np.int64]:
        """Return which rows are a client's."""
        return np.flatnonzero(self.holders == client)

    def list_statistics(self) -> Iterator["Items"]:
        """Yield the statistics of all examples of a client, and of those of one class, by their kinds."""
        wholes = np.flatnonzero(self.whole).tolist()
        groups: list[tuple[str, list[tuple[int, NDArray[np.int64]]]]] = [("", []), (" by class", [])]
        for client in wholes:
            rows = self.rows_of(client)
            if len(rows):
                groups[0][1].append((client, rows))
            for label in self.classes:
                of_class = rows[self.y[rows] == label]
                if len(of_class):
                    groups[1][1].append((client, of_class))
        for suffix, parts in groups:
            if not parts or len(parts) * self.x.shape[1] > _MOST_NUMBERS:
                continue
            for name, computed in self._compute_statistics(parts).items():
                values = np.stack([of_client for _, of_client in computed])
                # One that is the same in all columns, such as of a class of equal examples, says nothing. One that is
                # an example, such as the mean of a single one, is counted among these.
                is_example = [contents in self._contents for contents in contents_of(values).tolist()]
                told = (np.ptp(values, axis=1) > 0) & ~np.array(is_example)
                if told.any():
                    yield Items(name + suffix, values[told], np.array([client for client, _ in computed])[told])

    def _compute_statistics(
        self, parts: Sequence[tuple[int, NDArray[np.int64]]]
    ) -> dict[str, list[tuple[int, Floats]]]:
        """Return by name, of those ``parts`` that have enough rows, the client and the statistic (columns,)."""
        computed: dict[str, list[tuple[int, Floats]]] = {}
        for name, (compute, least) in _STATISTICS.items():
            for client, rows in parts:
                if len(rows) >= least:
                    computed.setdefault(name, []).append((client, compute(self.x[rows].astype(np.float64))))
        return computed


@dataclass(frozen=True, eq=False)
class Items:
    """Rows of numbers of one kind that may stand in what clients send.

    Attributes
    ----------
    kind
        What they are.
    rows
        (n, columns): what their numbers are made of.
    holders
        (n,): index of the client of whose examples they are; :data:`NONE` for nobody.
    change
        Makes the numbers of some rows, each by itself; ``None`` where these are the numbers.
    """

    kind: str
    rows: NDArray[np.floating]
    holders: NDArray[np.int64]
    change: Callable[[Floats], Floats] | None = None

    def numbers(self, which: slice | NDArray[np.int64]) -> Floats:
        """Return the numbers of some items, (some, columns)."""
        rows = self.rows[which].astype(np.float64)
        return rows if self.change is None else self.change(rows)

    @cached_property
    def scale(self) -> Floats:
        """(columns,): the largest size of a number, in which distances are counted."""
        largest = np.zeros(self.rows.shape[1])
        for block in _list_blocks(*self.rows.shape):
            largest = np.maximum(largest, np.abs(self.numbers(block)).max(axis=0))
        return np.where(largest > 0, largest, 1.0)

    @cached_property
    def tree(self) -> cKDTree:
        """Finds the nearest rows: that of a tiny bound is quick whatever the number of columns."""
        scaled = np.empty(self.rows.shape)
        for block in _list_blocks(*self.rows.shape):
            scaled[block] = self.numbers(block) / self.scale
        # A tree of other leaves takes longer to build than all questions to it.
        return cKDTree(scaled, compact_nodes=False, balanced_tree=False)

    @cached_property
    def repeated(self) -> float:
        """How often one client holds a row of another one, as where a table has few values; 0 if hardly ever."""
        blocks = [contents_of(self.numbers(block)) for block in _list_blocks(*self.rows.shape)]
        _, which = np.unique(np.concatenate(blocks), return_inverse=True)
        held = np.unique(self.holders[self.holders != NONE])
        repeats, pairs = count_repeats(which.ravel(), self.holders, len(held))
        share = repeats / max(1, pairs)
        return share if share > _FEW_TWICE else 0.0
