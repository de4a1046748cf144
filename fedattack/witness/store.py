"""Write and read what a witness notes: one ``.npz`` per node, which is whole or absent.

It holds the kept examples, the hashes of all examples that were seen, from which another process continues, and
everything else as JSON in an array of bytes. Nothing is pickled.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError, short
from fedattack.base.files import make_private, write_npz
from fedattack.base.stored import read_arrays, split
from fedattack.base.untrusted import PLAIN, check_folder, read_npz
from fedattack.witness.seen import Witness

RUN_FOLDER = "run-"
"""What the name of the folder of one run begins with, before Flower's id of the run."""
FROZEN = "frozen"
"""Folder of weights that no client sends."""
PUBLIC = "public"
"""Folder of examples whose predictions clients send."""

_ABOUT = "about"
_HINT = "delete it, and run the app again"


def witness_file(folder: Path, node: str) -> Path:
    """Return the file of a node's witness."""
    stem = node if PLAIN.fullmatch(node) else hashlib.sha256(node.encode()).hexdigest()
    return folder / f"{stem}.npz"


def write_witness(folder: Path, witness: Witness, memory: Mapping[str, NDArray[Any]] | None = None) -> Path:
    """Write a witness, replace an older one of the same node, and return the file.

    Parameters
    ----------
    folder
        Created for its owner only, if it does not exist.
    witness
        What to write.
    memory
        Further arrays, from which another process continues; see :func:`read_memory`.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    make_private(folder)
    mods, notes = (tuple(map(short, said)) for said in (witness.mods, witness.notes))
    about, arrays = split(replace(witness, mods=mods, notes=notes))
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
        If the folder does not exist, or a file in it is not a witness.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; expected one that a witness has written")
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
        If it is not a witness.
    """
    witness = read_arrays(Witness, path, ConfigError, _HINT, text=_ABOUT)
    if witness.public is not None:
        witness = replace(witness, public=path.parent / PUBLIC / witness.public)
    model = witness.model
    if model is None or model.frozen is None:
        return witness
    return replace(witness, model=replace(model, frozen=path.parent / FROZEN / model.frozen))


def read_memory(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """Read the further arrays of :func:`write_witness`.

    Raises
    ------
    ConfigError
        If they are missing.
    """
    arrays = read_npz(path, ConfigError, _HINT, *(f"memory_{name}" for name in names))
    return {name: arrays[f"memory_{name}"] for name in names}


def write_frozen(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write weights that no client sends, once for all clients that have the same, and return the file."""
    return _write_once(folder / FROZEN, arrays)


def write_public(folder: Path, x: NDArray[Any]) -> Path:
    """Write examples (n, …) whose predictions clients send, once for all clients, and return the file."""
    return _write_once(folder / PUBLIC, {"x": x})


def _write_once(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write arrays to a file that has its name of them."""
    digest = xxhash.xxh3_128()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    path = folder / f"{digest.hexdigest()}.npz"
    if not path.exists():
        make_private(path.parent)
        write_npz(path, arrays)
    return path
