"""What each array of clients' replies is, as far as the record itself shows it; neither a model nor a witness is asked.

An array is judged by its numbers, by the arrays beside it, and by what the server makes of all clients' arrays in the
next model. What none of these shows is :data:`UNKNOWN`.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from fedattack.attacks.registry import find_content
from fedattack.attacks.replies import replied
from fedattack.base.errors import RecordError, short
from fedattack.record import Record, Round
from fedattack.record.format import Arrays
from fedattack.record.views import ChangedEntries

ZEROS = "zeros"
AS_RECEIVED = "as received"
AVERAGED = "averaged by the server, as weights or predictions are"
ADDED = "added by the server, as differences are"
SUBTRACTED = "subtracted by the server, as gradients are"
NEAR = "near what the server sent, as weights are"
CENTRES = "means of groups, as centres are: averaged by the counts beside them"
INDICES = "indices of entries of the model"
VALUES = "values that take the place of entries of the model"
CHANGES = "differences at entries of the model"
SIZES = "counts that add up to the number of examples, as sizes of groups do"
COUNTS = "whole numbers, as counts are"
OF_GROUPS = "statistics: a row for each group that is counted beside it"
ONE_EACH = "one value for each example"
PROBABILITIES = "probabilities, as predictions are"
BY_KEY = "vectors by keys that differ from client to client, as prototypes do"
RANDOM_BYTES = "bytes that look random, encrypted or compressed: nothing is claimed of them"
COMPRESSED = "compressed bytes: nothing is claimed of them"
MASKED = "whole numbers that look random, as under a mask or a cipher: nothing is claimed of them"
LARGE_INTEGERS = "texts of large whole numbers, as ciphers give: nothing is claimed of them"
TEXTS = "texts"
SUMMED = "seen in a sum of clients alone"
UNKNOWN = "not understood"

_MOST_ARRAYS = 2048

# Clients of a round that are looked at, bytes of their arrays, and entries of each that are compared.
_CLIENTS, _MOST_BYTES, _ENTRIES = 64, 2**28, 4096

# Two vectors of which one is a multiple of the other, but for float32's rounding and a server's momentum.
_SAME_WAY = 0.99
_ALIKE = 0.9
_EQUAL = 1e-3

# float32's rounding, and how far a sum of shares may be from 1 that are found by least squares.
_ROUNDING, _ROUNDED_SHARES = 1e-6, 0.01

# Fewer bytes may have any histogram; chi-square of 256 values beyond which bytes are not uniform (255 + 5 √510).
_FEWEST_BYTES, _UNIFORM = 1024, 368.0

# Kolmogorov's statistic √n D beyond which numbers are not uniform (p = 0.001), and the least bits and numbers.
_KOLMOGOROV, _FEWEST_BITS, _FEWEST_INTEGERS = 1.95, 20, 64

_MAGIC = (b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ", b"PK\x03\x04")

# At least 512 bits, as hexadecimal or decimal digits.
_LARGE_INTEGER = re.compile(r"(0x)?[0-9a-fA-F]{128,}")

# Fewer rows may add up to 1 by accident.
_FEWEST_ROWS = 3

# The fewest values that count as one for each example: fewer numbers may be anything.
_FEWEST_EXAMPLES = 8

Row = dict[str, Any]


@dataclass(frozen=True)
class _Sent:
    """One reply: its node, its arrays, what the node had received, and of how many examples it says it is."""

    node: str
    arrays: Arrays
    received: Arrays
    count: float | None


@dataclass(frozen=True)
class _Exchange:
    """The replies of one round, the model that the server had sent, and the next one."""

    replies: Sequence[_Sent]
    common: Arrays
    after: Arrays
    is_whole: bool

    @classmethod
    def of(cls, round_: Round, most: int) -> "_Exchange":
        """Read at most so many replies of a round."""
        observed = [*filter(replied, round_.observations)]
        common = _read(round_.common)
        replies = []
        for reply in observed[:most]:
            received = common
            if reply.singled_out:
                received = _read(reply.received)
            replies.append(_Sent(reply.node, _read(reply.arrays), received, reply.count))
        return cls(replies, common, _read(round_.after), len(replies) == len(observed))

    def shares(self) -> Iterator[NDArray[np.float64]]:
        """Yield the shares that clients may have in the server's mean: equal ones, and those of their examples."""
        count = len(self.replies)
        yield np.full(count, 1 / count)
        examples = np.array([reply.count or 0 for reply in self.replies], dtype=np.float64)
        if examples.all():
            yield examples / examples.sum()


