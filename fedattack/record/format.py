"""The record on disk: names, versions and the encoding of its index. FORMAT.md describes it for other readers."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fedattack.base.errors import RecordError, short
from fedattack.base.files import seal
from fedattack.base.untrusted import parse_json, validate
from fedattack.record.schema import LINE_FORM, MANIFEST_FORM, MAX_NAME, MAX_VALUE, Server

FORMAT = "fedattack-record"
VERSION = 2

MANIFEST = "manifest.json"
INDEX = "rounds.jsonl"
ROUNDS = "rounds"
FINAL = "final.safetensors"
SIGNATURE = "manifest.sig"

RUN = "flower-run"
"""Fact of a manifest: Flower's id of the run, by which witnesses of its clients are told from those of other runs."""

COUNT_KEY = "num-examples"
"""The name of an example count in plaintext, unless a reply says another."""

COUNT_KEYS = (COUNT_KEY, "num_examples")
"""The names under which clients of either generation of Flower send their example count, if the app says no other."""

View = Literal["individual", "aggregate"]
Status = Literal["ok", "failed", "missing", "late"]
Arrays = Mapping[str, NDArray[Any]]

UNFINISHED = "the run ended before the round did"
"""Why no node has a reply in a round that was not over when the run ended."""

VIEWS: tuple[View, ...] = ("individual", "aggregate")
SERVERS: tuple[Server, ...] = get_args(Server)
"""What a server does: it follows the protocol, or how it departs from it."""


@dataclass(frozen=True)
class Messages:
    """What server and clients send each other in one protocol.

    Attributes
    ----------
    reply, replies
        What a client sends, beside its example count and its metrics, in words; and what all of them send, in one.
    sends_model
        Whether the server sends a model, so that what the record calls common is one.
    sends_back
        Whether clients send a model back, so that an update is what they sent minus what they received.
    """

    reply: str
    replies: str
    sends_model: bool
    sends_back: bool


PROTOCOLS: Mapping[str, Messages] = {
    "fedavg": Messages("its model", "models", sends_model=True, sends_back=True),
    "fedsgd": Messages("the average gradient over its examples", "gradients", sends_model=True, sends_back=False),
    "fedmd": Messages("its predictions on the public records", "predictions", sends_model=False, sends_back=False),
}
"""All protocols, one row each."""

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
        return cls(name, tuple(array.shape), str(array.dtype), "parameter").rename(name)

    @property
    def size(self) -> int:
        """Its number of entries."""
        return math.prod(self.shape)

    def rename(self, name: str) -> "Parameter":
        """Return the same array under another name, which says whether it is a buffer."""
        buffer = name.rsplit(".", 1)[-1] in _BUFFER_SUFFIXES
        return replace(self, name=name, role="buffer" if buffer else "parameter")

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Parameter":
        """Read an entry of the manifest's table."""
        return cls(value["name"], tuple(value["shape"]), value["dtype"], value["role"])


_SEAL = re.compile(rb',"check":"([0-9a-f]{64})"\}')
_SEAL_LENGTH = len(b',"check":""}') + 64


def seal_line(value: Mapping[str, Any], previous: str) -> tuple[bytes, str]:
    """Encode a line of the index, which carries the seal of the line before; returns it with its own seal."""
    sealed = seal({**value, "previous": previous})
    return _compact(sealed).encode(), sealed["check"]


