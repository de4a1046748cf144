"""Call the functions of an app's owner: nothing that they do or return ends more than the question that asked them.

This runs in the process of :mod:`fedattack.apps.answering`, beside a copy of the app.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.apps.player import LONGEST, Along, UpdatesPlayer, limit_time, read_longest, seed_all
from fedattack.base.errors import DataError, short
from fedattack.learning.importing import import_callable, one_line
from fedattack.record.format import Arrays
from fedattack.witness import SeenExamples, Witness, write_witness
from fedattack.witness.arrays import labels_of, plain
from fedattack.witness.sample import Examples, Label, hash_rows

MEMORY = 8 * 2**30
"""Bytes that the owner's functions may take beside what the process holds before; half of what is free, if less."""

TOGETHER = 4
"""All calls of a function in one process may take so many times as long as a single call may."""

# Seconds that updates of single targets may take, at one model.
_ALONE_SECONDS = 60

# Two states of all random numbers, under which what draws none gives the same.
_FIRST, _SECOND = 0, 1

Stated = tuple[NDArray[Any], Sequence[Label]]
"""Examples (n, …) and their labels."""


@dataclass
class _Taken:
    """How many seconds calls have taken."""

    seconds: float = 0.0


@dataclass(frozen=True)
class OwnFunction:
    """A function of the owner's, and the option that names it."""

    option: str
    spec: str
    function: Callable[..., Any]
    _taken: _Taken = field(default_factory=_Taken, compare=False)

    @classmethod
    def load(cls, option: str, spec: str) -> "OwnFunction":
        """Import it; a :class:`~fedattack.base.errors.ModelError` if it is not there."""
        return cls(option, spec, import_callable(spec, what=option, known=()))

    def __str__(self) -> str:
        return f"{self.option} {short(self.spec, 80)}"

    def __call__(self, *arguments: Any, seed: int = _FIRST) -> Any:
        """Call it from one state of all random numbers.

        Raises
        ------
        DataError
            If it raises, ends its process, or took too long in all of its calls before.
        """
        self._require_time()
        seed_all(seed)
        process, started = os.getpid(), time.monotonic()
        try:
            with limit_time(str(self)):
                return self.function(*arguments)
        except SystemExit as cause:
            raise DataError(f"{self} ended its process: sys.exit({cause.code!r})") from None
        except Exception as cause:
            raise DataError(f"{self} raised {one_line(cause)}") from None
        finally:
            # A copy of this process that the function made and left behind has nothing to answer.
            if os.getpid() != process:
                os._exit(0)
            self._taken.seconds += time.monotonic() - started

    def _require_time(self) -> None:
        most = TOGETHER * read_longest()
        if self._taken.seconds >= most:
            raise DataError(
                f"{self} took {self._taken.seconds:,.0f} s in all, and {most:,.0f} s is the most for all of its calls: "
                f"it was not called again; if it takes longer, set {LONGEST} to more than {read_longest():g}"
            )


def limit_memory() -> None:
    """Bound what this process takes from now on, so that a function that takes too much fails alone."""
    # Neither is there on every system (Windows), nor is the process's own size (macOS).
    with suppress(ImportError, OSError, ValueError):
        import resource

        from fedattack.base.machine import free_memory

        words = Path("/proc/self/statm").read_text(encoding="ascii").split()
        # The sixth of them counts the pages of data.
        taken = int(words[5]) * os.sysconf("SC_PAGE_SIZE")
        most = int(taken + min(MEMORY, free_memory() / 2))
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def write_examples(request: Mapping[str, Any], say: Callable[[int, int], None]) -> None:
    """Write, as a witness would, which examples a function states of each partition; one that fails has a note."""
    function = OwnFunction.load("--examples", request["functions"]["--examples"])
    partitions: Sequence[int] = request["partitions"]
    folder = Path(request["stated"])
    for done, partition in enumerate(partitions):
        say(done, len(partitions))
        witness = Witness(str(partition), str(partition))
        try:
            trained, held_out = _read_stated(function, partition, request["of"])
            # What is drawn anew in each call is not what the client trained on.
            if not done and not _is_same(trained, _read_stated(function, partition, request["of"], _SECOND)[0]):
                raise DataError(
                    f"{function} returns different examples of partition {partition} when it is called again: expected "
                    "the client's own examples each time; if you draw, use a fixed seed"
                )
            witness = replace(
                witness,
                trained=_sample(trained, request["keep"]),
                evaluated=_sample(held_out, request["keep"]),
                notes=_note_unlabelled(function, trained),
            )
        except DataError as cause:
            witness = replace(witness, notes=(str(cause),))
        write_witness(folder, witness)


