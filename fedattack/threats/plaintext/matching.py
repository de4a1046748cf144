"""Hold arrays that clients send against what they may be made of: which items stand there, and how sure that is."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.accidents import bits_of_matches
from fedattack.threats.plaintext.arrays import Sent, rows_of
from fedattack.threats.plaintext.counting import Tally
from fedattack.threats.plaintext.items import EXAMPLES, Items, Known, Spread

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

TOLERANCE = 2e-6
"""How near rows are that are equal but for rounding, as a part of the largest number of each column."""

# Statistics are summed up in another order, and in another precision.
_OF_STATISTICS = 2e-5

# Rows that are this near, and not nearer, were perhaps rounded: they count where no accident comes as near.
_LOOSE = 2e-3
_SURE = 60.0

# Bits below which an example that is met says nothing, such as one of zeros.
_FEWEST_BITS = 8.0

# Numbers of the shortest row that is compared whatever its scale.
_FEWEST_COLUMNS = 8

# By how much farther the nearest row of anybody else must be, and rows that may be as near as the nearest.
_FARTHER, _NEIGHBOURS = 10, 16

# Matches that are told from accidents, and known rows by which.
_MOST_TOLD, _MOST_BESIDE = 4_096, 20_000

# Rows that are asked about at once.
_AT_ONCE = 2**15

# Columns and rows by which it is found which columns an array has; and arrays of one name that are asked.
_MOST_COLUMNS, _SOME_ROWS, _MOST_ARRAYS = 256, 64, 64

# Share of an array's numbers in a column that stand in one column of examples.
_IN_COLUMN = 0.9


@dataclass
class Matches:
    """Which items of one kind stand in what one client sends under one name.

    Attributes
    ----------
    sender, name, type, kind
        Index of the client, name and type of message, and kind of the items.
    tried
        How many pairs of a row and an item of the sender's own could have met by accident.
    items
        By the holder of items, those that stand there.
    bits
        By item of the sender's own, how many bits tell it from an accident, but for how many were tried.
    alone
        The own items to which nobody else's comes as near.
    how
        In what form items stand there: empty for as they are, ``scaled``, ``in part`` or ``in any order``.
    """

    sender: int
    name: str
    type: str
    kind: str
    tried: int = 0
    items: dict[int, set[int]] = field(default_factory=dict)
    bits: dict[int, float] = field(default_factory=dict)
    alone: set[int] = field(default_factory=set)
    how: set[str] = field(default_factory=set)

    @property
    def own(self) -> set[int]:
        """The sender's own items that stand there."""
        return self.items.get(self.sender, set())

    def count_surplus(self) -> dict[int, float]:
        """Return, by the own items that nobody else has, by how many bits they are surer than the best accident."""
        tried = math.log2(max(self.tried, 1))
        return {item: self.bits[item] - tried for item in sorted(self.alone)}


@dataclass(frozen=True)
class _Near:
    """Pairs of a row and an item that are near: indices of both, and how far apart they are."""

    rows: Rows
    items: Rows
    distances: Floats


