"""Messages beside the training of rounds: evaluations, queries and their replies.

A record holds what they carry in plaintext, and names what it does not hold of them, such as arrays.
"""

import base64
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import short
from fedattack.record.format import decode_metric, encode_metric, keep_name
from fedattack.record.schema import OTHERS_DTYPES

MAX_OTHERS = 4 * 2**20
"""Characters of what messages beside the training of one round hold in plaintext; what is beyond is named alone."""

MAX_ARRAYS = 4 * 2**20
"""Characters of the arrays of such messages that a run's record holds; arrays that come later are named alone."""

MAX_NUMBERS = 2**16
"""Numbers of such an array; a larger one is named alone."""

MAX_KINDS = 64
"""Kinds of messages that a manifest tells apart among those that are not in the record."""

MAX_NAMES = 64
"""Names of arrays, and of metrics, of one such kind."""

FURTHER = "*"
"""The type under which messages are counted once there are :data:`MAX_KINDS` kinds."""

_MAX_SIDE = 2**50

Way = Literal["sent", "reply"]
"""Whether the server sent a message, or got it."""


@dataclass(frozen=True)
class Others:
    """What messages beside the training of a round hold in plaintext; of some that are alike, with all their nodes.

    Attributes
    ----------
    type
        Flower's type of the message, such as ``evaluate`` or ``query.forward``.
    way
        Whether the server sent it, or got it as a reply.
    nodes
        To whom, or from whom.
    metrics
        All configs and metrics.
    reason
        Why a reply has nothing, where an error came in its place.
    line
        How many lines of the record stand before it.
    arrays
        By the names of their records and their own, the arrays of messages that carry no model, as far as they are
        kept.
    """

    type: str
    way: Way
    nodes: tuple[str, ...]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    line: int = 0
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict, compare=False)

    @property
    def size(self) -> int:
        """About how many characters they take."""
        return len(json.dumps(self.to_entry()))

    def to_entry(self) -> dict[str, Any]:
        """Return what a line or the manifest says."""
        entry: dict[str, Any] = {
            "type": keep_name(self.type),
            "way": self.way,
            "nodes": list(map(keep_name, self.nodes)),
            "metrics": {keep_name(str(key)): encode_metric(value) for key, value in self.metrics.items()},
        }
        if self.arrays:
            entry["arrays"] = [_encode_array(name, array) for name, array in self.arrays.items()]
        if self.reason:
            entry["reason"] = short(self.reason)
        return entry

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any], line: int) -> "Others":
        """Read what :meth:`to_entry` gave, from before the line of this number."""
        metrics = {key: decode_metric(value) for key, value in entry["metrics"].items()}
        arrays = {array["name"]: _decode_array(array) for array in entry.get("arrays", ())}
        return cls(entry["type"], entry["way"], tuple(entry["nodes"]), metrics, entry.get("reason", ""), line, arrays)

    def without(self, nodes: Iterable[str]) -> "Others | None":
        """Return the same without some nodes; ``None`` if no node is left."""
        dropped = {*nodes}
        left = tuple(node for node in self.nodes if node not in dropped)
        if not left:
            return None
        return replace(self, nodes=left)


def are_kept(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Say whether the arrays of a message are few, small and numbers, so that a record may hold them."""
    if len(arrays) > MAX_NAMES:
        return False
    return all(array.size <= MAX_NUMBERS and array.dtype.name in OTHERS_DTYPES for array in arrays.values())


def _encode_array(name: str, array: NDArray[Any]) -> dict[str, Any]:
    data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    described = {"name": keep_name(name), "shape": [*array.shape], "dtype": array.dtype.name}
    return described | {"base64": base64.b64encode(data).decode()}


def _decode_array(entry: Mapping[str, Any]) -> NDArray[Any]:
    """Read an array of the schema's form, which says that its numbers fit its shape."""
    dtype = np.dtype(entry["dtype"]).newbyteorder("<")
    return np.frombuffer(base64.b64decode(entry["base64"]), dtype).reshape(entry["shape"])


class Unrecorded:
    """Counts messages of which something is not in the record, and names what; from any thread.

    Attributes
    ----------
    changed
        Whether there are kinds that :meth:`entries` did not return yet.
    """

    def __init__(self, entries: Sequence[Mapping[str, Any]] = ()) -> None:
        self._lock = threading.Lock()
        # By kind: type, way and names, so that many messages take few entries.
        self._entries: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.changed = False
        for entry in entries:
            self._entries[_key(entry)] = dict(entry)

    def count(
        self,
        type: str,  # noqa: A002 - Flower's word
        way: Way,
        *,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        metrics: Iterable[str] = (),
        messages: int = 1,
    ) -> None:
        """Count messages of one kind; shapes and types of their arrays are those of the first."""
        described = []
        for name, array in list((arrays or {}).items())[:MAX_NAMES]:
            # Shapes come from clients: the schema has an upper bound for them.
            shape = [min(side, _MAX_SIDE) for side in array.shape]
            described.append({"name": keep_name(name), "shape": shape, "dtype": str(array.dtype)})
        names = [keep_name(str(name)) for name in metrics][:MAX_NAMES]
        new = {"type": keep_name(type), "way": way, "messages": 0, "arrays": described, "metrics": names}
        with self._lock:
            key = _key(new)
            # Two places are left for FURTHER, one for each way.
            if key not in self._entries and len(self._entries) >= MAX_KINDS - 2:
                new |= {"type": FURTHER, "arrays": [], "metrics": []}
                key = _key(new)
            if key not in self._entries:
                self._entries[key] = new
                self.changed = True
            self._entries[key]["messages"] += messages

    def entries(self) -> list[dict[str, Any]]:
        """Return what the manifest says."""
        with self._lock:
            self.changed = False
            return [dict(entry) for entry in self._entries.values()]


def _key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    arrays = tuple(array["name"] for array in entry["arrays"])
    return entry["type"], entry["way"], arrays, tuple(entry["metrics"])


def _describe_array(array: Mapping[str, Any]) -> str:
    shape = ", ".join(map(str, array["shape"]))
    return f"{array['name']} ({shape})"


def in_words(entry: Mapping[str, Any]) -> str:
    """Say what of some messages is not in the record: ``30 query replies with arrays embedding (200, 4) are not …``."""
    kind = "" if entry["type"] == FURTHER else f"{entry['type']} "
    one, many = ("reply", "replies") if entry["way"] == "reply" else ("message to a client", "messages to clients")
    words = f"{entry['messages']:,} {kind}{one if entry['messages'] == 1 else many}"
    if entry["type"] == FURTHER:
        words += " of further kinds"
    parts = []
    if entry["arrays"]:
        arrays = ", ".join(map(_describe_array, entry["arrays"]))
        parts.append(f"arrays {short(arrays, 160)}")
    if entry["metrics"]:
        parts.append(f"metrics {short(', '.join(entry['metrics']), 160)}")
    if parts:
        words += f" with {' and '.join(parts)}"
    return f"{words} {'is' if entry['messages'] == 1 else 'are'} not in this record"