def find_kinds(record: Record) -> list[Row]:
    """Say of each array in replies what it is: rows of ``array``, ``shape``, ``dtype``, ``kind`` and ``clients``.

    No more is read than the replies of two rounds.
    """
    if record.view == "aggregate":
        return [
            {
                "array": short(each.name),
                "shape": [*each.shape],
                "dtype": each.dtype,
                "kind": SUMMED,
                "clients": max(1, len(record.nodes)),
            }
            for each in record.parameters[:_MOST_ARRAYS]
        ]
    content = find_content(record)
    sparse = find_sparse(record)
    found: dict[tuple[str, str, tuple[int, ...], str], list[str]] = {}
    for exchange in _sample(record):
        keys = _list_keys(exchange)
        for reply in exchange.replies:
            for name, array in reply.arrays.items():
                kind = content
                if not kind:
                    kind = _kind_of(name, array, reply, exchange, sparse, is_keyed=name in keys)
                found.setdefault((name, reply.node, array.shape, str(array.dtype)), []).append(kind)
    clients: dict[tuple[str, tuple[int, ...], str, str], int] = {}
    for (name, _, shape, dtype), kinds in found.items():
        row = name, shape, dtype, _join(kinds)
        clients[row] = clients.get(row, 0) + 1
    rows: list[Row] = []
    for (name, shape, dtype, kind), count in list(clients.items())[:_MOST_ARRAYS]:
        rows.append({"array": short(name), "shape": [*shape], "dtype": dtype, "kind": kind, "clients": count})
    return rows


def find_sparse(record: Record) -> ChangedEntries | None:
    """Find out how replies of indices and values are put back into the model; ``None`` if they are something else.

    Indices count through all arrays that the server sends, in their order. What the server makes of them shows whether
    values are added, and times which factor, or take the entries' place.
    """
    found = None
    for exchange in _sample(record):
        # Nobody knows what the server made of a part of the replies.
        if not exchange.replies or not exchange.is_whole:
            return None
        names = _find_pair(exchange)
        if names is None:
            return None
        read = _read_pair(exchange, *names)
        # Rounds that say different things say nothing.
        if read is None or (found is not None and (read.step is None) != (found.step is None)):
            return None
        found = found or read
    return found


