"""Put together what clients send spread over many names: numbers of one prefix, lists and arrays of running numbers."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.structured import is_finite_number

LEAST = 3
"""Numbers that make a family: fewer are no vector."""

# Rows of more digits are no running numbers.
_NUMBER = re.compile(r"\d{1,9}")

# What parts the words of a name, and how many groups of words are put together.
_SEPARATORS, _MOST_GROUPS = r"[._/:|\- ]", 64

# Numbers of a group of words, and of lists and arrays that are put together.
_MOST_WORDS, _MOST_NUMBERS = 4_096, 2**20

Array = NDArray[Any]


def group_names(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Put names together that differ in running numbers alone, such as ``px0`` … ``px63``.

    Returns
    -------
    dict
        By the names with ``#`` for their numbers, at least :data:`LEAST` names, in the order of the numbers.
    """
    by_stem: dict[str, list[tuple[tuple[int, ...], str]]] = {}
    for name in names:
        running = _NUMBER.findall(name)
        if running:
            by_stem.setdefault(_NUMBER.sub("#", name), []).append((tuple(map(int, running)), name))
    groups = {}
    for stem, members in by_stem.items():
        if len(members) >= LEAST:
            groups[stem] = tuple(name for _, name in sorted(members))
    return groups


def stack_arrays(arrays: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """Yield arrays of one number, or of one axis and the same length, under running numbers as one array.

    It has an axis more, in the order of the numbers.
    """
    for stem, names in group_names(arrays).items():
        members = [arrays[name] for name in names]
        shapes = {array.shape for array in members}
        size = sum(array.size for array in members)
        if len(shapes) == 1 and members[0].ndim < 2 and 0 < size <= _MOST_NUMBERS:
            # One number may be an array of one axis, too.
            yield stem, np.squeeze(np.stack(members), axis=1) if shapes == {(1,)} else np.stack(members)


def join_values(values: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield the values of a reply that may belong together, beside numbers of one family.

    Lists of one length under running numbers are the rows, or the columns, of a table. Numbers whose names have their
    first or their last words in common may be of an example, or of a statistic, a number for each column: ``mean.age``,
    ``mean.bmi``, ``mean.bp``. So may all numbers of the reply. In which order columns are, nobody knows: these numbers
    are in ascending order.
    """
    lists: dict[str, Array] = {}
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, list) and value and all(map(is_finite_number, value)):
            lists[name] = np.array(value, dtype=np.float64)
        elif is_finite_number(value):
            numbers[name] = float(value)
    yield from stack_arrays(lists)
    groups = _group_by_words([*numbers])
    for label, names in [*groups.items()][:_MOST_GROUPS]:
        if len(names) <= _MOST_WORDS:
            yield label, np.sort([numbers[name] for name in names])


def _group_by_words(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Put names together by all words but the last, or but the first; numbers in the place of words are families."""
    groups: dict[str, list[str]] = {}
    for name in names:
        for pattern, label in (
            (f"(.*{_SEPARATORS})([^._/:| -]+)", r"\1*"),
            (f"([^._/:| -]+)({_SEPARATORS}.*)", r"*\2"),
        ):
            match = re.fullmatch(pattern, name, re.DOTALL)
            if match is not None and not _NUMBER.fullmatch(match[2 if label == r"\1*" else 1]):
                groups.setdefault(match.expand(label), []).append(name)
    families = {name for members in group_names(names).values() for name in members}
    groups["all numbers"] = [name for name in names if name not in families]
    found: dict[tuple[str, ...], str] = {}
    for label, members in groups.items():
        if len(members) >= LEAST:
            # The same names may have a word in front and one behind in common.
            found.setdefault(tuple(members), label)
    return {label: members for members, label in found.items()}