def _read_stated(function: OwnFunction, partition: int, partitions: int, seed: int = _FIRST) -> tuple[Stated, Stated]:
    """Return the examples of a partition, and those of it that are held out, which may be none."""
    found = function(partition, partitions, seed=seed)
    where = f"{function}, partition {partition}"
    expected = "expected examples and labels, or these two and held-out examples with their labels"
    if not isinstance(found, tuple | list) or len(found) not in (2, 4):
        got = type(found).__name__
        if isinstance(found, tuple | list):
            got = f"{len(found)} values"
        raise DataError(f"{where}: {expected}; got {got}")
    trained = _read_examples(where, *found[:2])
    if not len(trained[0]):
        raise DataError(f"{where} has no examples; expected at least one")
    held_out: Stated = (trained[0][:0], [])
    if len(found) == 4 and found[2] is not None and len(found[2]):
        held_out = _read_examples(f"{where}, held out", *found[2:])
    return trained, held_out


def _read_examples(where: str, examples: Any, labels: Any) -> Stated:
    try:
        x = plain(examples)
        y = None if labels is None else plain(labels)
    except (DataError, ValueError, TypeError) as cause:
        raise DataError(f"{where}: {short(str(cause), 200)}; give arrays of numbers") from None
    if x.ndim < 2:
        raise DataError(f"{where}: expected one row for each example, got an array of shape {x.shape}")
    if y is None:
        # Nothing is learned of them: all are of one kind.
        return x, [0] * len(x)
    known = labels_of(y, len(x)) if y.ndim else None
    if known is None:
        raise DataError(
            f"{where}: expected one finite number as the label of each of {len(x)} examples, got {y.shape}; return "
            "None if there are no labels"
        )
    return x, known


def _note_unlabelled(function: OwnFunction, trained: Stated) -> tuple[str, ...]:
    if any(trained[1]):
        return ()
    return (f"{function} returns no labels, or returns 0 for all examples: 0 stands for the label of each example",)


def _is_same(one: Stated, other: Stated) -> bool:
    return np.array_equal(one[0], other[0], equal_nan=True) and [*one[1]] == [*other[1]]


def _sample(stated: Stated, keep: int) -> SeenExamples:
    x, labels = stated
    if not len(x):
        return SeenExamples.none()
    examples = Examples(keep)
    hashes = hash_rows(x, 0)
    examples.add(hashes, labels)
    examples.keep_rows(hashes, x)
    examples.repeats = examples.find_repeats([len(x)])
    seen = examples.seen()
    # Nobody can tell which one of equal rows is meant.
    times, rows = Counter(hashes), {key: row for row, key in enumerate(hashes)}
    order = [rows[key] if times[key] == 1 else -1 for key in map(bytes, seen.hashes)]
    return replace(seen, order=np.array(order, dtype=np.int64))


