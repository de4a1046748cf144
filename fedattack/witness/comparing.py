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
    OF_ANOTHER,
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

WHOLE = "the whole model"
"""Stands for the name of an entry where all of a model is sent as one vector."""

# Fewer rows may be a model's outputs by accident.
_FEWEST_OUTPUTS = 3

# Batches of outputs that are looked at, the latest ones.
_MOST_BATCHES = 512

_CHANGING = ("LocalDpMod", "DefenceMod", "fixedclipping_mod", "adaptiveclipping_mod")


def are_changing(mods: Iterable[str]) -> bool:
    """Say whether a client's mods are known to change what it sends."""
    return any(mod.startswith(_CHANGING) for mod in mods)


@dataclass(frozen=True)
class _StateEntry:
    """One entry of a model's state: its name, and its values before and after training."""

    name: str
    before: NDArray[Any] | None
    after: NDArray[Any]
    parts: Sequence["_StateEntry"] = ()

    @classmethod
    def join(cls, entries: Sequence["_StateEntry"]) -> "_StateEntry":
        """Put entries one behind the other into one vector."""
        before = [entry.before for entry in entries if entry.before is not None]
        return cls(
            WHOLE,
            np.concatenate([array.reshape(-1) for array in before]) if len(before) == len(entries) else None,
            np.concatenate([entry.after.reshape(-1) for entry in entries]),
            entries,
        )

    def movement(self) -> NDArray[np.float64] | None:
        """Return after − before; ``None`` where that is not known, or no float."""
        if self.before is None or self.after.dtype.kind != "f":
            return None
        return self.after.astype(np.float64) - self.before.astype(np.float64)


