"""Which trees each client sends, of all that a record holds."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.replies import replied
from fedattack.base.errors import DataError, RecordError, short
from fedattack.record import Record
from fedattack.record.format import Arrays
from fedattack.threats.trees.booster import Booster, Tree, read_booster


@dataclass(frozen=True, eq=False)
class SentTrees:
    """One reply."""

    number: int  # Of its round.
    node: str  # Who sent it.
    count: int | None  # How many examples it says that it trained on; ``None`` if it does not say.
    booster: Booster  # The model that came back.
    trees: Sequence[Tree]  # The client's own new trees in it.
    common: Booster | None  # The model that was sent; ``None`` before there is one.


class ReplyReader:
    """Reads the trees of a record's replies, each model once.

    Attributes
    ----------
    notes
        Which replies were left out, and why.
    """

    def __init__(self, record: Record, most: int) -> None:
        self.notes: list[str] = []
        self._record = record
        self._most = most
        self._known: dict[bytes, Booster] = {}

    def read(self) -> Iterator[SentTrees]:
        """Yield the replies, at most so many of each client, from the first on."""
        counts: dict[str, int] = {}
        for round_ in self._record:
            self._known.clear()
            for reply in filter(replied, round_.observations):
                if counts.get(reply.node, 0) >= self._most:
                    continue
                where = f"round {round_.number}, client {short(reply.node, 40)}"
                try:
                    booster = self._read(reply.arrays, where)
                    common = self._read_common(reply.received, where)
                except (DataError, RecordError) as cause:
                    self.notes.append(f"{where} left out: {short(str(cause), 200)}")
                    continue
                counts[reply.node] = counts.get(reply.node, 0) + 1
                trees = _leave_out(booster.trees, common)
                count = None if reply.count is None else int(reply.count)
                yield SentTrees(round_.number, reply.node, count, booster, trees, common)

    def _read_common(self, arrays: Arrays | None, where: str) -> Booster | None:
        if arrays is None or not sum(np.asarray(array).size for array in arrays.values()):
            return None
        return self._read(arrays, f"{where}, the model that was sent")

    def _read(self, arrays: Arrays | None, where: str) -> Booster:
        data = read_bytes_of(arrays)
        if data is None:
            raise DataError(f"{where}: expected one array of bytes, got other arrays")
        digest = hashlib.sha256(data).digest()
        if digest not in self._known:
            self._known[digest] = read_booster(data, where)
        return self._known[digest]


def _leave_out(trees: Sequence[Tree], common: Booster | None) -> Sequence[Tree]:
    """Return the trees that were not sent to the client: in cyclic training it sends these back, too."""
    sent = () if common is None else common.trees
    if not sent or len(trees) <= len(sent):
        return trees
    for own, before in zip(trees, sent, strict=False):
        if not own.is_same(before):
            return trees
    return trees[len(sent) :]


def read_bytes_of(arrays: Mapping[str, NDArray[Any]] | None) -> bytes | None:
    """Return the bytes that a reply holds; ``None`` if it holds something else."""
    if arrays is None or len(arrays) != 1:
        return None
    (array,) = arrays.values()
    if array.dtype != np.uint8 or array.ndim != 1:
        return None
    return np.asarray(array).tobytes()


def may_hold_trees(record: Record) -> bool:
    """Say whether the manifest names one array of bytes; before the first round there is no model in it."""
    sent = record.parameters
    return len(sent) == 1 and len(sent[0].shape) == 1 and (sent[0].dtype == "uint8" or sent[0].shape == (0,))


def holds_trees(record: Record) -> bool:
    """Say whether a reply is there that can be read as a model of trees."""
    return may_hold_trees(record) and next(ReplyReader(record, 1).read(), None) is not None