class FunctionPlayer(UpdatesPlayer):
    """Gives losses under any weights, and trains them, by the owner's functions.

    Parameters
    ----------
    losses, update
        The functions; ``update`` may be missing, and then nothing is trained.
    x, y
        (n, …), (n,): the targets.
    """

    def __init__(self, losses: OwnFunction, update: OwnFunction | None, x: NDArray[Any], y: NDArray[Any]) -> None:
        self.gives_gradients = update is not None
        super().__init__(x, y)
        self._losses, self._update = losses, update
        self._draws: dict[OwnFunction, bool] = {}

    def take(self, weights: Arrays) -> None:
        """Put other weights in."""
        self._weights = weights

    def losses(self) -> NDArray[np.float64]:
        """Return the losses (n,) under the weights that were taken last.

        Raises
        ------
        DataError
            If the function raises, or gives another number of losses, or some that are not finite.
        """
        found = self._read_losses(_FIRST)
        # Once is enough to know.
        if self._losses not in self._draws:
            self._draws[self._losses] = not np.array_equal(found, self._read_losses(_SECOND))
        return found

    def _read_losses(self, seed: int) -> NDArray[np.float64]:
        # Copies: a function may scale what it is given where it stands.
        found = self._losses(_copy(self._weights), self._x.copy(), self._y.copy(), seed=seed)
        losses = _read_array(self._losses, found, "losses").astype(np.float64).squeeze()
        losses = losses.reshape(1) if not losses.ndim else losses
        if losses.shape != self._y.shape:
            raise DataError(f"{self._losses}: expected a loss for each of {len(self._y)} examples, got {losses.shape}")
        if wrong := int((~np.isfinite(losses)).sum()):
            raise DataError(f"{self._losses}: {wrong} of {len(losses)} losses are not finite; expected finite numbers")
        return losses

    def update(self, weights: Arrays, x: NDArray[Any], y: NDArray[Any], seed: int) -> Arrays:
        """Return what a client would send that holds these examples.

        Raises
        ------
        DataError
            If no function says so, it raises, or gives what is no array of finite numbers.
        """
        if self._update is None:
            raise DataError("nothing says how clients train: give --update module:function")
        found = self._read_update(weights, x, y, seed, _FIRST)
        if self._update not in self._draws:
            again = self._read_update(weights, x, y, seed, _SECOND)
            self._draws[self._update] = not all(np.array_equal(found[name], again[name]) for name in found)
        return found

    def _read_update(self, weights: Arrays, x: NDArray[Any], y: NDArray[Any], seed: int, state: int) -> Arrays:
        function = self._update
        assert function is not None  # noqa: S101 - the caller has looked
        found = function(_copy(weights), x.copy(), y.copy(), seed, seed=state)
        if not isinstance(found, Mapping):
            raise DataError(f"{function}: expected a dict that maps names to arrays, got {type(found).__name__}")
        arrays = {str(name): _read_array(function, array, str(name)) for name, array in found.items()}
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise DataError(f"{function}: {short(name, 60)} holds numbers that are not finite")
        return arrays

    def along(self, updates: Sequence[Arrays]) -> Along:
        """Hold what each target alone would make of the weights that were taken last against k updates.

        That is along −∇ℓ where a client makes one step, and about so where it makes a few.

        Raises
        ------
        DataError
            If there is no function, or it takes too long.
        """
        names = [name for name in updates[0] if all(name in update for update in updates)]
        flat = np.stack([_flatten(update, names) for update in updates])
        count, before = len(self._y), _flatten(self._weights, names)
        products, norms = np.full((len(updates), count), np.nan), np.full(count, np.nan)
        started = time.monotonic()
        for row in range(count):
            if time.monotonic() - started > _ALONE_SECONDS:
                raise DataError(f"{self._update} made {row} of {count} updates of one example in {_ALONE_SECONDS} s")
            moved = self.update(self._weights, self._x[row : row + 1, ...], self._y[row : row + 1], row)
            self._require_form(moved, names)
            alone = _flatten(moved, names) - before
            products[:, row] = flat @ alone
            norms[row] = np.linalg.norm(alone)
        return products, norms, np.linalg.norm(flat, axis=1)

    def _require_form(self, moved: Arrays, names: Sequence[str]) -> None:
        """Refuse an update in which some of the weights have another shape than the client was sent, or are missing."""
        for name in names:
            shape = np.shape(self._weights[name])
            if name not in moved or moved[name].shape != shape:
                got = moved[name].shape if name in moved else "none"
                raise DataError(f"{self._update}: expected {short(name, 60)} of shape {shape}, as sent; got {got}")

    def list_assumptions(self) -> Iterator[str]:
        """Say whose word is taken for what, and what draws at random."""
        yield f"losses are those that {self._losses} returns"
        if self._update is not None and self._update in self._draws:
            yield (
                f"models are trained by {self._update}, and the gradient of an example is assumed to point along the "
                "update that it makes from that example alone"
            )
        for function, draws in self._draws.items():
            if draws:
                yield (
                    f"{function} returns different numbers when it is called again with the same arguments, so it "
                    "draws at random; one draw of each is used"
                )


def _flatten(arrays: Arrays, names: Sequence[str]) -> NDArray[np.float64]:
    return np.concatenate([np.zeros(0), *(np.ravel(arrays[name]).astype(np.float64) for name in names)])


def _copy(weights: Arrays) -> dict[str, NDArray[Any]]:
    return {name: np.array(array) for name, array in weights.items()}


def _read_array(function: OwnFunction, values: Any, name: str) -> NDArray[Any]:
    try:
        return plain(values)
    except (DataError, ValueError, TypeError) as cause:
        raise DataError(f"{function}: {short(name, 60)}: {short(str(cause), 200)}") from None
