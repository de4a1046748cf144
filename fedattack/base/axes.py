"""What a field of arrays holds: kinds of numbers, axes by name, and bounds; see :mod:`fedattack.base.stored`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import short
from fedattack.base.machine import let_go

ANY_KIND = "biufcmMSUV"
"""Kinds of all of NumPy's types, for a field of which its class alone says what it takes."""

_SAID = {"b": "yes or no", "iu": "whole numbers", "U": "texts"}

# Numbers that are looked at together.
_AT_ONCE = 2**20


class Axes:
    """Marks a field that is an array, or several: what they hold.

    The field's type says which numbers: ``NDArray[np.int64]`` takes whole numbers and casts them,
    ``NDArray[np.integer]`` takes them as they are, and ``NDArray[Any]`` any numbers. A tuple of texts or of whole
    numbers, or one text, is an array on disk, too. A mapping is of arrays by name, at least one. Where ``None`` is of
    the type, there may be none, and the field has its default.

    Parameters
    ----------
    names
        Of the axes.
    low, high
        Least and largest value, NaN apart.
    nan
        Whether NaN may stand for what there is not.
    rest
        Whether further axes may follow.
    kinds
        Kinds of NumPy's types that are taken; those of the field's type if empty.
    prefix
        What the names of a mapping's arrays begin with.
    called
        The array's name on disk, where it is not its field's.
    into
        The field whose list its numbers are indices into.
    """

    def __init__(
        self,
        *names: str,
        low: float = -np.inf,
        high: float = np.inf,
        nan: bool = False,
        rest: bool = False,
        kinds: str = "",
        prefix: str = "",
        called: str = "",
        into: str = "",
    ) -> None:
        self.names = names
        self.low = low
        self.high = high
        self.nan = nan
        self.rest = rest
        self.kinds = kinds
        self.prefix = prefix
        self.called = called
        self.into = into

    def explain_misfit(self, dtype: np.dtype[Any], shape: tuple[int, ...], kinds: str, sizes: dict[str, int]) -> str:
        """Say what is wrong with an array's type or shape, or nothing.

        ``sizes`` are those of the axes that are known, and learns new ones.
        """
        count = len(self.names)
        expected = [sizes.get(axis, axis) for axis in self.names]
        fits = dtype.kind in kinds and (len(shape) == count or (len(shape) > count and self.rest))
        for axis, size in zip(self.names, shape, strict=False):
            # An axis that was seen has its length; a new one sets it for the arrays to come.
            fits = fits and sizes.setdefault(axis, size) == size
        if fits:
            return ""
        sides = ", ".join([*map(str, expected), *["…"] * self.rest])
        if count == 1 and not self.rest:
            sides += ","
        got = f"{short(str(dtype), 60)} {short(str(shape), 60)}"
        return f"expected {_SAID.get(kinds, 'numbers')} ({sides}), got {got}"

    def explain_values(self, array: NDArray[Any], dtype: np.dtype[Any] | None = None) -> str:
        """Say which values of an array are wrong, or cannot be cast to whole numbers of type ``dtype``, or nothing."""
        low, high = self.low, self.high
        if dtype is not None and dtype.kind in "iu":
            # What is cast must fit: NumPy would wrap a larger number silently.
            low, high = max(low, np.iinfo(dtype).min), min(high, np.iinfo(dtype).max)
        is_limited = (low, high) != (-np.inf, np.inf) or not self.nan
        if array.dtype.kind not in "iuf" or not is_limited:
            return ""
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
            if values.size:
                least, largest = min(least, values.min()), max(largest, values.max())
            # The pages that were read of an array on disk are given back.
            let_go(array)
        if least <= largest and not low <= least <= largest <= high:
            return f"expected values in {low:g} … {high:g}, got {least:g} … {largest:g}"
        return ""


def _give(array: NDArray[Any]) -> NDArray[Any]:
    return array


@dataclass(frozen=True)
class ArrayKind:
    """What a field's type says of its arrays.

    Attributes
    ----------
    kinds, dtype
        Which kinds of NumPy's types are taken, and to which type they are cast; ``None`` for as they are.
    make
        Makes of an array what the field holds.
    is_mapping, may_lack
        Whether the field is of arrays by name; whether there may be none.
    """

    kinds: str = ""
    dtype: np.dtype[Any] | None = None
    make: Callable[[NDArray[Any]], Any] = _give
    is_mapping: bool = False
    may_lack: bool = False

    @classmethod
    def of(cls, kind: Any, axes: Axes) -> "ArrayKind":
        """Read a field's type."""
        may_lack = False
        if get_origin(kind) in (Union, UnionType):
            # X | None: the array may be missing.
            (kind,) = (part for part in get_args(kind) if part is not NoneType)
            may_lack = True
        by_name = is_mapping(kind)
        if by_name:
            kind = get_args(kind)[1]
        make: Callable[[NDArray[Any]], Any] = _give
        scalar: Any = np.str_
        if kind is str:
            make = str
        elif get_origin(kind) is tuple:
            make = _make_texts
            if get_args(kind)[0] is not str:
                scalar, make = np.int64, _make_tuple
        else:
            # NDArray[scalar] is np.ndarray[shape, np.dtype[scalar]].
            scalar = get_args(get_args(kind)[1])[0]
        kinds, dtype = _kinds_of(get_origin(scalar) or scalar)
        return cls(axes.kinds or kinds, dtype, make, by_name, may_lack)


def is_mapping(kind: Any) -> bool:
    """Whether a type is one of values by name."""
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _make_tuple(array: NDArray[Any]) -> tuple[int, ...]:
    return tuple(array.tolist())


def _make_texts(array: NDArray[Any]) -> tuple[str, ...]:
    return tuple(map(str, array.tolist()))


def _kinds_of(scalar: Any) -> tuple[str, np.dtype[Any] | None]:
    if scalar is Any:
        return "biuf", None
    for kinds, sort in (("b", np.bool_), ("iu", np.integer), ("iuf", np.floating), ("U", np.str_)):
        if issubclass(scalar, sort):
            # An abstract type, such as np.floating, stands for all of its kind.
            return kinds, None if scalar is sort else np.dtype(scalar)
    raise TypeError(f"no array of {scalar} is stored")
