"""Write and read what a witness notes: one ``.npz`` a node, so that it is whole or absent.

It holds the examples that are kept, the hashes of all that were seen, by which another process goes on, and everything
else as JSON in an array of bytes. Nothing is pickled.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, with_config
from typing_extensions import TypedDict

from fedattack.base.errors import ConfigError, short
from fedattack.base.files import make_private, write_npz
from fedattack.base.structured import fault
from fedattack.base.untrusted import PLAIN, Text, check_folder, parse_json, read_npz, validate
from fedattack.witness.seen import HASH, AskedToTrain, SeenExamples, Witness, WitnessedModel, WitnessedTraining
from fedattack.witness.sent import MOST_ARRAYS, Kind, SentArray

RUN_FOLDER = "run-"
"""What the name of the folder of one run begins with, before Flower's id of the run."""
FROZEN = "frozen"
"""Folder of weights that no client sends."""

_ABOUT = "about"
_ROLES = ("trained", "evaluated")
_HINT = "delete it, and run the app again"
_STRICT = ConfigDict(extra="forbid", strict=True)

_Count = Annotated[int, Field(ge=0, le=2**50)]
_Number = Annotated[float, Field(allow_inf_nan=False)]


@with_config(_STRICT)
class _ExamplesEntry(TypedDict):
    total: _Count
    counts: dict[Text, _Count]


@with_config(_STRICT)
class _WitnessModel(TypedDict):
    spec: Text | None
    arguments: dict[Text, JsonValue]
    input_shape: list[_Count]
    classes: _Count
    loss: Text | None
    why: Text
    personal: list[Text]
    frozen: NotRequired[Text]


@with_config(_STRICT)
class _Training(TypedDict):
    optimizer: Text
    lr: _Number | None
    momentum: _Number
    weight_decay: _Number
    batch_sizes: list[_Count]
    steps: _Count
    epochs: _Number | None
    augmented: bool | None
    together: Annotated[float, Field(ge=0, le=10**6, allow_inf_nan=False)]


_Plain = bool | int | _Number | Text
_Names = Annotated[list[Text], Field(max_length=100_000)]


@with_config(_STRICT)
class _AskedEntry(TypedDict):
    type: Text
    arrays: dict[Text, _Names]
    configs: dict[Text, dict[Text, _Plain | list[_Plain]]]


@with_config(_STRICT)
class _SentEntry(TypedDict):
    name: Text
    shape: Annotated[list[_Count], Field(max_length=32)]
    dtype: Text
    kind: Kind
    of: Text
    least: _Number | None
    most: _Number | None


@with_config(_STRICT)
class _About(TypedDict):
    node: Text
    client: Text
    trained: _ExamplesEntry
    evaluated: _ExamplesEntry
    model: _WitnessModel | None
    training: _Training | None
    mods: list[Text]
    notes: list[Text]
    run: Text
    private: dict[Text, Text | _Count | _Number]
    asked: _AskedEntry | None
    sends: Annotated[list[_SentEntry], Field(max_length=MOST_ARRAYS)]


_ADAPTER: TypeAdapter[_About] = TypeAdapter(_About)


def witness_file(folder: Path, node: str) -> Path:
    """Return where the witness of a node lies."""
    stem = node if PLAIN.fullmatch(node) else hashlib.sha256(node.encode()).hexdigest()
    return folder / f"{stem}.npz"


def write_witness(folder: Path, witness: Witness, memory: Mapping[str, NDArray[Any]] | None = None) -> Path:
    """Write a witness, in the place of an older one of its node, and return the file.

    Parameters
    ----------
    folder
        Made, for its owner alone, if it is not there.
    witness
        What to write.
    memory
        Further arrays, by which another process goes on; see :func:`read_memory`.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    make_private(folder)
    about: dict[str, Any] = {"node": witness.node, "client": witness.client}
    arrays: dict[str, NDArray[Any]] = {}
    for role, seen in (("trained", witness.trained), ("evaluated", witness.evaluated)):
        counts = {str(label): count for label, count in seen.counts.items()}
        about[role] = {"total": seen.total, "counts": counts}
        arrays |= {f"{role}_x": seen.x, f"{role}_y": seen.y, f"{role}_hashes": seen.hashes}
        arrays[f"{role}_places"] = seen.places
    about["model"] = None if witness.model is None else _entry_of(witness.model)
    about["training"] = None if witness.training is None else dict(vars(witness.training))
    about["mods"] = [short(mod) for mod in witness.mods]
    about["notes"] = [short(note) for note in witness.notes]
    about["run"] = witness.run
    about["private"] = dict(witness.private)
    about["asked"] = None if witness.asked is None else dict(vars(witness.asked))
    about["sends"] = [{**vars(array), "shape": [*array.shape]} for array in witness.sends]
    text = json.dumps(about, ensure_ascii=False, allow_nan=False)
    arrays[_ABOUT] = np.frombuffer(text.encode(), dtype=np.uint8)
    for name, array in (memory or {}).items():
        arrays[f"memory_{name}"] = array
    path = witness_file(folder, witness.node)
    write_npz(path, arrays)
    return path


def read_witnesses(folder: Path) -> list[Witness]:
    """Read all witnesses of a folder, by their nodes' names.

    Raises
    ------
    ConfigError
        In one line, if there is no such folder, or a file in it is no witness.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; expected one that a witness has written")
    check_folder(folder, ConfigError)
    witnesses = [read_witness(path) for path in sorted(folder.glob("[!.]*.npz"))]
    nodes = [witness.node for witness in witnesses]
    for node in nodes:
        if nodes.count(node) > 1:
            raise ConfigError(f"{folder} has two witnesses of the node {short(node, 60)}; keep one of them")
    return sorted(witnesses, key=lambda witness: witness.node)


