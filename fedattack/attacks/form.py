"""The form of an attack's scores: scores that somebody hands over are held against it before they are judged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints, TypeAdapter

from fedattack.base.errors import short
from fedattack.base.machine import let_go

Name = Annotated[str, StringConstraints(max_length=1024)]
Number = Annotated[int, Field(ge=-(2**53), le=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

# Numbers that are looked at together.
_AT_ONCE = 2**20
_KINDS = {"b": "yes or no", "i": "whole numbers", "f": "numbers", "U": "texts"}
_DTYPES = {"b": "b", "i": "iu", "f": "iuf", "U": "U"}


@dataclass(frozen=True)
class ArrayForm:
    """One array of the scores.

    Attributes
    ----------
    kind
        ``b`` for yes or no, ``i`` for whole numbers, ``f`` for any numbers, ``U`` for texts.
    axes
        Names of its axes; axes of one name are of one length, in all arrays.
    low, high
        Least and largest value, NaN apart.
    nan
        Whether NaN may stand for what there is not.
    optional
        Whether the array may be missing.
    rest
        Whether further axes may follow.
    """

    kind: str
    axes: tuple[str, ...]
    low: float = -np.inf
    high: float = np.inf
    nan: bool = False
    optional: bool = False
    rest: bool = False

    def fault(self, array: NDArray[Any], sizes: dict[str, int]) -> str:
        """Say what is wrong with an array, or nothing; ``sizes`` are those of the axes, and learns new ones."""
        if array.dtype.kind not in _DTYPES[self.kind]:
            return f"expected {_KINDS[self.kind]}, got {array.dtype}"
        if array.ndim < len(self.axes) or (array.ndim > len(self.axes) and not self.rest):
            return f"expected the axes ({', '.join(self.axes)}), got the shape {array.shape}"
        for axis, size in zip(self.axes, array.shape, strict=False):
            if sizes.setdefault(axis, size) != size:
                return f"expected {sizes[axis]} {axis}, got {size}"
        return self._fault_of_values(array)

    def _fault_of_values(self, array: NDArray[Any]) -> str:
        least, largest = np.inf, -np.inf
        rows = np.atleast_1d(array)
        # A few rows at a time: scores of many rounds are large.
        step = max(1, len(rows) * _AT_ONCE // max(rows.size, 1))
        for first in range(0, len(rows), step):
            values = rows[first : first + step]
            if array.dtype.kind == "f":
                missing = np.isnan(values)
                if missing.any() and not self.nan:
                    return "expected numbers, got NaN"
                values = values[~missing]
            if self.kind in "if" and values.size:
                least, largest = min(least, values.min()), max(largest, values.max())
            let_go(array)
        if least <= largest and not self.low <= least <= largest <= self.high:
            return f"expected values in {self.low:g} … {self.high:g}, got {least:g} … {largest:g}"
        return ""


@dataclass(frozen=True)
class Form:
    """What scores hold.

    Attributes
    ----------
    facts
        Form of the facts; what is not named there is not looked at.
    arrays
        Form of the arrays by name. A name that ends with ``*`` stands for all that begin so.
    named_by
        For an axis the fact that lists what lies along it.
    """

    facts: TypeAdapter[Any]
    arrays: Mapping[str, ArrayForm]
    named_by: Mapping[str, str]

    def fault(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
        """Say the first thing that is wrong with facts and arrays, or nothing."""
        sizes = {axis: len(facts[fact]) for axis, fact in self.named_by.items()}
        for name, form in self.arrays.items():
            matching = [key for key in arrays if _stands_for(name, key)]
            if not matching and not form.optional:
                return f"there is no array {name!r}"
            for key in matching:
                if fault := form.fault(arrays[key], sizes):
                    return f"{short(key, 60)}: {fault}"
        return ""


def _stands_for(name: str, key: str) -> bool:
    return key.startswith(name[:-1]) if name.endswith("*") else key == name
