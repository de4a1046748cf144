"""Small helpers for files that must be whole or absent."""

import hashlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file for ``path`` so that a reader, or a kill, sees the old file or the whole new one.

    A link at ``path`` is replaced and not followed.

    Raises
    ------
    OSError
        If the disk is full or the folder cannot be written; the partial file is removed first.
    """
    # In the same folder, and so on the same disk: `replace` is atomic there alone.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            # fsync before the rename: after a power cut the new name must not lead to an empty file.
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``, whole or not at all; see :func:`atomic_file`."""
    with atomic_file(path) as file:
        file.write(data)


def copy_bytes(source: IO[bytes], to: IO[bytes], count: int) -> None:
    """Copy the first ``count`` bytes of a file."""
    while count and (block := source.read(min(count, 1 << 20))):
        to.write(block)
        count -= len(block)


class FolderLock:
    """Locks a folder against others who would, until :meth:`close` or the end of the process, however that ends.

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
            # flock goes with the process, however that ends; a lock file would stay.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go; a second time does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def signals_raise() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP of a terminal that closes, raise SystemExit: files are deleted on the way out.

    A signal that is ignored, as by ``nohup``, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        # Others may set no handler.
        yield
        return
    before = {}
    for name in ("SIGTERM", "SIGHUP"):
        # Windows has no SIGHUP.
        number = getattr(signal, name, None)
        # A signal that is ignored, such as SIGHUP under nohup, stays ignored.
        if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
            # 128 + number is how shells call an end by a signal.
            before[number] = signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_private(folder: Path) -> None:
    """Make a folder that its owner alone can look into, and those above it, unless they are there."""
    if not folder.parent.exists():
        make_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file to write in place; a new one its owner alone can read, whatever the umask."""
    # Not Path.open, which takes no opener.
    return cast(IO[bytes], open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600)))


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


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """Copy ``value``, with the SHA-256 of its compact JSON as ``check``: that tells damage, not tampering."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Compact and in order of insertion: the reader seals the parsed value in the same way.
    return {**value, "check": hashlib.sha256(text.encode()).hexdigest()}


def write_sealed(path: Path, value: Mapping[str, Any]) -> str:
    """Write a JSON object that carries its own checksum, which :func:`fedattack.base.untrusted.read_sealed` reads.

    Returns the file's SHA-256.
    """
    write_json(path, seal(value))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def array_on_disk(shape: tuple[int, ...], dtype: DTypeLike, folder: Path | None = None) -> NDArray[Any]:
    """Make an array of zeros in a file without a name, in ``folder`` or the temporary one; it goes with the array."""
    with tempfile.TemporaryFile(dir=folder) as file:
        # The file has no name any more when it is mapped: it goes with the last reference.
        return np.memmap(file, dtype=dtype, mode="w+", shape=shape)


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]], *, compress: bool = False) -> str:
    """Write arrays as an ``.npz``, whole or not at all; returns the file's SHA-256."""
    save = np.savez_compressed if compress else np.savez
    with atomic_file(path) as file:
        save(file, allow_pickle=False, **arrays)
        # Hashed as it lies on disk, before it gets its name.
        file.seek(0)
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()
