"""Compare each array of a reply with what was received, and with the model before and after training."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import short
from fedattack.witness.arrays import Arrays, State, same
from fedattack.witness.sent import (
    CHANGED,
    CHANGED_DIFFERENCE,
    DIFFERENCE,
    KEPT,
    NO_FLOATS,
    OTHER_TYPE,
    OUTPUTS,
    SCALED,
    SLICE,
    UNCHANGED,
    UNKNOWN,
    WEIGHTS,
    ZEROS,
    SentArray,
)

_EXACT = 1e-3
_ALIKE = 0.5

# Fewer rows may be a model's outputs by accident.
_FEWEST_OUTPUTS = 3

# Batches of outputs that are looked at, the latest ones.
_MOST_BATCHES = 512

_CHANGING = ("LocalDpMod", "DefenceMod", "fixedclipping_mod", "adaptiveclipping_mod")


def are_changing(mods: Iterable[str]) -> bool:
    """Say whether a client's mods are known to change what it sends."""
    return any(mod.startswith(_CHANGING) for mod in mods)


@dataclass(frozen=True)
class _Moved:
    """One entry of a model's state: its name, and its values before and after training."""

    name: str
    before: NDArray[Any] | None
    after: NDArray[Any]


def kinds_of(
    names: Sequence[str],
    sent: Arrays,
    received: Sequence[Arrays],
    *,
    before: State,
    after: State,
    learns: Collection[str],
    mods: Sequence[str] = (),
    outputs: Callable[[], Sequence[NDArray[Any]]] = list,
) -> list[SentArray]:
    """Say what each array of one reply is, and what of the model was not sent.

    Parameters
    ----------
    names, sent
        The reply.
    received
        The arrays of each model that the client was sent.
    before, after
        The model's state before and after training; ``before`` may lack entries.
    learns
        Names of what training may change.
    mods
        Those that the reply passed.
    outputs
        What gives what the model returned last, batch by batch.
    """
    start = dict(before) or _read_received(after, received)
    entries = [_Moved(name, start.get(name), array) for name, array in after]
    walk = _Walk(entries)
    arrays: list[SentArray] = []
    places: list[tuple[int | None, int]] = []
    for name, array in zip(names, sent, strict=True):
        place = walk.find(name, array)
        places.append((place, walk.turn))
        entry = None if place is None else entries[place]
        one = _kind_of(name, array, entry, received, entries)
        if one.kind in (UNKNOWN, NO_FLOATS) and entry is None and _are_outputs(array, outputs()):
            one = replace(one, kind=OUTPUTS)
        arrays.append(one)
    arrays = _with_one_factor(arrays)
    arrays = _with_changed(arrays, sent, places, entries, is_changed=are_changing(mods))
    used = {place for place, _ in places}
    for place, entry in enumerate(entries):
        if place not in used and entry.name in learns:
            arrays.append(SentArray(entry.name, entry.after.shape, str(entry.after.dtype), KEPT, entry.name))
    return arrays


def _read_received(after: State, received: Sequence[Arrays]) -> dict[str, NDArray[Any]]:
    """Return what was received as the model before training, if it has the same shapes."""
    shapes = [array.shape for _, array in after]
    for state in received:
        if [array.shape for array in state] == shapes:
            return {name: array for (name, _), array in zip(after, state, strict=True)}
    return {}


class _Walk:
    """Goes through a model's entries in the order in which arrays are sent, and begins again after the last."""

    def __init__(self, entries: Sequence[_Moved]) -> None:
        self._entries = entries
        self._names = {entry.name: place for place, entry in enumerate(entries)}
        self._next = 0
        self.turn = 0

    def find(self, name: str, array: NDArray[Any]) -> int | None:
        """Return the place of the entry that an array belongs to."""
        named = self._names.get(name)
        if named is not None and self._entries[named].after.shape == array.shape:
            return named
        count = len(self._entries)
        order = [(self._next + step) % count for step in range(count)]
        fitting = [place for place in order if self._entries[place].after.shape == array.shape]
        equal = [place for place in fitting if _is(self._entries[place].after, array)]
        if not fitting:
            return None
        place = (equal or fitting)[0]
        if place < self._next:
            self.turn += 1
        self._next = place + 1
        return place


