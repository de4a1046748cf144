"""The form of an attack's scores: scores that somebody hands over are held against it before they are judged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints, TypeAdapter

from fedattack.base.errors import short
from fedattack.base.stored import Axes
from fedattack.base.stored import Finite as Finite

Name = Annotated[str, StringConstraints(max_length=1024)]
Number = Annotated[int, Field(ge=-(2**53), le=2**53)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

# What NumPy's kinds may stand for a form's kind: whole numbers are fine where floats are asked for.
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
        axes = Axes(*self.axes, low=self.low, high=self.high, nan=self.nan, rest=self.rest)
        misfit = axes.explain_misfit(array.dtype, array.shape, _DTYPES[self.kind], sizes)
        return misfit or axes.explain_values(array)


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
        # The axes that facts name have their length before any array is looked at.
        sizes = {axis: len(facts[fact]) for axis, fact in self.named_by.items()}
        for name, form in self.arrays.items():
            # A name that ends with * stands for all arrays that begin so.
            matching = [key for key in arrays if _stands_for(name, key)]
            if not matching and not form.optional:
                return f"there is no array {name!r}"
            for key in matching:
                if fault := form.fault(arrays[key], sizes):
                    return f"{short(key, 60)}: {fault}"
        return ""


def _stands_for(name: str, key: str) -> bool:
    return key.startswith(name[:-1]) if name.endswith("*") else key == name
