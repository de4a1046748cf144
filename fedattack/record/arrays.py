"""Arrays of a record on disk: verified before they are used, and read one by one when they are asked for."""

import hashlib
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedattack.base.errors import RecordError, short
from fedattack.base.untrusted import open_regular
from fedattack.record.tensors import DTYPES

_BLOCK = 1 << 18

# NumPy's types by the format's names.
_TYPES = {stored: name for name, stored in DTYPES.items()}

T = TypeVar("T")


class Latest(Generic[T]):
    """Keeps the last few values. It holds no reference to a record, so that a record's files close with it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Any, T] = OrderedDict()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """Return the value of ``key``, made anew unless it is among the last ones."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = make()
        self._values[key] = value
        # The oldest goes: `move_to_end` above puts what was asked for last behind all others.
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return value


class TensorFile:
    """A round's arrays on disk; ``digests`` are their size and checksums, from the index or the manifest."""

    def __init__(self, path: Path, digests: Mapping[str, Any]) -> None:
        self.path = path
        self.xxh3: str = digests["xxh3"]
        self.size: int = digests["bytes"]
        self._sha256: str | None = digests.get("sha256")

    def verify(self) -> None:
        """Compare the file with its size and checksum.

        Raises
        ------
        RecordError
            If it is missing or differs.
        """
        # XXH3 shows damage. Only SHA-256 shows what somebody has made to look the same.
        digest: Any = xxhash.xxh3_128() if self._sha256 is None else hashlib.sha256()
        expected = self._sha256 or self.xxh3
        try:
            with open_regular(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                # A file of another size is not hashed: it may be endless.
                while size == self.size and (block := file.read(_BLOCK)):
                    digest.update(block)
        except OSError as cause:
            raise RecordError(f"{self.path} is in the record's index but cannot be read ({cause.strerror})") from None
        if size != self.size or digest.hexdigest() != expected:
            raise RecordError(
                f"{self.path} does not match its checksum (expected {self.size} bytes, {expected[:12]}…, got {size} "
                f"bytes, {digest.hexdigest()[:12]}…); the file was changed or damaged"
            )

    def open(self, names: Collection[str]) -> Any:
        """Verify and open the file, memory-mapped; its header is parsed once, whatever is then read of it.

        Raises
        ------
        RecordError
            If it is damaged, or does not hold the arrays ``names`` and no others.
        """
        try:
            open_file = safe_open(self.path, framework="numpy")
            # Names that are on one side alone.
            different = sorted(set(open_file.keys()) ^ set(names))
        except (SafetensorError, OSError) as cause:
            raise RecordError(f"{self.path} is not a safetensors file ({short(str(cause), 100)})") from None
        if different:
            raise RecordError(
                f"{self.path} and the index name different arrays: one alone has {short(different[0], 60)}"
            )
        return open_file


def check_memory(stored: Any) -> None:
    """Raise MemoryError where an array cannot be had; the library's own code would panic, and say nothing of use."""
    width = np.dtype(_TYPES.get(stored.get_dtype(), np.uint8)).itemsize
    # NumPy refuses with MemoryError what cannot be had, and returns memory that nobody touches.
    np.empty(math.prod(stored.get_shape()) * width, np.uint8)


class StoredArrays(Mapping[str, NDArray[Any]]):
    """Arrays by parameter name, each read when asked for and not kept; ``names`` maps to what ``read`` takes."""

    def __init__(self, read: Callable[[str], NDArray[Any]], names: Mapping[str, str]) -> None:
        self._read = read
        self._names = names

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._read(self._names[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