@dataclass(frozen=True)
class _MatchedArray:
    """The entry that an array of a reply belongs to, and whether a whole model was sent before it."""

    entry: _StateEntry | None
    follows_a_model: bool


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
    others: Callable[[], Sequence[State]] = list,
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
    others
        What gives the states of the client's other models after training, such as of a generator.
    """
    start = dict(before) or _read_received(after, received)
    entries = [_StateEntry(name, start.get(name), array) for name, array in after]
    matches = [
        _match_vector(match, array, entries, learns)
        for match, array in zip(_match_entries(entries, names, sent), sent, strict=True)
    ]
    arrays: list[SentArray] = []
    for name, array, match in zip(names, sent, matches, strict=True):
        described = _describe(name, array, match.entry, received, entries)
        is_strange = described.kind in (UNKNOWN, NO_FLOATS) and match.entry is None
        if is_strange and find_outputs(array, outputs()) is not None:
            described = replace(described, kind=OUTPUTS)
        arrays.append(described)
    if any(array.kind in (UNKNOWN, NO_FLOATS) for array in arrays):
        arrays = _with_others(arrays, sent, others())
    arrays = _with_one_factor(arrays)
    arrays = _with_changed(arrays, sent, matches, is_changed=are_changing(mods))
    used = [each for match in matches if match.entry for each in (match.entry, *match.entry.parts)]
    for entry in entries:
        # By identity: entries hold arrays, which compare number by number.
        if entry.name in learns and not any(entry is each for each in used):
            arrays.append(SentArray(entry.name, entry.after.shape, str(entry.after.dtype), KEPT, entry.name))
    return arrays


def _with_others(arrays: list[SentArray], sent: Arrays, others: Sequence[State]) -> list[SentArray]:
    """Find the weights of other models of the client among arrays that are not understood."""
    known = [value for state in others for _, value in state]
    named = []
    for described, array in zip(arrays, sent, strict=True):
        if described.kind in (UNKNOWN, NO_FLOATS) and any(_is(value, array) for value in known):
            described = replace(described, kind=OF_ANOTHER, of="")
        named.append(described)
    return named


def _read_received(after: State, received: Sequence[Arrays]) -> dict[str, NDArray[Any]]:
    """Return what was received as the model before training, if it has the same shapes."""
    shapes = [array.shape for _, array in after]
    for state in received:
        if [array.shape for array in state] == shapes:
            return {name: array for (name, _), array in zip(after, state, strict=True)}
    return {}


def _match_entries(entries: Sequence[_StateEntry], names: Sequence[str], sent: Arrays) -> list[_MatchedArray]:
    """Find the entry of a model that each array of a reply belongs to.

    Arrays are sent in the order of the model's entries, and often without their names. What comes after the last entry
    begins with the first one again: the reply has several states, such as weights and control variates.
    """
    by_name = {entry.name: entry for entry in entries}
    matches: list[_MatchedArray] = []
    following, models_before = 0, 0
    for name, array in zip(names, sent, strict=True):
        # If there are several records, a name begins with its record's key.
        named = by_name.get(name) or by_name.get(name.partition(".")[2])
        if named is not None and named.after.shape == array.shape:
            matches.append(_MatchedArray(named, models_before > 0))
            continue
        index = _find_next(entries, array, following)
        if index is None:
            matches.append(_MatchedArray(None, models_before > 0))
            continue
        if index < following:
            models_before += 1
        following = index + 1
        matches.append(_MatchedArray(entries[index], models_before > 0))
    return matches


def _match_vector(
    match: _MatchedArray, array: NDArray[Any], entries: Sequence[_StateEntry], learns: Collection[str]
) -> _MatchedArray:
    """Match a vector of no entry with all that training changes, or all numbers with a point, if it is as long."""
    if match.entry is not None or array.ndim != 1 or array.dtype.kind != "f":
        return match
    reals = [entry for entry in entries if entry.after.dtype.kind == "f"]
    for chosen in ([entry for entry in reals if entry.name in learns], reals):
        if len(chosen) > 1 and sum(entry.after.size for entry in chosen) == len(array):
            return replace(match, entry=_StateEntry.join(chosen))
    return match


def _find_next(entries: Sequence[_StateEntry], array: NDArray[Any], start: int) -> int | None:
    """Return the index of the next entry from ``start`` on, and from the first again, that an array may belong to."""
    order = [(start + step) % len(entries) for step in range(len(entries))]
    fitting = [index for index in order if entries[index].after.shape == array.shape]
    # Several entries may have one shape: what has the very numbers is the one.
    equal = [index for index in fitting if _is(entries[index].after, array)]
    return next(iter(equal or fitting), None)


def _is(known: NDArray[Any] | None, sent: NDArray[Any]) -> bool:
    """Say whether an array of a reply is a known one; floats and whole numbers of the same value are not the same."""
    return known is not None and (known.dtype.kind == "f") == (sent.dtype.kind == "f") and same([known], [sent])


def _describe(
    name: str,
    array: NDArray[Any],
    entry: _StateEntry | None,
    received: Sequence[Arrays],
    entries: Sequence[_StateEntry],
) -> SentArray:
    """Say what an array is, by itself; the first that fits counts."""
    described = SentArray(
        short(name), array.shape, str(array.dtype), UNKNOWN, "" if entry is None else short(entry.name)
    )
    if entry is not None and entry.parts:
        parts = tuple(short(part.name) for part in entry.parts)
        described = replace(described, parts=parts, shapes=tuple(part.after.shape for part in entry.parts))
    if array.dtype.kind not in "fiub":
        return replace(described, kind=NO_FLOATS)
    # Before zeros: a bias may well be zero still.
    if entry is not None and _is(entry.after, array):
        return replace(described, kind=UNCHANGED if _is(entry.before, array) else WEIGHTS)
    if array.dtype.kind != "f":
        return replace(described, kind=_kind_of_integers(array, entry))
    if not array.any():
        return replace(described, kind=ZEROS)
    # What was received array by array may be sent back as one vector.
    if _is_received(array, received) or (entry is not None and _is(entry.before, array)):
        return replace(described, kind=UNCHANGED)
    if entry is not None:
        return _with_factor(described, array, entry)
    if any(_is_slice(array, other.after) for other in entries):
        return replace(described, kind=SLICE)
    return described


def find_outputs(array: NDArray[Any], outputs: Sequence[NDArray[Any]]) -> range | None:
    """Return the indices of batches for which a model returned an array, on end; ``None`` if it returned it for none.

    It may be sent as it is, as probabilities or as classes.
    """
    if array.ndim not in (1, 2) or len(array) < _FEWEST_OUTPUTS:
        return None
    # Runs of batches that end at each one, the latest first, as long as the array: a client that evaluates afterwards
    # has outputs behind those that it sends.
    for last in range(len(outputs), max(0, len(outputs) - _MOST_BATCHES), -1):
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
                return range(last - len(batches), last)
    return None


def _list_forms(outputs: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """Yield outputs (n, classes) as clients send them: as they are, as probabilities, their logarithms, and classes."""
    yield outputs
    if outputs.shape[1] == 1:
        yield outputs[:, 0]
        return
    # log softmax(z) = z − max z − log Σ exp(z − max z): nothing overflows.
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    yield logarithms
    yield np.exp(logarithms)
    yield outputs.argmax(axis=1).astype(np.float64)


def _are_close(array: NDArray[Any], form: NDArray[np.float64]) -> bool:
    return array.shape == form.shape and np.allclose(array, form, rtol=_EXACT, atol=_EXACT * np.abs(form).max())


def _is_received(array: NDArray[Any], received: Sequence[Arrays]) -> bool:
    return any(_is(other, array) for state in received for other in state)


def _with_factor(described: SentArray, array: NDArray[Any], entry: _StateEntry) -> SentArray:
    """Say that an array is a difference times a factor, if it is."""
    factor = _factor(array, entry)
    if factor is None:
        return described
    is_one = abs(factor - 1) < _EXACT
    return replace(described, kind=DIFFERENCE if is_one else SCALED, least=factor, most=factor)


def _kind_of_integers(array: NDArray[Any], entry: _StateEntry | None) -> str:
    if entry is None:
        return NO_FLOATS
    after = entry.after
    if after.dtype.kind != "f":
        # Such as the count of batches that batch norm has seen.
        moved = None if entry.before is None else after.astype(np.int64) - entry.before.astype(np.int64)
        return DIFFERENCE if moved is not None and np.array_equal(moved, array) else NO_FLOATS
    # Who quantises may send bytes. NumPy knows no bfloat16: it is the upper half of a float32.
    single = np.ascontiguousarray(after, np.float32)
    upper = (single.view(np.uint32) >> 16).astype(np.uint16)
    forms = {single.tobytes(), single.astype(np.float16).tobytes(), upper.tobytes()}
    return OTHER_TYPE if array.tobytes() in forms else NO_FLOATS


def _is_slice(array: NDArray[Any], whole: NDArray[Any]) -> bool:
    """Say whether an array is what a larger one begins with, along each axis."""
    fits = (
        array.ndim == whole.ndim and array.size and all(a <= b for a, b in zip(array.shape, whole.shape, strict=True))
    )
    return bool(fits) and _is(np.ascontiguousarray(whole[tuple(slice(size) for size in array.shape)]), array)


def _factor(array: NDArray[Any], entry: _StateEntry) -> float | None:
    """Return by what after − before must be multiplied to give an array; ``None`` if nothing does."""
    moved = entry.movement()
    if moved is None or not moved.any():
        return None
    values = array.astype(np.float64)
    # The factor with the least squares of errors.
    factor = float((values * moved).sum() / (moved * moved).sum())
    rest = float(np.linalg.norm(values - factor * moved))
    return factor if factor and rest < _EXACT * float(np.linalg.norm(values)) else None


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
    arrays: list[SentArray], sent: Arrays, matches: Sequence[_MatchedArray], *, is_changed: bool
) -> list[SentArray]:
    """Find weights, and differences, that noise or compression has changed: those that still go the same way."""
    # A reply is of weights or of differences, and not of both.
    if any(array.least is not None for array in arrays):
        return arrays
    unknown = _find_unknown(arrays, sent, matches)
    if not unknown:
        return arrays
    # All together: noise may drown a short array, and hardly a whole model.
    numbers = _join([sent[index] for index in unknown])
    kind, factor = _find_change(numbers, [*unknown.values()], is_changed=is_changed)
    changed = list(arrays)
    for index in unknown:
        changed[index] = replace(arrays[index], kind=kind, least=factor, most=factor)
    return changed


def _find_change(
    numbers: NDArray[np.float64], entries: Sequence[_StateEntry], *, is_changed: bool
) -> tuple[str, float | None]:
    """Return what the numbers of some entries are, and the factor of differences."""
    weights = _cosine(numbers, _join([entry.after for entry in entries]))
    factor, moved = _compare_with_movement(numbers, entries)
    if is_changed and abs(moved) >= _ALIKE and abs(moved) > weights:
        return CHANGED_DIFFERENCE, factor
    if is_changed or weights >= _ALIKE:
        return CHANGED, None
    return UNKNOWN, None


def _find_unknown(
    arrays: Sequence[SentArray], sent: Arrays, matches: Sequence[_MatchedArray]
) -> dict[int, _StateEntry]:
    """Return the entries of arrays that were not understood, by the indices of these in the reply."""
    unknown: dict[int, _StateEntry] = {}
    for index, match in enumerate(matches):
        # What follows the model's own arrays in a reply is no second model.
        if match.entry is None or match.follows_a_model:
            continue
        if arrays[index].kind == UNKNOWN and sent[index].dtype.kind == "f":
            unknown[index] = match.entry
    return unknown


def _compare_with_movement(numbers: NDArray[np.float64], entries: Sequence[_StateEntry]) -> tuple[float | None, float]:
    """Return by what after − before must be multiplied to come nearest to what was sent, and how alike they are."""
    movements: list[NDArray[np.float64]] = []
    for entry in entries:
        movement = entry.movement()
        if movement is None:
            return None, 0.0
        movements.append(movement)
    difference = _join(movements)
    moved = _cosine(numbers, difference)
    if not moved:
        return None, 0.0
    return float(numbers @ difference / (difference @ difference)), moved


def _join(arrays: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate([array.astype(np.float64).reshape(-1) for array in arrays])


def _cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if np.isfinite(norms) and norms > 0 else 0.0