def read_witness(path: Path) -> Witness:
    """Read one file.

    Raises
    ------
    ConfigError
        In one line, if it is no witness.
    """
    names = [_ABOUT]
    for role in _ROLES:
        names += [f"{role}_x", f"{role}_y", f"{role}_hashes", f"{role}_places"]
    arrays = read_npz(path, ConfigError, _HINT, *names)
    if arrays[_ABOUT].dtype != np.uint8:
        raise ConfigError(f"{path}: {_ABOUT}: expected bytes, got {arrays[_ABOUT].dtype}; {_HINT}")
    try:
        value = parse_json(arrays[_ABOUT].tobytes())
    except ValueError as cause:
        raise ConfigError(f"{path}: {_ABOUT} is no JSON ({short(str(cause), 100)}); {_HINT}") from None
    about = validate(_ADAPTER, value, f"{path}: {_ABOUT}", ConfigError, _HINT)
    return Witness(
        node=about["node"],
        client=about["client"],
        trained=_examples(path, "trained", about["trained"], arrays),
        evaluated=_examples(path, "evaluated", about["evaluated"], arrays),
        model=_model(about["model"], path.parent),
        training=_training(about["training"]),
        mods=tuple(about["mods"]),
        notes=tuple(about["notes"]),
        run=about["run"],
        private=about["private"],
        asked=_read_asked(about["asked"]),
        sends=tuple(map(_read_sent, about["sends"])),
    )


def read_memory(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """Read the further arrays of :func:`write_witness`.

    Raises
    ------
    ConfigError
        In one line, if they are not there.
    """
    arrays = read_npz(path, ConfigError, _HINT, *(f"memory_{name}" for name in names))
    return {name: arrays[f"memory_{name}"] for name in names}


def _examples(path: Path, role: str, about: _ExamplesEntry, arrays: Mapping[str, NDArray[Any]]) -> SeenExamples:
    x, y, hashes = arrays[f"{role}_x"], arrays[f"{role}_y"], arrays[f"{role}_hashes"]
    if hashes.dtype != np.uint8 or hashes.ndim != 2 or hashes.shape[1] != HASH:
        raise ConfigError(f"{path}: {role}_hashes: expected uint8 (n, {HASH}), got {hashes.dtype} {hashes.shape}")
    if y.dtype not in (np.int64, np.float32) or y.shape != hashes.shape[:1]:
        raise ConfigError(
            f"{path}: {role}_y: expected {len(hashes)} labels, int64 or float32, got {y.dtype} {y.shape}; {_HINT}"
        )
    places = arrays[f"{role}_places"]
    if places.dtype != np.int64 or places.shape not in ((0,), y.shape):
        raise ConfigError(f"{path}: {role}_places: expected int64 of {len(y)} or none, got {places.shape}; {_HINT}")
    if fault(x) or x.ndim < 1 or len(x) != len(y):
        got = short(f"{x.dtype} {x.shape}", 100)
        raise ConfigError(f"{path}: {role}_x: expected {len(y)} examples of numbers, got {got}; {_HINT}")
    try:
        counts = {int(label): count for label, count in about["counts"].items()}
    except ValueError:
        raise ConfigError(f"{path}: {role}: counts: expected classes by number; {_HINT}") from None
    if about["total"] < len(y):
        raise ConfigError(f"{path}: {role}: {len(y)} examples, of a total of {about['total']}; {_HINT}")
    return SeenExamples(x, y, hashes, about["total"], counts, places)


def write_frozen(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write weights that no client sends, once for all clients that have the same, and return the file."""
    digest = xxhash.xxh3_128()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    path = folder / FROZEN / f"{digest.hexdigest()}.npz"
    if not path.exists():
        make_private(path.parent)
        write_npz(path, arrays)
    return path


def _entry_of(model: WitnessedModel) -> dict[str, Any]:
    entry = dict(vars(model))
    frozen = entry.pop("frozen")
    return entry if frozen is None else {**entry, "frozen": frozen.name}


def _model(about: _WitnessModel | None, folder: Path) -> WitnessedModel | None:
    if about is None:
        return None
    frozen = about.get("frozen")
    if frozen is not None and not PLAIN.fullmatch(frozen):
        raise ConfigError(f"{folder}: frozen: {short(frozen, 60)!r} is no name of a file; {_HINT}")
    return WitnessedModel(
        spec=about["spec"],
        arguments=dict(about["arguments"]),
        input_shape=tuple(about["input_shape"]),
        classes=about["classes"],
        loss=about["loss"],
        why=about["why"],
        personal=tuple(about["personal"]),
        frozen=None if frozen is None else folder / FROZEN / frozen,
    )


def _read_asked(about: _AskedEntry | None) -> AskedToTrain | None:
    if about is None:
        return None
    arrays = {name: tuple(names) for name, names in about["arrays"].items()}
    return AskedToTrain(about["type"], arrays, about["configs"])


def _read_sent(about: _SentEntry) -> SentArray:
    return SentArray(
        name=about["name"],
        shape=tuple(about["shape"]),
        dtype=about["dtype"],
        kind=about["kind"],
        of=about["of"],
        least=about["least"],
        most=about["most"],
    )


def _training(about: _Training | None) -> WitnessedTraining | None:
    if about is None:
        return None
    return WitnessedTraining(
        optimizer=about["optimizer"],
        lr=about["lr"],
        momentum=about["momentum"],
        weight_decay=about["weight_decay"],
        batch_sizes=tuple(about["batch_sizes"]),
        steps=about["steps"],
        epochs=about["epochs"],
        augmented=about["augmented"],
        together=about["together"],
    )