class Matcher:
    """Finds examples, statistics and counts in arrays.

    Parameters
    ----------
    known
        Examples whose holders are known.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        # Copies of an example are found once.
        self._distinct = known.distinct
        self._examples = Items(EXAMPLES, self._distinct.x, self._distinct.holders)
        self._statistics = list(known.list_statistics())
        self._tally = Tally(known)
        self._standard: Items | None = None
        self._cuts: dict[tuple[int, ...], Items] = {}
        self._sorted: dict[str, Items] = {}
        # By the client; that of all by ``None``.
        self._spreads: dict[int | None, Spread] = {}

    def count_items(self, kind: str, client: int) -> int:
        """Return how many items of a kind a client has."""
        for items in (self._examples, *self._statistics):
            if items.kind == kind:
                return int((items.holders == client).sum())
        return int(self.known.whole[client])

    def look(self, sender: int, sent: Sequence[Sent]) -> list[Matches]:
        """Return, by kind, which items stand in arrays of one client under one name; nothing of those that do not."""
        name, type_ = sent[0].name, sent[0].type
        ways = [way for array in sent for way in rows_of(array.values, self.known.shape)]
        precision = max(array.precision for array in sent)
        found = [self._find_examples(Matches(sender, name, type_, EXAMPLES), sent, ways, precision)]
        rows = _distinct(ways)
        for items in self._statistics if len(rows) else ():
            matches = Matches(sender, name, type_, items.kind)
            self._add(matches, items, rows, max(_OF_STATISTICS, 4 * precision))
            found.append(matches)
        found += self._find_in_any_order([matches for matches in found if not matches.items], sent, precision)
        for kind, holders, bits in self._tally.find(sender, sent):
            matches = Matches(sender, name, type_, kind, tried=len(sent), items={holder: {0} for holder in holders})
            if sender in holders:
                matches.bits[0] = bits
                # Alike for several clients, it tells nothing of one.
                matches.alone.update({0} if len(holders) == 1 else ())
            found.append(matches)
        return [matches for matches in found if matches.items]

    def _find_in_any_order(
        self, missing: Sequence[Matches], sent: Sequence[Sent], precision: float
    ) -> Iterator[Matches]:
        """Yield items whose numbers, sorted, are those of an ascending vector: in which order columns were is open.

        Only kinds of items are sought that are ``missing`` in the order that was sent.
        """
        ways = [array.values[None].astype(np.float64) for array in sent if _is_ascending(array, self.known.x.shape[1])]
        rows = _distinct(ways)
        for matches in missing if len(rows) else ():
            (items,) = (items for items in (self._examples, *self._statistics) if items.kind == matches.kind)
            if items.kind not in self._sorted:
                self._sorted[items.kind] = replace(items, change=_sort_each)
            tolerance = max(TOLERANCE if items.kind == EXAMPLES else _OF_STATISTICS, 4 * precision)
            beside = Matches(matches.sender, matches.name, matches.type, matches.kind)
            self._add(beside, self._sorted[items.kind], rows, tolerance, "in any order")
            yield beside

    def _find_examples(
        self, matches: Matches, sent: Sequence[Sent], ways: Sequence[Floats], precision: float
    ) -> Matches:
        """Find single examples in arrays, as they are, scaled, or in part."""
        tolerance = max(TOLERANCE, 4 * precision)
        rows = _distinct(ways)
        if len(rows):
            self._add(matches, self._examples, rows, tolerance)
            for scaled in self._undo_scaling(matches.sender, rows, ways):
                self._add(matches, self._examples, scaled, tolerance, "scaled")
        if len(rows) and rows.shape[1] >= _FEWEST_COLUMNS:
            if self._standard is None:
                self._standard = replace(self._examples, change=standardise)
            # Pixels of another range: each row has its own scale and offset, which takes two of its numbers.
            standard = standardise(rows)
            for sign in (1.0, -1.0):
                self._add(matches, self._standard, sign * standard, tolerance, "scaled", free=2)
        for array in sent[:_MOST_ARRAYS]:
            if array.values.ndim == 2 and array.values.shape[1] != self.known.x.shape[1]:
                self._find_columns(matches, array.values.astype(np.float64), tolerance)
        return matches

    def _undo_scaling(self, sender: int, rows: Floats, ways: Sequence[Floats]) -> Iterator[Floats]:
        """Yield rows as they were before somebody standardised them, or brought them to 0 … 1."""
        own = self._find_spread(sender)
        for spread in (own, self._find_spread(None)):
            if spread is not None:
                yield rows * spread.deviations + spread.means
                yield rows * spread.spans + spread.least
        # All rows of a client, standardised by whatever: their own mean and deviation undo it.
        for way in ways[:_MOST_ARRAYS]:
            if own is not None and len(way) > 3:
                deviation = way.std(axis=0)
                standard = (way - way.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
                yield standard * own.deviations + own.means

    def _find_spread(self, client: int | None) -> Spread | None:
        """Say how the examples of a client, or of all, spread; ``None`` where there are none."""
        if client not in self._spreads:
            x = self.known.x
            if client is not None:
                x = x[self.known.rows_of(client)]
            if not len(x):
                return None
            self._spreads[client] = Spread.of(x)
        return self._spreads[client]

    def _find_columns(self, matches: Matches, values: Floats, tolerance: float) -> None:
        """Find examples of which an array holds some columns alone, perhaps with their labels."""
        own = self._distinct.rows_of(matches.sender)
        values = values[np.isfinite(values).all(axis=1)]
        table = [self._distinct.x]
        if np.isfinite(self._distinct.y).all():
            table.append(self._distinct.y[:, None])
        count = sum(part.shape[1] for part in table)
        if not len(own) or not len(values) or max(values.shape[1], count) > _MOST_COLUMNS:
            return
        pairs = _pair_columns(values, np.column_stack([part[own].astype(np.float64) for part in table]), tolerance)
        if len(pairs) < 2:
            return
        columns = tuple(column for _, column in pairs)
        if columns not in self._cuts:
            of_table = self._distinct.x.shape[1]
            cut = [self._distinct.x[:, column] if column < of_table else self._distinct.y for column in columns]
            self._cuts[columns] = Items(EXAMPLES, np.column_stack(cut), self._distinct.holders)
        rows = _distinct([values[:, [index for index, _ in pairs]]])
        # Which columns these are was chosen after they were seen, each among all columns of examples.
        choices = (1 + count) ** len(pairs)
        self._add(matches, self._cuts[columns], rows, tolerance, "in part", choices=choices)

    def _add(
        self,
        matches: Matches,
        items: Items,
        rows: Floats,
        tolerance: float,
        how: str = "",
        *,
        free: int = 0,
        choices: int = 1,
    ) -> None:
        """Add the items that rows (n, columns) are.

        Parameters
        ----------
        free
            Numbers of each row that were chosen so that it is near.
        choices
            Among how many ways to read the array this one was chosen.
        """
        matches.tried += len(rows) * max(1, int((items.holders == matches.sender).sum())) * choices
        near = _seek(items, rows)
        is_own = items.holders[near.items] == matches.sender
        bits = np.zeros(len(near.items))
        told = np.flatnonzero(is_own)[:_MOST_TOLD]
        if len(told):
            distances = np.maximum(near.distances[told], tolerance / 2)
            bits[told] = _count_bits(items, near.items[told], distances, free)
        hits = (near.distances <= tolerance) | (bits >= _SURE)
        if items.kind == EXAMPLES:
            hits &= ~is_own | (bits >= _FEWEST_BITS)
        # Somebody else's that is about as near leaves open whose it is.
        beside = np.full(len(rows), np.inf)
        np.minimum.at(beside, near.rows[~is_own], near.distances[~is_own])
        is_alone = beside[near.rows] > np.maximum(_FARTHER * near.distances, tolerance)
        for index in np.flatnonzero(hits).tolist():
            item = int(near.items[index])
            matches.items.setdefault(int(items.holders[item]), set()).add(item)
            if is_own[index]:
                matches.how.add(how)
                matches.bits[item] = max(matches.bits.get(item, 0.0), float(bits[index]))
                if is_alone[index]:
                    matches.alone.add(item)


def _is_ascending(array: Sent, size: int) -> bool:
    """Say whether an array is a vector as long as an example whose numbers ascend."""
    return array.values.shape == (size,) and bool((np.diff(array.values) >= 0).all())


def _sort_each(rows: Floats) -> Floats:
    return np.sort(rows, axis=1)


def standardise(rows: Floats) -> Floats:
    """Give each row the mean 0 and the length 1; zeros for one that is the same throughout."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(np.where(length > 1e-9, centred / np.maximum(length, 1e-9), 0.0))


