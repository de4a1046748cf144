"""How a table's columns are coded as a model's inputs, which a server knows that knows the app."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedattack.base.errors import short
from fedattack.base.stored import Count, Finite, Name
from fedattack.data.columns import Column

MOST_INPUTS = 4096
"""Inputs of a table up to which its coding is stated."""

_Inputs = Annotated[tuple[Finite, ...], Field(max_length=MOST_INPUTS)]


@dataclass(frozen=True)
class TableCoding:
    """Which inputs encode each column, and the range of each input.

    Attributes
    ----------
    names
        The columns.
    columns
        For each column its inputs: several for categories, which are one-hot, and one for a number or two values.
    is_number
        For each column whether it is a number.
    low, high, mean, deviation
        (inputs,): the least and the largest value of each input, its mean and standard deviation.
    """

    names: Annotated[tuple[Name, ...], Field(max_length=MOST_INPUTS)]
    columns: Annotated[tuple[tuple[Count, ...], ...], Field(max_length=MOST_INPUTS)]
    is_number: Annotated[tuple[bool, ...], Field(max_length=MOST_INPUTS)]
    low: _Inputs
    high: _Inputs
    mean: _Inputs
    deviation: _Inputs

    def fault(self) -> str:
        """Say what does not fit together of a coding that was read, or nothing."""
        width = len(self.low)
        coded = sorted(position for inputs in self.columns for position in inputs)
        if coded != list(range(width)) or not all(self.columns):
            return f"expected each of {width} inputs in one column, got {short(str(self.columns))}"
        if {len(self.names), len(self.is_number)} != {len(self.columns)}:
            return f"expected a name and a kind of each of {len(self.columns)} columns"
        if {len(self.high), len(self.mean), len(self.deviation)} != {width}:
            return f"expected high, mean and deviation of {width} inputs"
        ordered = all(least <= most for least, most in zip(self.low, self.high, strict=True))
        if not ordered or min(self.deviation, default=0) < 0:
            return "expected no low above its high, and no deviation below 0"
        if any(kind and len(inputs) > 1 for kind, inputs in zip(self.is_number, self.columns, strict=True)):
            return "expected one input for each column of numbers"
        return ""

    def decode(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Return the cells (n, columns) of examples (n, inputs): a category's index, or a number."""
        low, high = np.array(self.low), np.array(self.high)
        cells = np.empty((len(x), len(self.columns)))
        for column, inputs in enumerate(self.columns):
            own = list(inputs)
            values = x[:, own]
            if self.is_number[column]:
                cells[:, column] = values[:, 0]
            elif len(own) == 1:
                cells[:, column] = values[:, 0] > (low[own] + high[own]) / 2
            else:
                # One-hot inputs may be standardised, each by itself.
                span = np.where(high > low, high - low, 1)[own]
                cells[:, column] = ((values - low[own]) / span).argmax(axis=1)
        return cells


def find_coding(x: NDArray[Any], columns: Sequence[Column] = ()) -> TableCoding | None:
    """Describe how examples (n, inputs) are coded; ``None`` if they are no table, or one of too many inputs.

    Parameters
    ----------
    x
        The examples.
    columns
        What is declared of their columns. If nothing is, neighbours of which exactly one is at its larger value in each
        example are taken for the categories of one column. Inputs among them that are the same in all examples are
        taken for categories that none of these examples has.
    """
    if x.ndim != 2 or not len(x) or not 0 < x.shape[1] <= MOST_INPUTS:
        return None
    low, high = x.min(axis=0), x.max(axis=0)
    is_two = ((x == low) | (x == high)).all(axis=0)
    if columns:
        names = tuple(column.name for column in columns)
        groups = [column.inputs for column in columns]
    else:
        groups = _find_groups((x == high) & (high > low), is_two)
        names = tuple(str(number + 1) for number in range(len(groups)))
    return TableCoding(
        names=names,
        columns=tuple(tuple(map(int, group)) for group in groups),
        is_number=tuple(len(group) == 1 and not is_two[group[0]] for group in groups),
        low=tuple(low.astype(float).tolist()),
        high=tuple(high.astype(float).tolist()),
        mean=tuple(x.mean(axis=0, dtype=np.float64).tolist()),
        deviation=tuple(x.std(axis=0, dtype=np.float64).tolist()),
    )


def _find_groups(is_high: NDArray[np.bool_], is_two: NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """Put inputs (n, inputs) into columns: the longest run of neighbours with one high value in each example.

    Inputs that are the same in all examples join the categories before them, or else those after them.
    """
    # Inputs that are the same in all examples are never high, and of two values.
    moving = np.flatnonzero(is_high.any(axis=0) | ~is_two)
    groups: list[tuple[int, ...]] = []
    done = 0
    for first, last in [*_find_runs(is_high, is_two, moving), (is_high.shape[1], is_high.shape[1] - 1)]:
        same = tuple(range(done, first))
        own = tuple(range(first, last + 1))
        if groups and len(groups[-1]) > 1:
            groups[-1] += same
        elif len(own) > 1:
            own = same + own
        else:
            groups += [(position,) for position in same]
        if own:
            groups.append(own)
        done = last + 1
    return groups


def _find_runs(
    is_high: NDArray[np.bool_], is_two: NDArray[np.bool_], moving: NDArray[np.int64]
) -> Iterator[tuple[int, int]]:
    """Yield the first and the last input of each column, of the inputs that differ between examples."""
    start = 0
    while start < len(moving):
        end = start
        count = np.zeros(len(is_high), dtype=np.int64)
        for stop in range(start, len(moving)):
            count += is_high[:, moving[stop]]
            if not is_two[moving[stop]] or count.max() > 1:
                break
            if count.min() == 1:
                end = stop
        yield int(moving[start]), int(moving[end])
        start = end + 1
