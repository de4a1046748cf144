"""What the arrays of a client's replies are: kinds, shapes and factors, and no values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from fedattack.base.stored import OPTIONAL, AsJson, Count, Finite
from fedattack.base.untrusted import Text

ZEROS = "zeros"
UNCHANGED = "as received"
WEIGHTS = "weights"
CHANGED = "weights, changed"
DIFFERENCE = "difference"
SCALED = "difference times a factor"
CHANGED_DIFFERENCE = "difference, changed"
SLICE = "slice of a model's array"
OTHER_TYPE = "weights as the bytes of another type"
NO_FLOATS = "no floats"
OUTPUTS = "outputs of the model"
OF_ANOTHER = "weights of another model"
KEPT = "not sent"
UNKNOWN = "not understood"

Kind = Literal[
    "zeros",
    "as received",
    "weights",
    "weights, changed",
    "difference",
    "difference times a factor",
    "difference, changed",
    "slice of a model's array",
    "weights as the bytes of another type",
    "no floats",
    "outputs of the model",
    "weights of another model",
    "not sent",
    "not understood",
]
KINDS: tuple[str, ...] = get_args(Kind)
"""Kinds of arrays; where calls differ the later one of these counts."""

AS_WEIGHTS = (WEIGHTS, CHANGED)
AS_DIFFERENCES = (DIFFERENCE, SCALED, CHANGED_DIFFERENCE)

MOST_ARRAYS = 2048
"""Arrays of a client of which the kinds are noted."""


@dataclass(frozen=True)
class SentArray:
    """What one array of a client's replies is.

    Attributes
    ----------
    name, shape, dtype
        As it was sent.
    kind
        One of :data:`KINDS`.
    of
        The entry of the model's state that it belongs to; empty if there is none.
    least, most
        By what the difference after − before was multiplied, in the calls of the client; ``None`` for other kinds.
    parts, shapes
        Of a vector in which all of a model stands, one array behind the other, the names and shapes of these.
    """

    name: Text
    shape: Annotated[tuple[Count, ...], Field(max_length=32)]
    dtype: Text
    kind: Annotated[str, AsJson(Kind)]
    of: Text = ""
    least: Finite | None = None
    most: Finite | None = None
    parts: Annotated[tuple[Text, ...], Field(max_length=MOST_ARRAYS), OPTIONAL] = ()
    shapes: Annotated[
        tuple[Annotated[tuple[Count, ...], Field(max_length=32)], ...], Field(max_length=MOST_ARRAYS), OPTIONAL
    ] = ()

    @property
    def described(self) -> str:
        """What it is, for people."""
        if not self.parts or self.kind == UNKNOWN:
            return self.kind
        return f"{self.kind}, {len(self.parts)} arrays of the model in one vector"


def joined_kinds(before: Sequence[SentArray], now: Sequence[SentArray]) -> tuple[SentArray, ...]:
    """Join what the arrays were in earlier calls with what they are in this one."""
    known = {array.name: array for array in before}
    return tuple(_join_kind(known.get(array.name), array) for array in now)


def _join_kind(before: SentArray | None, now: SentArray) -> SentArray:
    if before is None:
        return now
    kinds = {before.kind, now.kind}
    # Later kinds count more: that a client once sent back what it got, in a call without a step, does not hide that it
    # sends weights.
    kind = max(kinds, key=KINDS.index)
    # Who sends weights now and differences then cannot be read by one rule.
    mixed = kinds & {*AS_WEIGHTS} and kinds & {*AS_DIFFERENCES}
    if mixed or before.shape != now.shape:
        return replace(now, kind=UNKNOWN, least=None, most=None)
    factors = [each for each in (before.least, before.most, now.least, now.most) if each is not None]
    if kind not in AS_DIFFERENCES or not factors:
        return replace(now, kind=kind, least=None, most=None)
    return replace(now, kind=kind, least=min(factors), most=max(factors))


def summed_up(tables: Sequence[Sequence[SentArray]]) -> list[dict[str, Any]]:
    """Count of how many clients each array is of each kind: a row for each array, shape and kind."""
    rows: dict[tuple[str, tuple[int, ...], str, str], list[SentArray]] = {}
    for table in tables:
        for array in table:
            rows.setdefault((array.name, array.shape, array.dtype, array.described), []).append(array)
    summed = []
    for (name, shape, dtype, kind), arrays in rows.items():
        factors = [each for array in arrays for each in (array.least, array.most) if each is not None]
        row: dict[str, Any] = {"array": name, "shape": [*shape], "dtype": dtype, "kind": kind, "clients": len(arrays)}
        if factors:
            row |= {"least": min(factors), "most": max(factors)}
        summed.append(row)
    return summed
