"""Read what somebody else may have written: a folder that is handed over is data, and nothing more.

Whatever the bytes, a reader here ends with a value of the expected form, or with one line that says what is wrong and
where. Only regular files are read, and sizes are looked at before memory is taken. Nothing is followed, written or
deleted outside of the folder that the caller named, but for temporary files without a name.
"""

import errno
import hashlib
import io
import math
import mmap
import os
import re
import reprlib
import shutil
import stat
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import StringConstraints, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator, core_schema, from_json

from fedattack.base.errors import FedAttackError, short
from fedattack.base.files import atomic_file, copy_bytes, make_private, seal

MAX_JSON = 256 * 2**20
"""Bytes of the largest JSON or text file that is read."""

MAX_TOML = 2**22
"""Bytes of the largest TOML file that is read: what it is parsed into takes a hundred times as many."""

MAX_INFLATED = 256 * 2**20
"""Bytes that any file may take in memory; above it 20 times those that it has on the disk, and no more."""

MAX_EXAMPLES_INFLATED = 16 * 2**20
"""The same of files that tell of examples, of which whoever reads them makes several copies."""

_RATIO = 20
# How numpy writes the arrays of an .npz. LZMA, which zip files also allow, takes the memory that a few bytes ask for.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BLOCK = 2**20
# The longest header of an array, which numpy itself takes no longer one of.
_HEADER = 2**16
MAX_SIDE = 2**50
"""Length of the longest side of an array."""

_AXES = 64

