"""The record on disk: names, versions and the encoding of its index. FORMAT.md describes it for other readers."""

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedattack.errors import RecordError

FORMAT = "fedattack-record"
VERSION = 1

MANIFEST = "manifest.json"
INDEX = "rounds.jsonl"
ROUNDS = "rounds"
FINAL = "final.safetensors"

View = Literal["individual", "aggregate"]
Protocol = Literal["fedavg", "fedsgd", "fedmd"]
Server = Literal["passive", "isolating"]
Status = Literal["ok", "failed", "missing", "late"]
Arrays = Mapping[str, NDArray[Any]]

UNFINISHED = "the run ended before the round did"
"""Why no node has a reply in a round that its run did not live to see the end of."""

VIEWS: tuple[View, ...] = ("individual", "aggregate")
PROTOCOLS: tuple[Protocol, ...] = ("fedavg", "fedsgd", "fedmd")
MODEL_PROTOCOLS: tuple[Protocol, ...] = ("fedavg", "fedsgd")
"""Protocols in which the server sends a model, so that what the record calls common is one."""
SERVERS: tuple[Server, ...] = ("passive", "isolating")

# Batch normalisation's running statistics travel with the weights but are no result of a gradient step. A server that
# sees only arrays can tell them by the names that PyTorch gives them.
_BUFFER_SUFFIXES = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Parameter:
    """One array of the model as the server saw it first: name, shape, dtype and whether it is a buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Literal["parameter", "buffer"]

    @classmethod
    def of(cls, name: str, array: NDArray[Any]) -> "Parameter":
        """Describe ``array``."""
        return cls(name, tuple(array.shape), str(array.dtype), "parameter").renamed(name)

    def renamed(self, name: str) -> "Parameter":
        """Return the same array under another name, which says whether it is a buffer."""
        buffer = name.rsplit(".", 1)[-1] in _BUFFER_SUFFIXES
        return replace(self, name=name, role="buffer" if buffer else "parameter")

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Parameter":
        """Read an entry of the manifest's table."""
        return cls(value["name"], tuple(value["shape"]), value["dtype"], value["role"])


def seal(value: Mapping[str, Any], *, indent: int | None = None) -> str:
    """Encode ``value`` as JSON that carries its own checksum in the key ``check``, on one line unless indented."""
    sealed = {**value, "check": _check(_canonical(value))}
    return (
        _canonical(sealed) if indent is None else json.dumps(sealed, indent=indent, ensure_ascii=False, allow_nan=False)
    )


def unseal(line: str, where: str) -> dict[str, Any]:
    """Decode what :func:`seal` encoded.

    Raises
    ------
    RecordError
        If the line is not JSON or does not match its checksum.
    """
    try:
        value = json.loads(line)
        check = value.pop("check")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RecordError(f"{where} is not a sealed JSON object; the file is damaged") from None
    if _check(_canonical(value)) != check:
        raise RecordError(f"{where} does not match its checksum; the file was changed or damaged")
    return dict(value)


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _check(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def encode_metric(value: Any) -> Any:
    """Make a metric fit for strict JSON without losing what a client sent (bytes, NaN and infinities included)."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, list | tuple):
        return [encode_metric(item) for item in value]
    if isinstance(value, np.generic):
        return encode_metric(value.item())
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"repr": repr(value)}


def decode_metric(value: Any) -> Any:
    """Undo :func:`encode_metric`."""
    if isinstance(value, dict):
        if "base64" in value:
            return base64.b64decode(value["base64"])
        if "float" in value:
            return float(value["float"])
        return value["repr"]
    if isinstance(value, list):
        return [decode_metric(item) for item in value]
    return value
