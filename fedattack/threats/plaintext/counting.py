"""Whole numbers that clients send: counts of classes and of values, labels, and the classes that a client holds."""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedattack.threats.plaintext.arrays import Sent
from fedattack.threats.plaintext.items import Known

BY_CLASS, BY_VALUE, LABELS, CLASSES = "counts by class", "counts by value", "labels", "classes held"
"""Kinds of what whole numbers are."""

# Columns whose values are counted, and the largest value.
_MOST_COLUMNS, _LARGEST = 64, 4_096

# Vectors of one name that are compared.
_MOST_VECTORS = 10_000

Whole = NDArray[np.int64]


class Tally:
    """What whole numbers of each client are, to be looked up: its counts, its labels, and its classes.

    Parameters
    ----------
    known
        Examples whose holders are known. Nothing is counted for clients of which not all are known.
    """

    def __init__(self, known: Known) -> None:
        self._known = known
        # By kind and contents: who has them, and how many bits tell them from an accident.
        self._entries: dict[tuple[str, bytes], dict[int, float]] = {}
        for client in np.flatnonzero(known.whole).tolist():
            rows = known.rows_of(client)
            y = known.y[rows]
            if len(rows) and known.classes and np.isfinite(y).all():
                labels = y.astype(np.int64)
                bits = self._bits_of_labels(labels)
                if labels.min() >= 0:
                    self._enter(BY_CLASS, np.bincount(labels), client, bits)
                self._enter(LABELS, np.sort(labels), client, bits)
                self._enter(CLASSES, np.unique(labels), client, self._bits_of_classes(labels))
            self._count_values(client, rows)

    def find(self, sender: int, sent: Sequence[Sent]) -> Iterator[tuple[str, list[int], float]]:
        """Yield the kinds of what arrays of one name are: the kind, whose it is, and the bits of the sender's own."""
        found: dict[str, dict[int, float]] = {}
        for vector in self._list_vectors(sent):
            keys = [(BY_CLASS, vector), (BY_VALUE, vector), (LABELS, np.sort(vector))]
            if len(np.unique(vector)) == len(vector):
                keys.append((CLASSES, np.sort(vector)))
            for kind, contents in keys:
                found.setdefault(kind, {}).update(self._entries.get((kind, _contents(kind, contents)), {}))
        for kind, holders in found.items():
            if holders:
                yield kind, sorted(holders), holders.get(sender, 0.0)

    def _list_vectors(self, sent: Sequence[Sent]) -> Iterator[Whole]:
        """Yield the arrays of whole numbers, and the rows of these."""
        for array in sent[:_MOST_VECTORS]:
            if not array.is_whole or array.values.size < 2 or np.abs(array.values).max() > 2**24:
                continue
            whole = array.values.astype(np.int64)
            yield whole.ravel()
            if whole.ndim == 2 and len(whole) > 1:
                yield from (row for row in whole[:_LARGEST] if len(row) > 1)

    def _enter(self, kind: str, vector: Whole, client: int, bits: float) -> None:
        self._entries.setdefault((kind, _contents(kind, vector)), {})[client] = bits

    def _count_values(self, client: int, rows: Whole) -> None:
        """Enter how often each value of a column stands in the client's examples, and in those of each class."""
        for column in self._counted:
            values = self._known.x[:, column].astype(np.int64)
            groups = [rows, *(rows[self._known.y[rows] == label] for label in self._known.classes)]
            for group in groups:
                if len(group):
                    bits = _bits_of_counts(np.bincount(values[group]), np.bincount(values))
                    self._enter(BY_VALUE, np.bincount(values[group]), client, bits)

    @cached_property
    def _counted(self) -> list[int]:
        """The columns of whole numbers from 0 on, a few of them."""
        x = self._known.x[:, :_MOST_COLUMNS]
        fits = (x == np.rint(x)).all(axis=0) & (x.min(axis=0) >= 0) & (x.max(axis=0) < _LARGEST)
        return np.flatnonzero(fits & (np.ptp(x, axis=0) > 0)).tolist()

    def _bits_of_labels(self, labels: Whole) -> float:
        classes = np.array(self._known.classes)
        of_all = self._known.y[np.isfinite(self._known.y)].astype(np.int64)
        counts = np.array([[(of == label).sum() for label in classes] for of in (labels, of_all)])
        return _bits_of_counts(counts[0], counts[1])

    def _bits_of_classes(self, labels: Whole) -> float:
        """Say how unlikely these classes are, by how many clients hold each."""
        bits = 0.0
        clients = np.flatnonzero(self._known.whole)
        for label in self._known.classes:
            of_class = self._known.y == label
            holding = sum(bool(of_class[self._known.holders == client].any()) for client in clients.tolist())
            share = (holding + 1) / (len(clients) + 2)
            bits -= math.log2(share if label in labels else 1 - share)
        return bits


def _contents(kind: str, vector: Whole) -> bytes:
    """Return what is compared of a vector: counts may go on with zeros."""
    if kind in (BY_CLASS, BY_VALUE):
        vector = np.trim_zeros(vector, "b")
    return vector.astype(np.int64).tobytes()


def _bits_of_counts(counts: Whole, of_all: Whole) -> float:
    """Say how unlikely such counts are of as many examples that are drawn from all: by the multinomial distribution."""
    shares = of_all[: len(counts)] / of_all.sum()
    some = counts > 0
    logarithm = gammaln(counts.sum() + 1) - gammaln(counts + 1).sum() + (counts[some] * np.log(shares[some])).sum()
    return max(0.0, -float(logarithm) / math.log(2.0))