def _sample(record: Record) -> Iterator[_Exchange]:
    """Yield the first round that has replies, and the last one."""
    # Files of gigabytes are not read for a table.
    size = sum(np.dtype(each.dtype).itemsize * each.size for each in record.parameters)
    most = max(1, min(_CLIENTS, _MOST_BYTES // max(size, 1)))
    with_replies = [round_ for round_ in record if any(map(replied, round_.observations))]
    # It is often not known what the last round led to.
    followed = [round_ for round_ in with_replies if round_.after is not None]
    chosen = {round_.seq: round_ for round_ in (with_replies[:1] + (followed or with_replies)[-1:])}
    for round_ in chosen.values():
        yield _Exchange.of(round_, most)


def _read(arrays: Arrays | None) -> dict[str, NDArray[Any]]:
    """Read arrays, without those whose file is damaged: whoever judges says which it is."""
    read = {}
    for name in [*(arrays or {})][:_MOST_ARRAYS]:
        try:
            read[name] = np.asarray((arrays or {})[name])
        except RecordError:
            continue
    return read


def _list_keys(exchange: _Exchange) -> set[str]:
    """Name vectors of one length that some clients send and others do not: their names are keys."""
    shapes: dict[str, tuple[int, ...]] = {}
    senders = Counter[str]()
    for reply in exchange.replies:
        senders.update(reply.arrays.keys())
        shapes |= {name: array.shape for name, array in reply.arrays.items() if array.dtype.kind == "f"}
    keys = {name for name in shapes if senders[name] < len(exchange.replies)}
    # Those that all happen to have are of the same form.
    forms = {shapes[name] for name in keys}
    if len(forms) != 1 or len(form := forms.pop()) != 1 or form[0] < 2:
        return set()
    return {name for name, shape in shapes.items() if shape == form}


def _join(kinds: Sequence[str]) -> str:
    """Say what an array is by what it was in several rounds."""
    telling = {kind for kind in kinds if kind not in (ZEROS, AS_RECEIVED, NEAR, UNKNOWN)}
    if len(telling) == 1:
        return telling.pop()
    # Two rounds that say different things say nothing.
    if telling or UNKNOWN in kinds:
        return UNKNOWN
    return NEAR if NEAR in kinds else kinds[0]


def _kind_of(
    name: str,
    array: NDArray[Any],
    reply: _Sent,
    exchange: _Exchange,
    sparse: ChangedEntries | None,
    *,
    is_keyed: bool,
) -> str:
    """Say what one array of a reply is; the first that fits counts."""
    if array.dtype.kind not in "fiub":
        return _kind_of_texts(array)
    if not array.size:
        return UNKNOWN
    if sparse is not None and name == sparse.indices:
        return INDICES
    if sparse is not None and name == sparse.values:
        return VALUES if sparse.step is None else CHANGES
    if kind := _kind_of_bytes(array):
        return kind
    if is_keyed:
        return BY_KEY
    before = reply.received.get(name)
    if before is not None and before.shape == array.shape:
        return _kind_beside(name, array, before, reply, exchange)
    return _kind_alone(array, reply)


def _kind_beside(name: str, array: NDArray[Any], before: NDArray[Any], reply: _Sent, exchange: _Exchange) -> str:
    """Say what an array is of which the client had received another one of its name and shape."""
    if np.array_equal(before, array):
        return AS_RECEIVED
    if not array.any():
        return ZEROS
    # Rows that add up to 1 are no weights, whatever the server makes of them.
    if are_probabilities(array):
        return PROBABILITIES
    # A server adds them up, as it adds differences.
    if array.size > 1 and array.sum() == reply.count and _are_counts(array):
        return SIZES
    if kind := _kind_by_use(name, exchange):
        return kind
    if _are_spread_evenly(array):
        return MASKED
    if _is_of_groups(array, reply):
        return OF_GROUPS
    return NEAR if _cosine(_thin(array), _thin(before)) >= _ALIKE else UNKNOWN


def _kind_alone(array: NDArray[Any], reply: _Sent) -> str:
    """Say what an array is of which the client had received none."""
    if not array.any():
        return ZEROS
    if are_probabilities(array):
        return PROBABILITIES
    if _are_spread_evenly(array):
        return MASKED
    if _are_counts(array):
        return SIZES if array.sum() == reply.count else COUNTS
    if _is_of_groups(array, reply):
        return OF_GROUPS
    if array.ndim in (1, 2) and array.shape[0] == reply.count and len(array) >= _FEWEST_EXAMPLES:
        return ONE_EACH
    return UNKNOWN


def _kind_of_texts(array: NDArray[Any]) -> str:
    if array.dtype.kind not in "US" or not array.size:
        return UNKNOWN
    texts = [str(each) for each in array.astype(np.str_).reshape(-1)[:_CLIENTS]]
    if all(map(_LARGE_INTEGER.fullmatch, texts)):
        return LARGE_INTEGERS
    return TEXTS


def _kind_of_bytes(array: NDArray[Any]) -> str:
    """Say what an array of single bytes is, if it is not plainly numbers."""
    if array.dtype.itemsize != 1 or array.dtype.kind == "b" or array.ndim != 1:
        return ""
    raw = np.ascontiguousarray(array).view(np.uint8)
    if raw[:8].tobytes().startswith(_MAGIC):
        return COMPRESSED
    return RANDOM_BYTES if _are_uniform_bytes(raw) else ""


def _are_uniform_bytes(raw: NDArray[np.uint8]) -> bool:
    """Say whether all values of a byte are as frequent as in random bytes, by Pearson's chi-square."""
    raw = raw[: 2**20]
    if len(raw) < _FEWEST_BYTES:
        return False
    expected = len(raw) / 256
    counts = np.bincount(raw, minlength=256)
    return float(((counts - expected) ** 2 / expected).sum()) < _UNIFORM


def _are_spread_evenly(array: NDArray[Any]) -> bool:
    """Say whether whole numbers are uniform over the numbers of so many bits, with or without a sign."""
    if array.dtype.kind not in "iu":
        return False
    least, most = int(array.min()), int(array.max())
    bits = max(most, -least - 1).bit_length()
    if bits < _FEWEST_BITS or array.size < _FEWEST_INTEGERS:
        return False
    low, high = 0.0, 2.0**bits
    if least < 0:
        low = -high
    numbers = np.sort(_thin(array))
    uniform = (numbers - low) / (high - low)
    steps = np.arange(len(numbers) + 1) / len(numbers)
    distance = max(float((steps[1:] - uniform).max()), float((uniform - steps[:-1]).max()))
    return distance * math.sqrt(len(numbers)) < _KOLMOGOROV


def are_probabilities(array: NDArray[Any]) -> bool:
    """Say whether each of a few rows, or more, is a distribution over classes, as it is or as logarithms."""
    if array.dtype.kind != "f" or array.ndim != 2 or len(array) < _FEWEST_ROWS or array.shape[1] < 2:
        return False
    rows = array[:_ENTRIES].astype(np.float64)
    if not np.isfinite(rows).all():
        return False
    if rows.min() < 0 and rows.max() <= 0:
        # exp(log p) is p; rows of zeros and ones would have no logarithm.
        rows = np.exp(rows)
    return bool(rows.min() >= 0 and np.allclose(rows.sum(axis=1), 1, atol=_EQUAL))


def _are_counts(array: NDArray[Any]) -> bool:
    numbers = _thin(array)
    return bool(np.isfinite(numbers).all() and (numbers >= 0).all() and (numbers == np.rint(numbers)).all())


def _list_sizes(array: NDArray[Any], reply: _Sent) -> list[NDArray[Any]]:
    """List the whole numbers of a reply that an array has a row for each of."""
    sizes = []
    for other in reply.arrays.values():
        if other is array or other.ndim != 1 or not array.ndim or other.dtype.kind not in "fiu" or len(other) < 2:
            continue
        if len(other) == len(array) and other.any() and _are_counts(other):
            sizes.append(other)
    return sizes


def _is_of_groups(array: NDArray[Any], reply: _Sent) -> bool:
    """Say whether an array has as many rows as there are sizes of groups beside it."""
    return any(sizes.sum() == reply.count for sizes in _list_sizes(array, reply))


def _kind_by_use(name: str, exchange: _Exchange) -> str:
    """Say what an array is by what the server makes of all clients'; empty if that does not show."""
    arrays = [reply.arrays[name] for reply in exchange.replies if name in reply.arrays]
    before, after = exchange.common.get(name), exchange.after.get(name)
    if before is None or after is None or not exchange.is_whole or len(arrays) != len(exchange.replies):
        return ""
    if len({array.shape for array in arrays} | {before.shape, after.shape}) != 1:
        return ""
    if _are_averaged_by_counts(name, exchange, after):
        return CENTRES
    start, sent = _thin(before), np.stack([_thin(array) for array in arrays])
    moved = _thin(after) - start
    # The next array may be rounded, and so may what it is made of.
    least = _EQUAL * float(np.linalg.norm(moved)) + _ROUNDING * float(np.linalg.norm(start))
    for shares in exchange.shares():
        mean = shares @ sent
        if np.linalg.norm(mean - start - moved) <= least:
            return AVERAGED
        alike = _cosine(mean, moved)
        if abs(alike) >= _SAME_WAY:
            return ADDED if alike > 0 else SUBTRACTED
    # A server may weigh clients by another number than their examples.
    if sent.shape[1] >= 2 * len(sent) and moved.any():
        shares, rest = optimize.nnls((sent - start).T, moved)
        if rest <= least and abs(shares.sum() - 1) <= _ROUNDED_SHARES:
            return AVERAGED
    return ""


def _are_averaged_by_counts(name: str, exchange: _Exchange, after: NDArray[Any]) -> bool:
    """Say whether each row of the next array is the mean of clients' rows, by counts that stand beside these."""
    total = np.zeros(after.shape)
    counted = np.zeros(len(after)) if after.ndim == 2 else np.zeros(0)
    if not len(counted):
        return False
    for reply in exchange.replies:
        sizes = _list_sizes(reply.arrays[name], reply)
        if len(sizes) != 1:
            return False
        total += sizes[0][:, None] * np.nan_to_num(reply.arrays[name].astype(np.float64))
        counted += sizes[0]
    rows = counted > 0
    mean = total[rows] / counted[rows, None]
    return bool(np.linalg.norm(mean - after[rows]) <= _EQUAL * np.linalg.norm(mean))


def _find_pair(exchange: _Exchange) -> tuple[str, str] | None:
    """Name the only vector of indices, and the only one of as many values, in replies; ``None`` if there is none."""
    size = sum(array.size for array in exchange.common.values())
    pairs: set[tuple[str, str]] = set()
    for reply in exchange.replies:
        indices = [name for name, array in reply.arrays.items() if _are_indices(array, size)]
        if len(indices) != 1:
            return None
        values = []
        for name, array in reply.arrays.items():
            if array.dtype.kind == "f" and array.shape == reply.arrays[indices[0]].shape:
                values.append(name)
        if len(values) != 1:
            return None
        pairs.add((indices[0], values[0]))
    return pairs.pop() if len(pairs) == 1 else None


def _are_indices(array: NDArray[Any], size: int) -> bool:
    if array.dtype.kind not in "iu" or array.ndim != 1 or len(array) < 2:
        return False
    return bool(array.min() >= 0 and array.max() < size and len(np.unique(array)) == len(array))


def _read_pair(exchange: _Exchange, indices: str, values: str) -> ChangedEntries | None:
    """Hold the entries that clients name against those that the server changed, and say how it did."""
    into = tuple(name for name in exchange.common if name in exchange.after)
    if not into or len(into) != len(exchange.common):
        return None
    before, after = _flatten(exchange.common, into), _flatten(exchange.after, into)
    if before.shape != after.shape:
        return None
    moved = after - before
    named = np.zeros(len(moved), dtype=bool)
    for reply in exchange.replies:
        named[reply.arrays[indices]] = True
    # What nobody named stays.
    if not moved.any() or np.linalg.norm(moved[~named]) > _EQUAL * np.linalg.norm(moved):
        return None
    for shares in exchange.shares():
        total, weight = np.zeros(len(moved)), np.zeros(len(moved))
        for share, reply in zip(shares, exchange.replies, strict=True):
            total[reply.arrays[indices]] += share * reply.arrays[values].astype(np.float64)
            weight[reply.arrays[indices]] += share
        if abs(_cosine(total, moved)) >= _SAME_WAY:
            # With momentum the server's step has more in it than this round's values: least squares takes their part.
            return ChangedEntries(indices, values, into, float(total @ moved / (total @ total)))
        # Entries that nobody sent keep their values: the mean is over those who sent them, or over all.
        for mean in (total[named] / weight[named], total[named] + (1 - weight[named]) * before[named]):
            if np.linalg.norm(mean - after[named]) <= _EQUAL * np.linalg.norm(after[named]):
                return ChangedEntries(indices, values, into, None)
    return None


def _flatten(arrays: Mapping[str, NDArray[Any]], names: Sequence[str]) -> NDArray[np.float64]:
    return np.concatenate([arrays[name].astype(np.float64).reshape(-1) for name in names])


def _thin(array: NDArray[Any]) -> NDArray[np.float64]:
    """Return the entries of an array, and of a large one as many as are compared, spread evenly."""
    flat = array.reshape(-1)
    if len(flat) > _ENTRIES:
        flat = flat[np.linspace(0, len(flat) - 1, _ENTRIES).astype(np.int64)]
    return flat.astype(np.float64)


def _cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if np.isfinite(norms) and norms > 0 else 0.0