def _distinct(ways: Sequence[Floats]) -> Floats:
    """Return the rows of all (rows, columns) that are finite and not the same throughout, each once."""
    if not ways:
        return np.zeros((0, 0))
    rows = np.concatenate(ways)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if not len(rows):
        return rows
    rows = np.ascontiguousarray(rows[np.ptp(rows, axis=1) > 0])
    # As bytes: ten times as quick as column by column.
    _, first = np.unique(rows.view(f"V{rows.shape[1] * 8}").ravel(), return_index=True)
    return rows[np.sort(first)]


def _seek(items: Items, rows: Floats) -> _Near:
    """Find the items that are near to rows (n, columns), by the largest difference in a column."""
    found: list[tuple[Rows, Rows, Floats]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    neighbours = min(_NEIGHBOURS, len(items.rows))
    for start in range(0, len(rows), _AT_ONCE):
        block = rows[start : start + _AT_ONCE] / items.scale
        # The first question is a cheap one: most rows are near to nothing.
        distances, _ = items.tree.query(block, p=np.inf, distance_upper_bound=_LOOSE)
        some = np.flatnonzero(np.isfinite(distances))
        if not len(some):
            continue
        distances, nearest = items.tree.query(block[some], k=neighbours, p=np.inf, distance_upper_bound=_LOOSE)
        distances, nearest = distances.reshape(len(some), -1), nearest.reshape(len(some), -1)
        is_near = np.isfinite(distances)
        index, _ = np.nonzero(is_near)
        found.append((start + some[index], nearest[is_near], distances[is_near]))
    near_rows, near_items, distances = (np.concatenate(part) for part in zip(*found, strict=True))
    return _Near(near_rows, near_items, distances)


def _count_bits(items: Items, found: Rows, distances: Floats, free: int) -> Floats:
    """Say how many bits tell items that were met from accidents among all of their kind."""
    known = np.arange(len(items.rows))
    if len(known) > _MOST_BESIDE:
        # Evenly spread, and the items themselves.
        spread = np.linspace(0, len(known) - 1, _MOST_BESIDE).astype(np.int64)
        known = np.union1d(spread, found)
    bits = bits_of_matches(items.numbers(found), distances[:, None] * items.scale, items.numbers(known))
    columns = items.rows.shape[1]
    bits *= max(0, columns - free) / columns
    # Where many items have two holders, rows are alike by accident: a match is no rarer than that.
    if items.repeated:
        bits = np.minimum(bits, -math.log2(items.repeated))
    return np.asarray(bits)


def _pair_columns(values: Floats, table: Floats, tolerance: float) -> list[tuple[int, int]]:
    """Say which columns of values (n, some) are columns of a table (m, all): pairs of their indices."""
    ordered, margin = np.sort(table, axis=0), tolerance * np.abs(table).max(axis=0)
    # Three rows show of most arrays that they are something else.
    few = _meet_columns(_take_some(values, 3), ordered, margin)
    candidates = few.mean(axis=0) > 0.5
    if candidates.any(axis=1).sum() < 2:
        return []
    some = _take_some(values, _SOME_ROWS)
    met = _meet_columns(some, ordered, margin) & candidates
    pairs = []
    left = [*range(table.shape[1])]
    for index in range(values.shape[1]):
        best, most = -1, 0
        for column in left:
            fits = met[:, index, column]
            if fits.mean() < _IN_COLUMN:
                continue
            # If all columns fit, such as those of 0 and 1, the one with most values says most.
            different = len(np.unique(some[fits, index]))
            if different > most:
                best, most = column, different
        if best >= 0:
            pairs.append((index, best))
            left.remove(best)
    return pairs


def _take_some(values: Floats, count: int) -> Floats:
    """Return so many rows, evenly spread."""
    rows = np.linspace(0, len(values) - 1, min(len(values), count)).astype(np.int64)
    return np.asarray(values[rows])


def _meet_columns(values: Floats, ordered: Floats, margin: Floats) -> NDArray[np.bool_]:
    """Say which numbers (n, some) stand in which columns of a table whose columns are sorted: (n, some, all)."""
    met = np.zeros((*values.shape, ordered.shape[1]), dtype=np.bool_)
    for column in range(ordered.shape[1]):
        at = np.searchsorted(ordered[:, column], values - margin[column])
        nearest = ordered[np.minimum(at, len(ordered) - 1), column]
        met[:, :, column] = np.abs(nearest - values) <= margin[column]
    return met