Text = Annotated[str, StringConstraints(max_length=1024, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""A name or a short text: on one line, without characters that would drive a terminal."""

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A name that is safe as that of a file or a folder, and on a terminal."""

UNFIT = "unfit"
"""The type of pydantic's error where a value's own class refuses it; see :mod:`fedattack.base.stored`."""

T = TypeVar("T")
Error = type[FedAttackError]

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a link"),
)


def _kind(mode: int) -> str:
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file to read; a pipe or a device, which may never end, is refused at once.

    So is a file of which nearly all is holes: it takes nothing of its sender's disk, and all of a reader's memory.

    Raises
    ------
    OSError
        If it is no regular file, is not there, is nearly all holes, or cannot be read.
    """
    # A pipe that nobody writes to would block the call itself.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, f"it is {_kind(status.st_mode)}, and a regular file is expected")
        _check_holes(descriptor, status)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_holes(descriptor: int, status: os.stat_result) -> None:
    """Refuse a file that has far more bytes than lie on the disk; the rest of it is holes, which read as zeros.

    Where a file system compresses, long runs of zeros in an honest array may be holes, too. Hence the same bound as for
    what inflates.
    """
    stored = _count_stored(descriptor, status)
    # As much as a compressed array may take: a hole costs its writer nothing.
    if status.st_size > MAX_INFLATED + _RATIO * stored:
        raise OSError(
            0,
            f"it has {status.st_size:,} bytes, of which {stored:,} are on the disk ({status.st_blocks:,} blocks) and "
            "the rest is holes; get the file as it was written",
        )


def _count_stored(descriptor: int, status: os.stat_result) -> int:
    """Say how many bytes of a file that was just opened are no holes.

    A file system that compresses, or lies behind a network, may honestly count few blocks. So where they are few, the
    system is asked where the holes are; one that knows of none says that all is data.
    """
    size = status.st_size
    # Blocks are of 512 bytes, whatever the disk says.
    if not hasattr(os, "SEEK_DATA") or 512 * status.st_blocks >= size:
        return size
    stored = at = 0
    try:
        while at < size:
            # SEEK_DATA leads to the next data, SEEK_HOLE behind it.
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
            at = os.lseek(descriptor, begin, os.SEEK_HOLE)
            stored += at - begin
    except OSError as cause:
        # What says so has only a hole after it; all else says that this system cannot tell.
        if cause.errno == errno.ENXIO:
            return stored
        return size
    finally:
        # The position is part of the descriptor that is read next.
        os.lseek(descriptor, 0, os.SEEK_SET)
    return stored


def read_bytes(path: Path, error: Error, hint: str, *, limit: int = MAX_JSON) -> bytes:
    """Read a regular file of at most ``limit`` bytes, or raise ``error`` in one line that ends with ``hint``."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            content = b""
            if size <= limit:
                # Some files of the system have no size and no end.
                content = file.read(size + 1)
    except FileNotFoundError:
        raise error(f"{path} is not there; {hint}") from None
    except OSError as cause:
        raise error(f"{path} cannot be read ({cause.strerror}); {hint}") from None
    if size > limit:
        raise error(f"{path} has {size:,} bytes; expected at most {limit:,}; {hint}")
    if len(content) != size:
        raise error(f"{path} is said to have {size:,} bytes and has others; {hint}")
    return content


def read_text(path: Path, error: Error, hint: str, *, limit: int = MAX_JSON) -> str:
    """Read a regular file of UTF-8, or raise ``error`` in one line that ends with ``hint``."""
    try:
        return read_bytes(path, error, hint, limit=limit).decode("utf-8")
    except UnicodeDecodeError as cause:
        raise error(f"{path} is not UTF-8 text (byte {cause.start}); {hint}") from None


def read_toml(path: Path, error: Error, hint: str) -> dict[str, Any]:
    """Read a TOML file, or raise ``error`` in one line that ends with ``hint``."""
    text = read_text(path, error, hint, limit=MAX_TOML)
    try:
        values = tomllib.loads(text)
        repr(values)  # a hexadecimal number may have more digits than any message can show
    # Numbers of thousands of digits, and thousands of lists in one another, end in errors of their own.
    except (ValueError, RecursionError) as cause:
        raise error(f"{path} cannot be read as TOML ({short(str(cause), 100)}); {hint}") from None
    return values


def parse_json(data: bytes | str) -> Any:
    """Decode strict JSON, or raise a ValueError: no NaN, no infinity, at most 200 levels.

    Python's own decoder takes NaN, and ends with a RecursionError or with the stack's end in what is nested deeply.
    """
    # pydantic's parser: it bounds depth, and is several times as fast as json.
    return from_json(data, allow_inf_nan=False)


def read_json(path: Path, error: Error, hint: str) -> Any:
    """Read a JSON file, or raise ``error`` in one line that ends with ``hint``."""
    content = read_bytes(path, error, hint)
    try:
        return parse_json(content)
    except ValueError as cause:
        raise error(f"{path} cannot be read as JSON ({short(str(cause), 100)}); {hint}") from None


def read_sealed(path: Path, adapter: TypeAdapter[T], error: Error, hint: str) -> T:
    """Read a JSON object that :func:`fedattack.base.files.write_sealed` wrote, and check its form.

    One without the key ``check`` was written by hand, and is taken as it is. Else it must match its checksum. Raises
    ``error`` in one line that ends with ``hint``.
    """
    value = read_json(path, error, hint)
    if isinstance(value, dict) and isinstance(value.get("check"), str):
        check = value.pop("check")
        try:
            # Sealed anew, the value must give the same hash.
            matches = seal(value)["check"] == check
        except ValueError:  # a number such as 1e999
            matches = False
        if not matches:
            raise error(
                f"{path} does not match its checksum: it was changed or damaged; put back the file as it was written, "
                "or delete its key `check` to use it as it is"
            )
    return validate(adapter, value, str(path), error, hint)


def validate(adapter: TypeAdapter[T], value: Any, where: str, error: Error, hint: str) -> T:
    """Check the form of parsed JSON, or raise ``error`` in one line that ends with ``hint``."""
    try:
        return validate_value(adapter, value)
    except ValidationError as cause:
        raise error(f"{where}: {fault(cause)}; {hint}") from None


def validate_value(adapter: TypeAdapter[T], value: Any) -> T:
    """Check the form of a value of Python's and stop at the first fault, or raise a ValidationError.

    Pydantic alone would go on, and describe every fault: of 0.3 MB of wrong numbers in 1.6 GB.
    """
    checked: T = _validator_of(adapter).validate_python(value)
    return checked


@lru_cache(256)
def _validator_of(adapter: TypeAdapter[Any]) -> SchemaValidator:
    # pydantic's public adapter cannot stop at the first fault: its core does.
    return SchemaValidator(_stopping(adapter.core_schema))


# So many keys may be there besides those that are known, and the first is named; of more only the number is.
_UNKNOWN_KEYS = 16


def _stopping(schema: Any) -> Any:
    """Return pydantic's description of a form with which it looks for no second fault in a list or an object."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_stopping, schema))
    if not isinstance(schema, dict):
        return schema
    changed = {key: _stopping(value) for key, value in schema.items()}
    kind = schema.get("type")
    if kind in ("list", "dict"):
        # A list of a million faults would otherwise make a million errors.
        changed["fail_fast"] = True
    fields = _find_fields(schema)
    if fields is None:
        return changed
    # Counted before any key is looked at: unknown keys would each be an error.
    few = core_schema.dict_schema(max_length=len(fields) + _UNKNOWN_KEYS)
    return core_schema.chain_schema([few, changed], ref=changed.pop("ref", None))


def _find_fields(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the fields of an object that may have no others; ``None`` for all else."""
    if schema.get("type") not in ("typed-dict", "model"):
        return None
    if schema.get("config", {}).get("extra_fields_behavior") != "forbid":
        return None
    # Wrapped schemas, as of validators, hold the fields deeper.
    inner = schema
    while "fields" not in inner:
        inner = inner["schema"]
    fields: Mapping[str, Any] = inner["fields"]
    return fields


def fault(cause: ValidationError) -> str:
    """Say in a few words the first thing that is wrong with the form of a value that :func:`validate_value` refused."""
    first = cause.errors(include_url=False, include_context=False)[0]
    place = ".".join(short(str(part), 40) for part in first["loc"]) or "the whole"
    message = short(first["msg"], 120)
    if first["type"] == "missing":
        return f"{short(place, 100)} is missing"
    said = f"{short(place, 100)}: {message[:1].lower()}{message[1:]}"
    # What a dataclass says of itself says what it got.
    return said if first["type"] == UNFIT else f"{said}, got {shown(first['input'])}"


# reprlib writes a few entries of each container, whatever its size.
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 60


def shown(value: Any) -> str:
    """Write a value of JSON or TOML in at most 60 characters, whatever its size."""
    return short(_BRIEF.repr(value), 60)


def verify_files(folder: Path, digests: Mapping[str, str], error: Error, where: Path) -> None:
    """Compare files of a folder with their SHA-256, of which the JSON at ``where`` tells, or raise ``error``."""
    for name, digest in digests.items():
        # Names come from a file: one with a slash would leave the folder.
        if not PLAIN.fullmatch(name):
            raise error(f"{where}: files: {short(name, 60)!r} is not the name of a file beside it")
        hint = f"{where} mentions it; write the folder again, or delete its keys `files` and `check`"
        try:
            with open_regular(folder / name) as file:
                found = hashlib.sha256()
                while block := file.read(1 << 20):
                    found.update(block)
        except OSError as cause:
            raise error(f"{folder / name} cannot be read ({cause.strerror}); {hint}") from None
        if found.hexdigest() != digest:
            raise error(f"{folder / name} is not the file that was written; {hint}")


class NpzFile:
    """An ``.npz`` that is open: types and shapes can be looked at before memory is taken for any array."""

    def __init__(self, archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo]) -> None:
        self._archive = archive
        self._entries = entries

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, in the file's order."""
        return tuple(self._entries)

    def look(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the type and the shape that an array announces, of which :meth:`read` makes sure."""
        # The header alone: a few hundred bytes of an array of any size.
        with self._archive.open(self._entries[name]) as stream:
            shape, _, dtype, _ = _in_array(name, _read_header, stream.read(_HEADER))
        return dtype, shape

    def read(self, name: str, most: float = math.inf) -> NDArray[Any]:
        """Read one array; of more than ``most`` bytes it lies in a temporary file without a name."""
        return _read_member(self._archive, self._entries[name], name, most)


@contextmanager
def open_npz(path: Path, error: Error, hint: str, *, inflated: int = MAX_EXAMPLES_INFLATED) -> Iterator[NpzFile]:
    """Open an ``.npz`` of plain arrays, which may take ``inflated`` bytes and 20 times those on the disk.

    Whatever is wrong with the file, here or where it is read, raises ``error`` in one line that ends with ``hint``.
    """
    try:
        with open_regular(path) as file:
            # What is on the disk bounds what the arrays may take.
            stored = _count_stored(file.fileno(), os.fstat(file.fileno()))
            archive = zipfile.ZipFile(file)
            yield NpzFile(archive, _entries(archive, stored, inflated))
    except (FedAttackError, MemoryError):
        raise
    except FileNotFoundError:
        raise error(f"{path} is not there; {hint}") from None
    # zipfile raises anything for a damaged archive.
    except Exception as cause:
        reason = str(cause)
        if isinstance(cause, OSError) and cause.strerror:
            reason = cause.strerror
        raise error(
            f"{path} cannot be read as an .npz of plain arrays ({short(reason or type(cause).__name__, 120)}); {hint}"
        ) from None


def read_npz(
    path: Path,
    error: Error,
    hint: str,
    *names: str,
    most: float = math.inf,
    inflated: int = MAX_EXAMPLES_INFLATED,
) -> dict[str, NDArray[Any]]:
    """Read the arrays ``names``, or all, of an ``.npz`` without pickle, or raise ``error`` in one line.

    ``numpy.load`` takes memory for what a header announces, before it looks whether there is as much. An array of more
    than ``most`` bytes is put into a temporary file without a name, of which the system keeps as much in memory as it
    can spare. All may take ``inflated`` bytes and 20 times those on the disk.
    """
    with open_npz(path, error, hint, inflated=inflated) as file:
        lacking = [name for name in names if name not in file.names]
        if lacking:
            raise error(f"{path}: expected the arrays {' and '.join(names)}, but there is no {lacking[0]!r}; {hint}")
        return {name: file.read(name, most) for name in names or file.names}


def _entries(archive: zipfile.ZipFile, stored: int, most: int) -> dict[str, zipfile.ZipInfo]:
    """Give an archive's arrays by name, if they are few enough and small enough to be what the file can hold."""
    # infolist may list one name twice, of which zipfile would read the last.
    entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
    if len(entries) != len(archive.infolist()):
        raise ValueError("two arrays have one name")
    if any(entry.compress_type not in _COMPRESSIONS for entry in entries.values()):
        raise ValueError("an array is not compressed as numpy does it")
    # As the archive's directory announces it; `_blocks` holds it against what comes.
    inflated = sum(entry.file_size for entry in entries.values())
    if inflated > most + _RATIO * stored:
        raise ValueError(
            f"its arrays would take {inflated:,} bytes, and the file has {stored:,}; numpy.savez saves them whole"
        )
    return entries


def _read_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str, most: float) -> NDArray[Any]:
    """Read one array; it lies in the bytes that were read, so that its memory is taken once."""
    size = entry.file_size
    with archive.open(entry) as stream:
        blocks = _blocks(stream, size, name)
        # Allocated once in its whole size: growing would take up to twice the memory.
        content = _in_memory(blocks, size) if size <= most else _on_disk(blocks, size)
    return _in_array(name, view_npy, content)


