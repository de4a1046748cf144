"""The examples that what clients send is held against: all of them, or of many those that are nearest."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.held_examples import HeldByClients
from fedattack.record import Record
from fedattack.threats.plaintext.values import likeness, parts_of, plain_replies, vectors_of

MOST = 2_000
"""Vectors that are looked at."""

# Examples that vectors are compared with at once.
_AT_ONCE = 4_096

# Numbers of examples that are all kept.
_MOST_NUMBERS = 2**23


def known_examples(held: HeldByClients) -> Mapping[str, NDArray[Any]] | None:
    """Return what the judge of plaintext asks for in what clients hold; before a run nobody sent anything.

    Returns
    -------
    dict or None
        ``x`` (n, size) float32 and ``owners`` (n,): an example once for each copy that each client has of it, "" for
        nobody; ``labels`` (n,), NaN for none; ``whole`` (clients,), the clients of which these are all examples; and
        ``rows`` (n,), which row of its holder's table each is, -1 where that is not known. If there are more than can
        be kept, those that are nearest to a vector, without labels and rows. ``None`` where there are none.
    """
    if held.record is None or held.examples is None or not len(held.examples):
        return None
    x, owners = held.examples, held.holders
    pairs = [(row, name) for row, names in enumerate(owners) for name in (names or [""])]
    if len(pairs) * x[0].size > _MOST_NUMBERS:
        return nearest_examples(held.record, x, owners)
    rows = [row for row, _ in pairs]
    labels = np.full(len(x), np.nan)
    if held.labels is not None:
        labels = held.labels.astype(np.float64)
    return {
        "x": np.asarray(x, dtype=np.float32).reshape(len(x), -1)[rows],
        "owners": np.array([name for _, name in pairs], dtype=np.str_),
        "labels": labels[rows],
        "whole": np.array(sorted(held.whole), dtype=np.str_),
        "rows": np.array([held.rows.get(pair, -1) for pair in pairs], dtype=np.int64),
    }


def nearest_examples(
    record: Record, x: NDArray[Any], owners: Sequence[Sequence[str]]
) -> Mapping[str, NDArray[Any]] | None:
    """Return, for what clients send, the nearest example of each client and of nobody.

    Parameters
    ----------
    record
        What the server saw.
    x
        (n, …): all examples that are known.
    owners
        (n,): the clients that hold each, none for one of nobody.

    Returns
    -------
    dict or None
        ``x`` (m, size) float32 and ``owners`` (m,): an example once for each client that holds it, "" for nobody.
        ``None`` where no reply holds as many numbers as an example has.
    """
    if not len(x):
        return None
    flat = np.asarray(x, dtype=np.float32).reshape(len(x), -1)
    vectors = _read_vectors(record, flat.shape[1])
    if not len(vectors):
        return None
    chosen: set[tuple[int, str]] = set()
    for name, rows in _find_rows_by_owner(owners).items():
        for row in set(_nearest(vectors, flat[rows]).tolist()):
            chosen.add((rows[row], name))
    pairs = sorted(chosen)
    return {
        "x": flat[[row for row, _ in pairs]],
        "owners": np.array([name for _, name in pairs], dtype=np.str_),
    }


def _read_vectors(record: Record, size: int) -> NDArray[np.float64]:
    """Return vectors, and parts of vectors, of a size that clients send, (vectors, size): at most so many, spread."""
    blocks: list[NDArray[np.float64]] = []
    counts: list[int] = []
    for reply in plain_replies(record):
        parts = [parts_of(vector, size) for vector in vectors_of(reply.values).values()]
        if sum(map(len, parts)):
            blocks.append(np.concatenate(parts))
            counts.append(len(blocks[-1]) * len(reply.nodes))
    ends = np.cumsum([0, *counts])
    chosen = [np.zeros((0, size))]
    for index in np.linspace(0, ends[-1] - 1, min(MOST, int(ends[-1]))).astype(int):
        block = int(np.searchsorted(ends, index, side="right")) - 1
        # Each node sent all rows of the block.
        row = int(index - ends[block]) % len(blocks[block])
        chosen.append(blocks[block][row : row + 1])
    return np.concatenate(chosen)


def _find_rows_by_owner(owners: Sequence[Sequence[str]]) -> dict[str, list[int]]:
    """Return the examples that each client holds, and under "" those of nobody."""
    rows: dict[str, list[int]] = {}
    for row, names in enumerate(owners):
        for name in {*names} or {""}:
            rows.setdefault(name, []).append(row)
    return rows


def _nearest(vectors: NDArray[Any], examples: NDArray[Any]) -> NDArray[np.int64]:
    """Return the example that is likest to each vector."""
    best, nearest = np.full(len(vectors), -1.0), np.zeros(len(vectors), dtype=np.int64)
    for start in range(0, len(examples), _AT_ONCE):
        alike = likeness(vectors, examples[start : start + _AT_ONCE])
        of_block = alike.max(axis=1)
        better = of_block > best
        best[better] = of_block[better]
        nearest[better] = start + alike.argmax(axis=1)[better]
    return nearest
