"""Let somebody's own training run on other examples than theirs."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedattack.base.errors import DataError, short
from fedattack.base.structured import SEPARATOR, fields
from fedattack.witness.step import Reader, Step, fill_leaves
from fedattack.witness.tape import leaves_like, reading


class _TrainingReader(Reader):
    """Follows the steps that train a model, in the order in which they begin."""

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step | None:
        """Note the call of a model."""
        # The base class draws a new step or goes on with the last one.
        before = self.step
        step = super().begin(module, args, kwargs)
        if step is not None and step is not before and step.trains and module.training:
            self.begin_training(step)
        return step

    def begin_training(self, step: Step) -> None:
        """Note that a step in training begins."""


class Feeder(_TrainingReader):
    """Puts other examples into the place of those that steps train on, batch by batch.

    Each pass over them is in another order.

    Parameters
    ----------
    leaves
        By place, (n, …): the examples.
    seed
        Of the orders.
    only
        The steps in training that take them, by their positions; ``None`` for all.
    """

    def __init__(self, leaves: Mapping[str, NDArray[Any]], seed: int, only: Collection[int] | None = None) -> None:
        super().__init__()
        self.steps = 0
        self._only = only
        self._index = -1
        self._leaves_of_examples = leaves
        self._total = len(next(iter(leaves.values())))
        self._rng = np.random.default_rng(seed)
        self._order = np.zeros(0, np.int64)
        self._missing: set[str] = set()

    def begin_training(self, step: Step) -> None:
        """Draw the examples of a batch, if the step takes some."""
        self._index += 1
        if self._only is not None and self._index not in self._only:
            return
        rows = self._draw(step.count)
        chosen = {place: array[rows] for place, array in self._leaves_of_examples.items()}
        self._missing = {*chosen}

        def stand_in(place: str, tree: Any) -> Any:
            inner = f"{place}{SEPARATOR}"
            self._missing -= {name for name in self._missing if name == place or name.startswith(inner)}
            return fill_leaves(place, tree, step.count, chosen)

        step.stand_in = stand_in

    def _draw(self, count: int) -> NDArray[np.int64]:
        # Without replacement within a pass, and the next pass follows on: batches are as large as the app's own.
        while len(self._order) < count:
            self._order = np.concatenate([self._order, self._rng.permutation(self._total)])
        rows, self._order = self._order[:count], self._order[count:]
        return rows

    def end_step(self) -> None:
        """Note that a gradient is asked for.

        Raises
        ------
        DataError
            If the step took something that the examples hold and that did not come from them.
        """
        if self.end() is None:
            return
        if self._missing:
            raise DataError(
                f"a step of the app does not take {short(', '.join(sorted(self._missing)), 80)}, as other steps do"
            )
        self.steps += 1


@dataclass(frozen=True)
class OwnSteps:
    """The steps in training that take examples of some form.

    Attributes
    ----------
    result
        What was returned by what trains.
    indices
        Which of all steps in training they are.
    leaves
        By place, (n, …): the examples of that form, as these steps take them.
    """

    result: Any
    indices: frozenset[int]
    leaves: Mapping[str, NDArray[Any]]


class _FormReader(_TrainingReader):
    """Notes which steps in training take examples like ``x`` (n, …) with labels like ``y`` (n,), or with none."""

    def __init__(self, x: NDArray[Any], y: NDArray[Any] | None) -> None:
        super().__init__()
        self.own: list[int] = []
        self.leaves: Mapping[str, NDArray[Any]] = {}
        self._x, self._y = x, y
        # How many steps began, and those of them that did not end yet: micro-batches end together.
        self._number = 0
        self._begun: list[tuple[int, Step]] = []

    def begin_training(self, step: Step) -> None:
        """Note that a step in training begins."""
        self._begun.append((self._number, step))
        self._number += 1

    def end_step(self) -> None:
        """Note that a gradient is asked for: now it is known what the steps before it took."""
        self.end()
        for index, step in self._begun:
            leaves = self._read_leaves(step)
            if leaves is not None and (not self.own or [*leaves] == [*self.leaves]):
                self.leaves = leaves
                self.own.append(index)
        self._begun = []

    def _read_leaves(self, step: Step) -> Mapping[str, NDArray[Any]] | None:
        """Return the examples as leaves of a step; ``None`` where it takes something else."""
        try:
            rows = step.rows()
            if self._y is None:
                alike = [place for place in fields(rows) if _are_alike(rows[place], self._x)]
                # If there are several, such as noise that is as large, nobody knows which are examples.
                return {alike[0]: self._x} if len(alike) == 1 else None
            leaves = leaves_like(rows, self._x, self._y)
        except DataError:
            return None
        if all(_are_alike(rows[place], leaves[place]) for place in fields(rows)):
            return leaves
        return None


def _are_alike(taken: NDArray[Any], given: NDArray[Any]) -> bool:
    """Say whether what a step takes is of the shape and the kind of numbers of what examples hold."""
    if taken.shape[1:] != given.shape[1:]:
        return False
    if (taken.dtype.kind == "f") == (given.dtype.kind == "f"):
        return True
    # Labels that are classes may be given to a loss as floating-point numbers.
    return taken.dtype.kind == "f" and bool((taken == np.rint(taken)).all())


def find_own_steps(handler: Callable[[], Any], x: NDArray[Any], y: NDArray[Any] | None) -> OwnSteps:
    """Call what trains as it is, and find the steps that take examples like ``x`` (n, …) with labels like ``y`` (n,).

    Other steps may learn something else, such as what other clients predict. Where ``y`` is ``None``, examples go
    without labels, as those that a discriminator is shown.

    Raises
    ------
    DataError
        If no step does.
    """
    reader = _FormReader(x, y)
    with reading(reader, lambda losses: reader.end_step()):
        result = handler()
    if not reader.own:
        raise DataError("no step of PyTorch in the app's handler takes examples and labels like the targets")
    return OwnSteps(result, frozenset(reader.own), reader.leaves)


def feed(
    handler: Callable[[], Any], leaves: Mapping[str, NDArray[Any]], seed: int, only: Collection[int] | None = None
) -> Any:
    """Call what trains, with other examples in the place of its own, and return what it returns.

    Parameters
    ----------
    handler
        Trains as often, and in batches as large, as with its own.
    leaves
        By place, (n, …): the examples; see :func:`fedattack.witness.tape.leaves_for`.
    seed
        Of the order in which they are taken.
    only
        The steps in training that take them, as :func:`find_own_steps` finds them; ``None`` for all.

    Raises
    ------
    DataError
        If it makes no step of PyTorch, or one that takes other things than the examples hold.
    """
    feeder = Feeder(leaves, seed, only)
    # A step is over when the app asks for a gradient, whatever its optimizer then does.
    with reading(feeder, lambda losses: feeder.end_step()):
        result = handler()
    if not feeder.steps:
        raise DataError("the app's handler ended without a step of PyTorch: nothing was trained on other examples")
    return result
