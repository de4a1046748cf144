"""Cells of tables: which of them reconstructed rows have right, and what guesses without any gradient have right.

A category is right if it is the true one, and a number if it is within :data:`TOLERANCE` deviations of it (Vero et al.
2023, "TabLeak: tabular data leakage in federated learning"). Reconstructions come in no order: they are paired with the
true rows so that most cells are right, and so is all that they are held against.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedattack.attacks.coding import TableCoding
from fedattack.threats.inversion.case import InversionCase
from fedattack.threats.inversion.exchange import AttackedClient, ExchangedCells, exchange_cells, right_cells

TOLERANCE = 0.319
"""Standard deviations by which a number may be off."""

RANDOM_ROW, COMMON = "a random row of the data", "the most common value of each column"

# Streams of a seed's random numbers, apart from those of the case.
_DRAWING, _EXCHANGING = 4, 5

# Categories are whole numbers.
_SAME = 0.5

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FoundCells:
    """Cells that were found, all (cells,).

    Attributes
    ----------
    batches, records, columns
        Of which batch each is, for which true example it stands, and of which column it is: indices.
    values
        A category's index, or a number.
    unsure
        How unsure of it the attacker is, from 0 to 1.
    right, common
        Whether it is right, and whether the most common value of the column is.
    """

    batches: NDArray[np.int64]
    records: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: Floats
    unsure: Floats
    right: Flags
    common: Flags

    @classmethod
    def join(cls, parts: Sequence["FoundCells"]) -> "FoundCells":
        """Put cells together."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def take(self, chosen: NDArray[Any]) -> "FoundCells":
        """Return some of the cells."""
        return FoundCells(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True)
class CellsCase:
    """One seed's reconstructed rows of a table, cell by cell."""

    case: InversionCase
    coding: TableCoding

    @cached_property
    def tolerance(self) -> Floats:
        """(columns,): how far a cell may be off."""
        deviations = [self.coding.deviation[inputs[0]] for inputs in self.coding.columns]
        return np.where(self.coding.is_number, TOLERANCE * np.array(deviations), _SAME)

    @cached_property
    def others(self) -> Floats:
        """(n, columns): rows that no attacked client holds."""
        return self.coding.decode(self.case.others[0])

    @cached_property
    def common(self) -> Floats:
        """(columns,): the most common category of each column, or the median of its numbers."""
        values = []
        for column, is_number in zip(self.others.T, self.coding.is_number, strict=True):
            if is_number:
                values.append(float(np.median(column)))
            else:
                categories, counts = np.unique(column, return_counts=True)
                values.append(float(categories[counts.argmax()]))
        return np.array(values)

    def find_cells(self, number: int) -> Floats:
        """Return the reconstructed cells (m, columns) of a batch."""
        found = self.case.found
        return self.coding.decode(np.nan_to_num(found.images[found.of_batch == number]))

    def true_cells(self, rows: NDArray[np.int64]) -> Floats:
        """Return the cells (n, columns) of examples that clients trained on."""
        return self.coding.decode(self.case.held.x[rows])

    @cached_property
    def results(self) -> list[Flags]:
        """Which cells (n, columns) of each batch are right."""
        found = [self.find_cells(number) for number, _, _ in self.case.batches]
        return [*self._compare(found)]

    @cached_property
    def guesses(self) -> dict[str, list[Flags]]:
        """What two guesses have right."""
        draw = np.random.default_rng((self.case.seed, _DRAWING))
        sizes = [len(rows) for _, _, rows in self.case.batches]
        random = [self.others[draw.integers(len(self.others), size=size)] for size in sizes]
        common = [np.repeat(self.common[np.newaxis], size, axis=0) for size in sizes]
        return {RANDOM_ROW: [*self._compare(random)], COMMON: [*self._compare(common)]}

    @cached_property
    def nulls(self) -> list[Flags]:
        """What rows from another client's reply have right; random rows where no other client was attacked."""
        nulls = []
        batches = self.case.batches
        for index, (_, client, rows) in enumerate(batches):
            after = batches[index + 1 :] + batches[:index]
            others = [number for number, other, _ in after if other != client]
            if others:
                nulls.append(_pair_cells(self.true_cells(rows), self.find_cells(others[0]), self.tolerance)[0])
            else:
                nulls.append(self.guesses[RANDOM_ROW][index])
        return nulls

    def _compare(self, found: Sequence[Floats]) -> Iterator[Flags]:
        for cells, (_, _, rows) in zip(found, self.case.batches, strict=True):
            yield _pair_cells(self.true_cells(rows), cells, self.tolerance)[0]

    def share_cells(self, batches: Sequence[Flags]) -> Floats:
        """Return which share of its cells is right of each example (examples,), as a mean over its rounds."""
        return self._over_rounds([right.mean(axis=1) for right in batches])

    def share_rows(self, batches: Sequence[Flags]) -> Floats:
        """Return in which share of its rounds all of its cells are right of each example, (examples,)."""
        return self._over_rounds([np.asarray(right.all(axis=1)) for right in batches])

    def _over_rounds(self, batches: Sequence[NDArray[Any]]) -> Floats:
        shares = []
        for indices in self.case.clients_replies.values():
            shares.append(np.mean([batches[index] for index in indices], axis=0))
        return np.concatenate(shares)

    @cached_property
    def found_cells(self) -> FoundCells | None:
        """The cells that stand for true ones; nothing where the searches did not say how sure they are.

        Found rows that stand for no example do not count.
        """
        of_cells = self.case.found.unsure
        if of_cells is None:
            return None
        parts = []
        for index, (number, _, rows) in enumerate(self.case.batches):
            truth, cells = self.true_cells(rows), self.find_cells(number)
            flags, paired = _pair_cells(truth, cells, self.tolerance)
            there = np.flatnonzero(paired >= 0)
            taken = paired[there]
            count, columns = len(there), truth.shape[1]
            parts.append(
                FoundCells(
                    batches=np.full(count * columns, index),
                    records=np.repeat(rows[there], columns),
                    columns=np.tile(np.arange(columns), count),
                    values=cells[taken].ravel(),
                    unsure=of_cells[self.case.found.of_batch == number][taken].ravel(),
                    right=flags[there].ravel(),
                    common=(np.abs(truth - self.common) <= self.tolerance)[there].ravel(),
                )
            )
        return FoundCells.join(parts)

    def exchange(self, draws: int) -> ExchangedCells:
        """Count the right cells beside other rows than the true ones."""
        attacked = []
        case = self.case
        for indices, rows in zip(case.clients_replies.values(), case.clients_rows, strict=True):
            replies = [self.find_cells(case.batches[index][0]) for index in indices]
            attacked.append(AttackedClient(self.true_cells(rows), case.label_cells(case.held.y[rows]), replies))
        rng = np.random.default_rng((case.seed, _EXCHANGING))
        labels = case.label_cells(case.others[1])
        return exchange_cells(attacked, (self.others, labels), self.tolerance, rng, draws)


def _pair_cells(truth: Floats, found: Floats, tolerance: Floats) -> tuple[Flags, NDArray[np.int64]]:
    """Pair found rows with true ones; return the right cells (n, columns), and which row was paired, −1 for none."""
    right = right_cells(truth, found, tolerance)
    paired = np.full(len(truth), -1)
    rows, columns = linear_sum_assignment(-right.sum(axis=2))
    paired[rows] = columns
    # The last row has nothing right, and stands in.
    given = np.concatenate([right, np.zeros_like(right[:, :1])], axis=1)
    return given[np.arange(len(truth)), paired], paired
