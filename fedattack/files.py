"""Small helpers for files that must be whole or absent."""

import json
import os
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.errors import FedAttackError


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a reader, or a kill, sees the old file or the new one and nothing between.

    Raises
    ------
    OSError
        If the disk is full or the folder cannot be written; the partial file is removed first.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


class Hold:
    """Hold a folder against others who would, until :meth:`close` or the end of the process, however that ends.

    A system without such locks (Windows) lets everybody.

    Raises
    ------
    BlockingIOError
        If another holds it.
    OSError
        If there is no such folder, or it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        try:
            import fcntl
        except ImportError:
            return
        self._descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go; a second time does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def make_private(folder: Path) -> None:
    """Make a folder, unless it is there, that its owner alone can look into."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as strict JSON (no NaN), atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def read_json(path: Path, error: type[FedAttackError], hint: str) -> Any:
    """Read a JSON file, or raise ``error`` in one line that ends with ``hint``."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise error(f"{path} is not there; {hint}") from None
    except (OSError, ValueError) as cause:
        raise error(f"{path} cannot be read as JSON ({cause}); {hint}") from None


def read_npz(path: Path, error: type[FedAttackError], hint: str, *names: str) -> dict[str, NDArray[Any]]:
    """Read the arrays ``names``, or all, of an ``.npz`` without pickle, or raise ``error`` in one line."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names or file.files}
    except FileNotFoundError:
        raise error(f"{path} is not there; {hint}") from None
    except KeyError as cause:
        raise error(f"{path}: expected the arrays {' and '.join(names)}, but {cause.args[0]}; {hint}") from None
    except (OSError, ValueError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as cause:
        raise error(f"{path} cannot be read as an .npz of plain arrays ({cause}); {hint}") from None