def _in_array(name: str, read: Callable[[Any], T], content: Any) -> T:
    """Let a ValueError say of which array it is."""
    try:
        return read(content)
    except ValueError as cause:
        raise ValueError(f"{name}: {cause}") from None


def _blocks(stream: IO[bytes], size: int, name: str) -> Iterator[bytes]:
    """Yield an array's bytes, which must be as many as are announced."""
    end = 0
    while block := stream.read(_BLOCK):
        end += len(block)
        if end > size:
            raise ValueError(f"{name} has more than the {size:,} bytes that are announced")
        yield block
    if end != size:
        raise ValueError(f"{name} has {end:,} bytes, and {size:,} are announced")


def _in_memory(blocks: Iterator[bytes], size: int) -> bytearray:
    content, end = bytearray(size), 0
    for block in blocks:
        content[end : end + len(block)] = block
        end += len(block)
    return content


def _on_disk(blocks: Iterator[bytes], size: int) -> mmap.mmap:
    """Put bytes into a file that is gone as soon as nobody uses it."""
    with tempfile.TemporaryFile() as file:
        for block in blocks:
            file.write(block)
        file.flush()
        return mmap.mmap(file.fileno(), size)


def view_npy(content: bytes | bytearray | mmap.mmap) -> NDArray[Any]:
    """View the bytes of an ``.npy`` file as an array on the same memory.

    ``numpy.load`` copies, takes memory for what a header announces, and ends a damaged header, which it parses as
    Python, in whatever error comes.

    Raises
    ------
    ValueError
        If they are damaged, or hold Python objects.
    """
    shape, fortran, dtype, start = _read_header(content[:_HEADER])
    count = math.prod(shape)  # of Python's integers, which do not overflow
    # A shape of many axes could announce more numbers than there are bytes.
    if count * dtype.itemsize != len(content) - start:
        raise ValueError(f"its size does not match its shape {short(str(shape), 60)}")
    flat = np.zeros(0, dtype)
    if count:
        flat = np.frombuffer(content, dtype=dtype, offset=start, count=count)
    if fortran:
        return flat.reshape(shape, order="F")
    return flat.reshape(shape)