def _is(own: NDArray[Any] | None, sent: NDArray[Any]) -> bool:
    return own is not None and (own.dtype.kind == "f") == (sent.dtype.kind == "f") and same([own], [sent])


def _kind_of(
    name: str, array: NDArray[Any], entry: _Moved | None, received: Sequence[Arrays], entries: Sequence[_Moved]
) -> SentArray:
    one = SentArray(short(name), array.shape, str(array.dtype), UNKNOWN, "" if entry is None else short(entry.name))
    if array.dtype.kind not in "fiub":
        return replace(one, kind=NO_FLOATS)
    if entry is not None and _is(entry.after, array):
        return replace(one, kind=UNCHANGED if _is(entry.before, array) else WEIGHTS)
    if array.dtype.kind != "f":
        return replace(one, kind=_kind_of_integers(array, entry))
    if not array.any():
        return replace(one, kind=ZEROS)
    if _is_received(array, received):
        return replace(one, kind=UNCHANGED)
    if entry is not None:
        return _with_factor(one, array, entry)
    if any(_is_slice(array, other.after) for other in entries):
        return replace(one, kind=SLICE)
    return one


def _are_outputs(array: NDArray[Any], outputs: Sequence[NDArray[Any]]) -> bool:
    """Say whether an array is what a model returned for some batches on end, as it is, as probabilities or classes."""
    if array.ndim not in (1, 2) or len(array) < _FEWEST_OUTPUTS:
        return False
    outputs = outputs[-_MOST_BATCHES:]
    for last in range(len(outputs), 0, -1):
        batches: list[NDArray[Any]] = []
        rows = 0
        for output in reversed(outputs[:last]):
            batches.insert(0, output)
            rows += len(output)
            if rows >= len(array):
                break
        if rows == len(array) and len({output.shape[1:] for output in batches}) == 1:
            whole = np.concatenate(batches).astype(np.float64).reshape(rows, -1)
            if any(_are_close(array, form) for form in _list_forms(whole)):
                return True
    return False


