"""Uniform samples of distinct examples, in bounded memory.

An example is known by a hash of its bytes. Those with the smallest hashes are a uniform sample of the distinct ones,
and the same sample in every epoch, round and process.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Generic, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedattack.base.structured import alike, contents, fields, stack_examples
from fedattack.witness.seen import HASH, UNKNOWN, SeenExamples, counts_of

Label = int | float | None
"""A class, a number, or ``None`` where none was seen."""

COUNTED = 100_000
"""Distinct examples up to which they are counted one by one; beyond it their number is an estimate."""

ROW_BYTES = 50_000
"""Bytes that an example which is kept may take, on average; of larger ones fewer are kept."""

_INTEGER, _REAL = 1, 2

_COPIED = 4096

V = TypeVar("V")


def hash_rows(rows: NDArray[Any], seed: int) -> list[bytes]:
    """Hash each row's bytes as float32, as an attack is asked about it; the same seed gives the same hashes everywhere.

    In rows of structured type ids are hashed as int64, and padding is left out.

    It runs on every batch, so that it must be fast: XXH3 takes a fiftieth of the time of a cryptographic hash. Whoever
    could look for collisions would be the client itself, which can lie to its own witness anyway.
    """
    digest: Callable[..., bytes] = xxhash.xxh3_128_digest
    # What is too large for float32 is no example later on.
    with np.errstate(over="ignore"):
        if fields(rows):
            return [digest(row, seed) for row in contents(rows)]
        numbers = np.ascontiguousarray(rows, dtype=np.float32)
    flat = numbers.reshape(len(rows), -1)
    size = flat[:1].nbytes
    if not 0 < size <= _COPIED:
        return [digest(row, seed) for row in flat.view(np.uint8)]
    # As bytes, small rows are handed over in half the time.
    return [*map(digest, flat.view(f"V{size}")[:, 0].tolist(), repeat(seed))]


class Smallest(Generic[V]):
    """A dict of the ``limit`` smallest keys that it was ever given, and sometimes a few more."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.items: dict[bytes, V] = {}
        self._largest: bytes | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.items)

    def __contains__(self, key: bytes) -> bool:
        return key in self.items

    @property
    def dropped(self) -> bool:
        """Whether keys were left out."""
        return self._largest is not None

    def takes(self, key: bytes) -> bool:
        """Say whether a key belongs to the smallest so far, itself among them or not."""
        return self._largest is None or key <= self._largest

    def put(self, keys: Iterable[bytes], values: Iterable[V]) -> None:
        """Add keys with their values, in the place of older values."""
        if self._largest is None:
            self.items.update(zip(keys, values, strict=True))
        else:
            for key, value in zip(keys, values, strict=True):
                if key <= self._largest:
                    self.items[key] = value
        if len(self.items) > 2 * self.limit:
            self.prune()

    def prune(self) -> None:
        """Leave exactly the smallest."""
        if len(self.items) > self.limit:
            # Seldom, since it sorts: only when there are twice as many as wanted.
            kept = sorted(self.items)[: self.limit]
            self.items = {key: self.items[key] for key in kept}
            self._largest = kept[-1]

    def shrink(self, limit: int) -> None:
        """Keep fewer from now on."""
        self.limit = limit
        self.prune()