def seal_manifest(manifest: Mapping[str, Any]) -> bytes:
    """Encode a manifest for people to read, with its seal."""
    if manifest.get("kept") is None:
        manifest = {key: value for key, value in manifest.items() if key != "kept"}
    return (json.dumps(seal(manifest), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def unseal_line(row: bytes, where: str) -> dict[str, Any]:
    """Decode what :func:`seal_line` encoded, and check its form.

    Raises
    ------
    RecordError
        If the line is not JSON, does not match its checksum, or has another form.
    """
    # The seal stands at a fixed place from the end: it is cut off before anything is parsed.
    seal_at_end = _SEAL.fullmatch(row[-_SEAL_LENGTH:])
    if seal_at_end is None:
        raise RecordError(f"{where} is not a sealed JSON object; the file is damaged")
    # What was sealed is the line without its seal.
    content = row[: -len(seal_at_end[0])] + b"}"
    if hashlib.sha256(content).hexdigest() != seal_at_end[1].decode():
        raise RecordError(f"{where} does not match its checksum; the file was changed or damaged")
    try:
        value = parse_json(row)
    except ValueError:
        raise RecordError(f"{where} is not a sealed JSON object; the file is damaged") from None
    return _read_form(LINE_FORM, value, where)


def unseal_manifest(data: bytes, where: str) -> dict[str, Any]:
    """Decode a manifest, whose numbers may stand on lines of their own, and check its form.

    ``kept``, which it has only where something was left out, is ``None`` elsewhere.

    Raises
    ------
    RecordError
        If it is not JSON, does not match its checksum, or is of a format or form that this version cannot read.
    """
    try:
        value = parse_json(data)
        # A manifest is pretty-printed: it is sealed in its compact form, and parsed before it is checked.
        check = value.pop("check")
        expected = seal(value)["check"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RecordError(f"{where} is not a sealed JSON object; the file is damaged") from None
    if check != expected:
        raise RecordError(f"{where} does not match its checksum; the file was changed or damaged")
    version = value.get("version")
    # `type` and not isinstance: true would count as version 1.
    if value.get("format") != FORMAT or type(version) is not int or version < VERSION:
        got = short(f"{value.get('format')!r} {version!r}", 60)
        raise RecordError(f"{where}: expected format {FORMAT!r} of version {VERSION}, got {got}")
    if version > VERSION:
        raise RecordError(
            f"{where}: format version {version} is newer than {VERSION}, which this fedattack reads; update fedattack"
        )
    _drop_former_keys(value, where)
    return {"kept": None} | _read_form(MANIFEST_FORM, value, where)


def _drop_former_keys(manifest: dict[str, Any], where: str) -> None:
    """Drop what a former writer said of arrays that it left out, where it left out none.

    Raises
    ------
    RecordError
        If the record lacks arrays of the model, or holds sketches in the place of updates.
    """
    what = ""
    if manifest.pop("left_out", []) != []:
        what = "lacks some arrays of the model"
    kept = manifest.get("kept")
    if isinstance(kept, dict):
        if kept.pop("layers", []) != []:
            what = "keeps only some arrays of the model"
        if kept.pop("sketch", None) is not None:
            what = "keeps sketches in place of updates"
    if what:
        raise RecordError(
            f"{where}: the record {what}, and this version of fedattack reads only whole updates; attack it with the "
            "version that wrote it, or record the run again"
        )


def _read_form(adapter: TypeAdapter[Any], value: Any, where: str) -> dict[str, Any]:
    return dict(validate(adapter, value, where, RecordError, "it is sealed, but not in the form that fedattack writes"))


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


_DEEPEST = 20


def keep_name(text: str) -> str:
    """Return a name from outside as it is; shorten one that is too long, and replace what is not Unicode."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= MAX_NAME:
        return text
    return short(text, MAX_NAME)


def encode_metric(value: Any, depth: int = 0) -> Any:
    """Make a metric fit for strict JSON without losing what a client sent (bytes, NaN and infinities included).

    What takes more than a megabyte, or is nested deeply, is no metric; of it only kind, size and SHA-256 are kept.
    """
    # item() makes a Python number of NumPy's, also of a zero-dimensional one.
    if isinstance(value, np.generic):
        value = value.item()
    # A bool is an int, and is asked for first.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _encode_number(value)
    if isinstance(value, bytes):
        if len(value) > MAX_VALUE:
            return _find_left_out(value)
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, str):
        # Lone surrogates, as of a file's name, are no Unicode.
        data = value.encode("utf-8", "replace")
        if len(data) > MAX_VALUE:
            return _find_left_out(data)
        return data.decode()
    # A depth that no client needs; deeper nesting could exhaust the stack of a reader.
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        entries = [encode_metric(entry, depth + 1) for entry in value]
        if len(json.dumps(entries)) > MAX_VALUE:
            return {"repr": f"a list of {len(entries)} entries, too large to keep"}
        return entries
    return {"repr": short(repr(value), MAX_VALUE)}


def _encode_number(value: float) -> float | dict[str, str]:
    """Return a number as it is, if JSON and other readers have it."""
    if isinstance(value, int):
        # What 64 bits hold, signed or not: readers in other languages have no larger integers.
        if -(2**63) <= value < 2**64:
            return value
        return {"repr": f"a whole number of {value.bit_length()} bits"}
    if math.isfinite(value):
        return value
    return {"float": repr(value)}


def _find_left_out(data: bytes) -> dict[str, str]:
    return {"repr": f"{len(data)} bytes, too many to keep, with the SHA-256 {hashlib.sha256(data).hexdigest()}"}


def decode_metric(value: Any) -> Any:
    """Undo :func:`encode_metric`."""
    if isinstance(value, dict):
        if "base64" in value:
            return base64.b64decode(value["base64"])
        if "float" in value:
            return float(value["float"])
        return value["repr"]
    if isinstance(value, list):
        return [decode_metric(entry) for entry in value]
    return value
