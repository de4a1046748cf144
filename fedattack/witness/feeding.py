"""Let somebody's own training run on other examples than theirs."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedattack.base.errors import DataError, short
from fedattack.base.structured import SEPARATOR
from fedattack.witness.step import Reader, Step, fill_leaves
from fedattack.witness.tape import reading


class Feeder(Reader):
    """Puts other examples into the place of those that steps train on, batch by batch.

    Each pass over them is in another order.

    Parameters
    ----------
    leaves
        By place, (n, …): the examples.
    seed
        Of the orders.
    """

    def __init__(self, leaves: Mapping[str, NDArray[Any]], seed: int) -> None:
        super().__init__()
        self.steps = 0
        self._leaves_of_examples = leaves
        self._total = len(next(iter(leaves.values())))
        self._rng = np.random.default_rng(seed)
        self._order = np.zeros(0, np.int64)
        self._missing: set[str] = set()

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step | None:
        """Note the call of a model, and draw the examples of a batch that trains."""
        # The base class draws a new step or goes on with the last one: only a new one takes new examples.
        before = self.step
        step = super().begin(module, args, kwargs)
        if step is not None and step is not before and step.trains and module.training:
            rows = self._draw(step.count)
            chosen = {place: array[rows] for place, array in self._leaves_of_examples.items()}
            self._missing = {*chosen}

            def stand_in(place: str, tree: Any) -> Any:
                inner = f"{place}{SEPARATOR}"
                self._missing -= {name for name in self._missing if name == place or name.startswith(inner)}
                return fill_leaves(place, tree, step.count, chosen)

            step.stand_in = stand_in
        return step

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


def feed(handler: Callable[[], Any], leaves: Mapping[str, NDArray[Any]], seed: int) -> Any:
    """Call what trains, with other examples in the place of its own, and return what it returns.

    Parameters
    ----------
    handler
        Trains as often, and in batches as large, as with its own.
    leaves
        By place, (n, …): the examples; see :func:`fedattack.witness.tape.leaves_for`.
    seed
        Of the order in which they are taken.

    Raises
    ------
    DataError
        If it makes no step of PyTorch, or one that takes other things than the examples hold.
    """
    feeder = Feeder(leaves, seed)
    # A step is over when the app asks for a gradient, whatever its optimizer then does.
    with reading(feeder, lambda losses: feeder.end_step()):
        result = handler()
    if not feeder.steps:
        raise DataError("the app's handler ended without a step of PyTorch: nothing was trained on other examples")
    return result