class Examples:
    """The examples of one role: the labels of all, by hash, and the inputs of some.

    Inputs that are ``known`` are kept elsewhere, and not copied again.

    Attributes
    ----------
    places
        By hash, where an input stands in the dataset that a loader took it from; nothing of those without a loader.
    drawn
        All places that loaders drew, up to :data:`COUNTED` and some.
    uses
        How often each was taken, by its hash and the label that it then had.
    repeats
        By the same how many copies there are beyond the first of a hash, as far as that is known.
    """

    def __init__(self, keep: int, counted: int = COUNTED, known: Collection[bytes] = ()) -> None:
        self.known = known
        self.labels: Smallest[Label] = Smallest(counted)
        self.rows: Smallest[NDArray[Any]] = Smallest(keep)
        self.places: dict[bytes, int] = {}
        self.drawn: set[int] = set()
        self.uses: Counter[tuple[bytes, Label]] = Counter()
        self.repeats: Counter[tuple[bytes, Label]] = Counter()
        # Memory of a role, whatever shape examples have.
        self._bytes = int(keep * ROW_BYTES)
        self.other_shapes = False
        self.too_large = False

    def add(self, hashes: Sequence[bytes], labels: Sequence[Label] | None, places: Sequence[int] | None = None) -> None:
        """Note that these examples were seen; a label that is known stays."""
        if places is not None:
            self._add_places(zip(hashes, places, strict=True), places)
        # `repeat` never ends, so that the two may not be of one length.
        self.count_uses(zip(hashes, repeat(None) if labels is None else labels, strict=False))
        if labels is not None:
            self.labels.put(hashes, labels)
            return
        unknown = [key for key in hashes if key not in self.labels]
        self.labels.put(unknown, [None] * len(unknown))

    def count_uses(self, taken: Iterable[tuple[bytes, Label]]) -> None:
        """Count inputs that were taken, by hash and label; a mapping adds its counts."""
        self.uses.update(taken)
        # Bounded like the labels: each may have several.
        if len(self.uses) > 4 * self.labels.limit:
            self.uses = Counter({key: count for key, count in self.uses.items() if key[0] in self.labels})

    def find_repeats(self, sizes: Iterable[int | None]) -> Counter[tuple[bytes, Label]]:
        """Return how many copies there are beyond the first of each hash, if the examples may be this many in all.

        Whoever passes over all examples takes each equally often for each of its copies. The first size counts at which
        this is so; if it is so at none, nothing is known, and nothing is returned.
        """
        taken = self.uses.total()
        for size in sizes:
            if not size or self.labels.dropped or taken % size or size < len(self.labels):
                continue
            passes = taken // size
            if any(count % passes for count in self.uses.values()):
                continue
            repeats = Counter({key: count // passes for key, count in self.uses.items()})
            for key, label in self.labels.items.items():
                # One of them is the example that is kept.
                repeats[key, label] -= 1
            return +repeats
        return Counter()

    def _add_places(self, places: Iterable[tuple[bytes, int]], drawn: Iterable[int]) -> None:
        self.places.update(places)
        if len(self.drawn) <= COUNTED:
            self.drawn.update(drawn)
        # Bounded like the labels, of which there may be as many as twice the limit.
        if len(self.places) > 4 * self.labels.limit:
            self.places = {key: place for key, place in self.places.items() if key in self.labels}

    @property
    def has_places(self) -> bool:
        """Whether it is known of all where they stand in a loader's dataset, which is the same one each time."""
        # Who draws other examples in each round has examples of other labels at the same places.
        # One place with two labels is not one example.
        labels: dict[int, Label] = {}
        for key, label in self.labels.items.items():
            place = self.places.get(key)
            if place is None or labels.setdefault(place, label) != label:
                return False
        return bool(labels)

    @property
    def has_views(self) -> bool:
        """Whether one place gave several inputs: there are more inputs than places."""
        placed = sum(key in self.places for key in self.labels)
        return len(self.drawn) < min(placed, COUNTED)

    def keep_rows(self, hashes: Sequence[bytes], rows: NDArray[Any]) -> None:
        """Copy those inputs that belong to the sample."""
        kept = self.rows
        known, items = self.known, kept.items
        # In most batches there is nothing new, which is found out fast.
        if not {*hashes}.difference(known).difference(items):
            return
        new = [index for index, key in enumerate(hashes) if key not in known and key not in items and kept.takes(key)]
        if not new:
            return
        if not self._fits(rows[0, ...]):
            return
        # In parts, so that a batch of any size takes no more memory than the sample.
        for start in range(0, len(new), kept.limit):
            indices = new[start : start + kept.limit]
            kept.put([hashes[index] for index in indices], [rows[index, ...].copy() for index in indices])

    def _fits(self, row: NDArray[Any]) -> bool:
        """Say whether an input has the form of those that are kept, of which there are fewer if they are large."""
        some = next(iter(self.rows.items.values()), row)
        if some.shape != row.shape or not alike(some, row):
            self.other_shapes = True
            return False
        fits = max(1, self._bytes // max(1, some.nbytes))
        if fits < self.rows.limit:
            self.too_large = True
            self.rows.shrink(fits)
        return True

    def join(self, other: "Examples") -> bool:
        """Take over what others saw, and return whether that was news; labels that are known here stay."""
        mine = self.labels.items
        fresh = []
        # In most rounds there is nothing new, which is found out fast.
        if not other.labels.items.keys() <= mine.keys() or None in mine.values():
            for key, label in other.labels.items.items():
                if (key not in mine and self.labels.takes(key)) or (mine.get(key) is None and label is not None):
                    fresh.append((key, label))
        self.labels.put([key for key, _ in fresh], [label for _, label in fresh])
        self._add_places(other.places.items(), other.drawn)
        rows = len(self.rows)
        self.take_rows(other)
        flags = self.other_shapes, self.too_large
        self.other_shapes |= other.other_shapes
        self.too_large |= other.too_large
        return bool(fresh) or len(self.rows) != rows or flags != (self.other_shapes, self.too_large)

    def take_rows(self, other: "Examples") -> None:
        """Keep inputs of examples that were seen here, too."""
        labels, mine = self.labels.items, self.rows
        for key, row in other.rows.items.items():
            if (
                key in labels
                and key not in mine.items
                and key not in self.known
                and mine.takes(key)
                and self._fits(row)
            ):
                mine.put([key], [row])

    def leave_out(self, keys: Collection[bytes]) -> int:
        """Forget what turned out to be no examples, and return how many of these there were."""
        made = [key for key in self.labels if key in keys]
        for key in made:
            del self.labels.items[key]
            self.rows.items.pop(key, None)
        return len(made)

    def without(self, others: "Smallest[Label]") -> bool:
        """Take away what others hold; return whether examples of which that is not known were taken away too."""
        # Nobody knows whether the others had a hash beyond the largest that they keep.
        doubtful = [key for key in self.labels if not others.takes(key)]
        for key in [key for key in self.labels if key in others] + doubtful:
            del self.labels.items[key]
        return bool(doubtful)

    @property
    def total(self) -> int:
        """How many distinct ones there were."""
        self.labels.prune()
        count = len(self.labels)
        if not self.labels.dropped or not count:
            return count
        # The k-th smallest of n uniform draws lies at about k / n.
        # Hashes are as good as uniform in [0, 2^128), whoever holds the example.
        return int((count - 1) * 2 ** (8 * HASH) // int.from_bytes(max(self.labels), "big"))

    def counts(self, total: int, *, by_place: bool = False) -> dict[int, int]:
        """Return how many of each class are among so many, by inputs or by their places."""
        if by_place and not self.labels.dropped:
            return counts_of({self.places[key]: label for key, label in self.labels.items.items()})
        counts = counts_of(self.labels.items)
        if self.labels.dropped:
            counts = {label: count * total // len(self.labels) for label, count in counts.items()}
        return counts

    def seen(self, *, by_place: bool = False) -> SeenExamples:
        """Return what a witness says of them; ``by_place`` where several inputs of one place are one example."""
        total = self.total
        keys = self._list_kept()
        counts = self.counts(total, by_place=by_place)
        if not keys:
            return SeenExamples(*_no_rows(), total, counts)
        labels = [self.labels.items[key] for key in keys]
        kind = np.float32 if any(isinstance(label, float) for label in self.labels.items.values()) else np.int64
        y = np.array([UNKNOWN if label is None else label for label in labels], kind)
        x = stack_examples([self.rows.items[key] for key in keys])
        places = np.array([self.places[key] for key in keys] if by_place else [], np.int64)
        hashes = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, HASH)
        again, again_labels = self._list_repeats(keys)
        return SeenExamples(x, y, hashes, total, counts, places, again, np.array(again_labels, kind))

    def _list_repeats(self, keys: Sequence[bytes]) -> tuple[NDArray[np.int64], list[Label]]:
        """List the copies of kept examples: the index of each, and its label."""
        indices = {key: index for index, key in enumerate(keys)}
        again: list[int] = []
        labels: list[Label] = []
        for (key, label), count in self.repeats.items():
            # Whoever has one example more often than all are counted has said something else.
            if key in indices and label is not None and len(again) + count <= COUNTED:
                again += [indices[key]] * count
                labels += [label] * count
        return np.array(again, np.int64), labels

    def _list_kept(self) -> list[bytes]:
        """List the hashes of the examples that a witness writes, in their order."""
        keys = [key for key in sorted(self.rows) if key in self.labels][: self.rows.limit]
        if self.other_shapes:
            return keys
        # A reader takes all up to the last one as listed: what follows one that is not kept is left out.
        first_missing = min((key for key in self.labels if key not in self.rows), default=None)
        if first_missing is None:
            return keys
        return [key for key in keys if key < first_missing]

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return the hashes and labels of all, as arrays."""
        keys, labels = [*self.labels], [*self.labels.items.values()]
        kinds = [0 if label is None else _REAL if isinstance(label, float) else _INTEGER for label in labels]
        return {
            "hashes": np.frombuffer(b"".join(keys), np.uint8).reshape(-1, HASH),
            "labels": np.array([0 if label is None else label for label in labels], np.float64),
            "kinds": np.array(kinds, np.uint8),
            "places": np.array([self.places.get(key, -1) for key in keys], np.int64),
            "dropped": np.array([self.labels.dropped, self.other_shapes, self.too_large]),
        }

    def remember(self, memory: dict[str, NDArray[Any]], seen: SeenExamples) -> None:
        """Go on from what another process wrote."""
        keys = [bytes(row) for row in memory["hashes"]]
        values = zip(memory["labels"].tolist(), memory["kinds"].tolist(), strict=True)
        self.labels.put(keys, [_label(value, kind) for value, kind in values])
        self.places = {key: place for key, place in zip(keys, memory["places"].tolist(), strict=True) if place >= 0}
        dropped, self.other_shapes, self.too_large = memory["dropped"].tolist()
        if dropped and keys:
            self.labels.limit = min(self.labels.limit, len(keys))
            self.labels._largest = max(keys)
        if len(seen):
            kept = [bytes(row) for row in seen.hashes]
            self.keep_rows(kept, seen.x)
            self.repeats.update(
                (kept[row], label) for row, label in zip(seen.again, seen.again_y.tolist(), strict=True)
            )


def _label(value: float, kind: int) -> Label:
    if not kind:
        return None
    return int(value) if kind == _INTEGER else value


def _no_rows() -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8]]:
    none = SeenExamples.none()
    return none.x, none.y, none.hashes