def _read_header(content: bytes | bytearray) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Read the beginning of an ``.npy`` file: shape, order, type, and where the numbers begin; else a ValueError."""
    head = io.BytesIO(content)
    try:
        version = npy.read_magic(head)
        # Versions 2 and 3 differ in the encoding of names alone.
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(head)
    except Exception as cause:
        raise ValueError(f"the array's header cannot be read ({type(cause).__name__})") from None
    # Objects are pickled, and unpickling runs code.
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded because they can run code")
    if (
        not all(type(side) is int and 0 <= side <= MAX_SIDE for side in shape)
        or len(shape) > _AXES
        or not dtype.itemsize
    ):
        raise ValueError(f"no array has the shape {short(str(shape), 60)} and the type {short(str(dtype), 60)}")
    return shape, fortran, dtype, head.tell()


PRIVATE = "private"
"""Folder in a run folder in which a command that is at work keeps copies, links among them; nobody else reads it."""


def check_folder(folder: Path, error: Error, *, to_write: bool = False) -> None:
    """Refuse a folder with links that leave it or lead to folders, or with what is no regular file and no folder.

    ``folder`` may be a link itself. What lies in its folder :data:`PRIVATE` is not looked at. Where its files are
    ``to_write``, any link is refused, and any file that has a second name: what is changed may be something else.
    Raises ``error``, with the first of what is refused.
    """
    root = _resolve(folder, error)
    for entry in _walk(folder, error):
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            # Resolved: a chain of links counts by its end.
            if not _resolve(Path(entry.path), error).is_relative_to(root):
                raise error(f"{entry.path} is a link that leaves {folder}; put what it leads to in its place")
            if to_write or entry.is_dir():
                raise error(f"{entry.path} is a link, through which something else would be written; copy the folder")
        elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise error(f"{entry.path} is {_kind(mode)}; expected only files and folders: delete it")
        # A second name: what is written here would appear elsewhere, too.
        elif to_write and stat.S_ISREG(mode) and entry.stat(follow_symlinks=False).st_nlink > 1:
            raise error(
                f"{entry.path} has a second name (a hard link), which may be outside of {folder}; copy the folder"
            )


def refuse_irregular(path: Path, error: Error, root: Path | None = None) -> None:
    """Raise ``error``, if something is there that is no regular file, or is a link that leaves ``root``.

    Without ``root`` a link counts as what it leads to.
    """
    if root is not None and path.is_symlink() and not _resolve(path, error).is_relative_to(_resolve(root, error)):
        raise error(f"{path} is a link that leaves {root}; put what it leads to in its place")
    try:
        mode = path.stat().st_mode
    except OSError:
        # Whoever reads it says what is wrong with it.
        return
    if not stat.S_ISREG(mode):
        raise error(f"{path} is {_kind(mode)}; expected a regular file: delete it, or move it to another folder")


def copy_files(names: Iterable[str], source: Path, to: Path, error: Error) -> None:
    """Copy some files of a folder, by their names in it; whatever else lies there is not looked at.

    Raises ``error``, if one is no regular file, or they do not fit on the disk.
    """
    make_private(to)
    sizes: dict[str, int] = {}
    for name in names:
        try:
            with open_regular(source / name) as file:
                sizes[name] = os.fstat(file.fileno()).st_size
        except OSError as cause:
            raise error(f"{source / name} cannot be copied ({cause.strerror})") from None
    # Asked before anything is copied.
    free = shutil.disk_usage(to).free
    if sum(sizes.values()) > free:
        raise error(f"the files of {source} have {sum(sizes.values()):,} bytes, and {free:,} are free at {to}")
    for name, size in sizes.items():
        make_private((to / name).parent)
        # No more than the size at the first look: a file that grows meanwhile is cut there.
        with open_regular(source / name) as file, atomic_file(to / name) as copy:
            copy_bytes(file, copy, size)


def _resolve(path: Path, error: Error) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        raise error(f"{path} is a link that leads back to itself; delete it") from None


def _walk(folder: Path, error: Error) -> Iterator[os.DirEntry[str]]:
    waiting, private = [str(folder)], os.path.join(folder, PRIVATE)  # noqa: PTH118 - as scandir joins
    try:
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    yield entry
                    # Links are not followed, so that no walk leaves the folder or goes in circles.
                    if entry.path != private and entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    except FileNotFoundError:
        return
    except OSError as cause:
        raise error(f"{cause.filename or folder} cannot be read ({cause.strerror})") from None


def remove_inside(root: Path, path: Path, error: Error) -> None:
    """Delete a file or folder that lies in ``root``; nothing happens if it is not there.

    Raises ``error``, if it is ``root`` itself, is outside, or is reached through a link.
    """
    # abspath and not resolve: a link on the way must be seen as one.
    root, path = Path(os.path.abspath(root)), Path(os.path.abspath(path))  # noqa: PTH100 - links must stay visible
    if path == root or not path.is_relative_to(root):
        raise error(f"{path} is not inside {root}, and is not deleted")
    for part in (path, *path.parents):
        if part == root:
            break
        if part.is_symlink():
            raise error(f"{part} is a link, and what it leads to is not deleted; delete the link")
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