def _list_forms(outputs: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """Yield outputs (n, classes) as clients send them: as they are, as probabilities, their logarithms, and classes."""
    yield outputs
    if outputs.shape[1] == 1:
        yield outputs[:, 0]
        return
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    yield logarithms
    yield np.exp(logarithms)
    yield outputs.argmax(axis=1).astype(np.float64)


def _are_close(array: NDArray[Any], form: NDArray[np.float64]) -> bool:
    return array.shape == form.shape and np.allclose(array, form, rtol=_EXACT, atol=_EXACT * np.abs(form).max())


def _is_received(array: NDArray[Any], received: Sequence[Arrays]) -> bool:
    return any(_is(other, array) for state in received for other in state)


def _with_factor(one: SentArray, array: NDArray[Any], entry: _Moved) -> SentArray:
    """Say that an array is a difference times a factor, if it is."""
    factor = _factor(array, entry)
    if factor is None:
        return one
    is_one = abs(factor - 1) < _EXACT
    return replace(one, kind=DIFFERENCE if is_one else SCALED, least=factor, most=factor)


def _kind_of_integers(array: NDArray[Any], entry: _Moved | None) -> str:
    if entry is None:
        return NO_FLOATS
    own = entry.after
    if own.dtype.kind != "f":
        moved = None if entry.before is None else own.astype(np.int64) - entry.before.astype(np.int64)
        return DIFFERENCE if moved is not None and np.array_equal(moved, array) else NO_FLOATS
    # NumPy knows no bfloat16: it is the upper half of a float32.
    single = np.ascontiguousarray(own, np.float32)
    upper = (single.view(np.uint32) >> 16).astype(np.uint16)
    forms = {single.tobytes(), single.astype(np.float16).tobytes(), upper.tobytes()}
    return OTHER_TYPE if array.tobytes() in forms else NO_FLOATS


def _is_slice(array: NDArray[Any], whole: NDArray[Any]) -> bool:
    """Say whether an array is what a larger one begins with, along each axis."""
    fits = (
        array.ndim == whole.ndim and array.size and all(a <= b for a, b in zip(array.shape, whole.shape, strict=True))
    )
    return bool(fits) and _is(np.ascontiguousarray(whole[tuple(slice(size) for size in array.shape)]), array)


def _factor(array: NDArray[Any], entry: _Moved) -> float | None:
    """Return by what after − before must be multiplied to give an array; ``None`` if nothing does."""
    moved = _movement(entry)
    if moved is None or not moved.any():
        return None
    values = array.astype(np.float64)
    factor = float((values * moved).sum() / (moved * moved).sum())
    rest = float(np.linalg.norm(values - factor * moved))
    return factor if factor and rest < _EXACT * float(np.linalg.norm(values)) else None


def _movement(entry: _Moved) -> NDArray[np.float64] | None:
    if entry.before is None or entry.after.dtype.kind != "f":
        return None
    return entry.after.astype(np.float64) - entry.before.astype(np.float64)


def _with_one_factor(arrays: list[SentArray]) -> list[SentArray]:
    """Take differences by another factor than that of the largest array for not understood: one number fits any."""
    scaled = [array for array in arrays if array.least is not None]
    if not scaled:
        return arrays
    factor = max(scaled, key=lambda array: np.prod(array.shape)).least or 0.0
    kept = []
    for array in arrays:
        if array.least is not None and abs(array.least - factor) > 10 * _EXACT * abs(factor):
            array = replace(array, kind=UNKNOWN, least=None, most=None)
        kept.append(array)
    return kept


def _with_changed(
    arrays: list[SentArray],
    sent: Arrays,
    places: Sequence[tuple[int | None, int]],
    entries: Sequence[_Moved],
    *,
    is_changed: bool,
) -> list[SentArray]:
    """Find weights, and differences, that noise or compression has changed: those that still go the same way."""
    # A reply is of weights or of differences, and not of both.
    if any(array.least is not None for array in arrays):
        return arrays
    own = _find_unknown(arrays, sent, places, entries)
    if not own:
        return arrays
    whole = _join([sent[row] for row in own])
    kind, factor = _find_change(whole, [*own.values()], is_changed=is_changed)
    changed = list(arrays)
    for row in own:
        changed[row] = replace(arrays[row], kind=kind, least=factor, most=factor)
    return changed


def _find_change(whole: NDArray[np.float64], own: Sequence[_Moved], *, is_changed: bool) -> tuple[str, float | None]:
    """Return what the numbers of some entries are, and the factor of differences."""
    weights = _cosine(whole, _join([entry.after for entry in own]))
    factor, moved = _compare_with_movement(whole, own)
    if is_changed and abs(moved) >= _ALIKE and abs(moved) > weights:
        return CHANGED_DIFFERENCE, factor
    if is_changed or weights >= _ALIKE:
        return CHANGED, None
    return UNKNOWN, None


def _find_unknown(
    arrays: Sequence[SentArray], sent: Arrays, places: Sequence[tuple[int | None, int]], entries: Sequence[_Moved]
) -> dict[int, _Moved]:
    """Return the entries of arrays that were not understood, by the places of these in the reply."""
    own: dict[int, _Moved] = {}
    for row, (place, turn) in enumerate(places):
        # What follows the model's own arrays in a reply is no second model.
        if place is None or turn > 0:
            continue
        if arrays[row].kind == UNKNOWN and sent[row].dtype.kind == "f":
            own[row] = entries[place]
    return own


def _compare_with_movement(whole: NDArray[np.float64], own: Sequence[_Moved]) -> tuple[float | None, float]:
    """Return by what after − before must be multiplied to come nearest to what was sent, and how alike they are."""
    movements: list[NDArray[np.float64]] = []
    for entry in own:
        movement = _movement(entry)
        if movement is None:
            return None, 0.0
        movements.append(movement)
    difference = _join(movements)
    moved = _cosine(whole, difference)
    if not moved:
        return None, 0.0
    return float(whole @ difference / (difference @ difference)), moved


def _join(arrays: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate([array.astype(np.float64).reshape(-1) for array in arrays])


def _cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if np.isfinite(norms) and norms > 0 else 0.0
