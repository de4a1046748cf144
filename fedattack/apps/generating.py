"""Losses of examples under generators that clients send alone: how near the best of some outputs comes to an example.

A generator that was trained on few examples makes outputs that are nearer to these than to others (Hilprecht et al.
2019, "Monte Carlo and reconstruction membership inference attacks against generative models"; Chen et al. 2020,
"GAN-Leaks"). The app's own training says what a generator takes: its inputs are kept, and put into each generator.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import starmap
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import tree_map

from fedattack.apps.player import Along, Handler, UpdatesPlayer, form_of, put_in
from fedattack.base.errors import DataError
from fedattack.base.structured import fields
from fedattack.record.format import Arrays
from fedattack.witness.arrays import same
from fedattack.witness.feeding import feed, find_own_steps
from fedattack.witness.step import as_array, tensors_of

BY_GENERATOR = "the loss of an example is its squared distance to the nearest of "
"""How a note begins that losses are distances to what a generator makes."""

SAMPLES = 2_000
"""Outputs of each generator that are held against examples."""


class GeneratorPlayer(UpdatesPlayer):
    """Gives the squared distance of each target to the nearest output of a generator, under any weights.

    Parameters
    ----------
    handler
        The training of a client.
    weights
        What it is sent: a generator's.
    x, y
        (n, …), (n,): the targets.

    Raises
    ------
    DataError
        If the training calls no model with these weights that makes something as large as an example.
    """

    gives_gradients = False

    def __init__(self, handler: Handler, weights: Arrays, x: NDArray[Any], y: NDArray[Any]) -> None:
        super().__init__(x, y)
        self._handler = handler
        if fields(x):
            raise DataError("an example is of several arrays, and what a generator makes is one")
        calls = _GeneratorCalls(weights, x[0].size)
        with calls.watching():
            self._steps = find_own_steps(lambda: handler(weights), x, None)
        if calls.generator is None:
            raise DataError(
                "clients send the weights of no model that makes something as large as an example in their training"
            )
        self._generator, self._places = calls.generator, calls.places
        self._inputs = calls.inputs

    def take(self, weights: Arrays) -> None:
        """Put other weights in."""
        self._weights = weights
        state = self._generator.state_dict()
        with torch.no_grad():
            for name, place in self._places.items():
                put_in(state[place], weights[name])

    def losses(self) -> NDArray[np.float64]:
        """Return the mean squared distance (targets,) to the nearest output, under the weights that were taken last."""
        made = self._make_outputs()
        flat = self._x.reshape(len(self._x), -1).astype(np.float64)
        return np.asarray(cdist(flat, made, "sqeuclidean").min(axis=1) / flat.shape[1])

    def _make_outputs(self) -> NDArray[np.float64]:
        """Return outputs (samples, size) for the inputs that the app's training drew."""
        made = []
        with torch.no_grad():
            for args, kwargs in self._inputs:
                output = tensors_of(self._generator(*args, **kwargs))[0]
                made.append(output.reshape(len(output), -1).double().numpy(force=True))
        return np.concatenate(made)[:SAMPLES]

    def update(self, weights: Arrays, x: NDArray[Any], y: NDArray[Any], seed: int) -> Arrays:
        """Return what the client would reply had it these examples (n, …): the app itself trains on them."""
        (place,) = self._steps.leaves
        reply = feed(lambda: self._handler(weights, seed), {place: x}, seed, self._steps.indices)
        found = self._handler.read_arrays(reply)
        if form_of(found) != form_of(weights):
            raise DataError("trained on other examples, the app's reply holds other arrays than it was sent")
        return found

    def along(self, updates: Any) -> Along:
        """Refuse: an example has no gradient here."""
        raise DataError("the nearest output of a generator has no gradient that training follows")

    def list_assumptions(self) -> Iterator[str]:
        """Say what the loss of an example is."""
        count = min(SAMPLES, sum(starmap(_count_rows, self._inputs)))
        yield (
            f"{BY_GENERATOR}{count:,} outputs of the generator that a client sent, for inputs that the app's own "
            "training draws"
        )


class _GeneratorCalls:
    """Finds the model that a training calls with some weights, and keeps what it takes."""

    def __init__(self, weights: Arrays, size: int) -> None:
        self._weights, self._size = weights, size
        self._found: nn.Module | None = None
        # Models that are no generator, which stay alive: another one would get the id of one that is gone.
        self._others: dict[int, nn.Module] = {}
        self._count = 0
        self.generator: nn.Module | None = None
        self.places: dict[str, str] = {}
        self.inputs: list[tuple[Any, Any]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch calls of models while this is entered."""
        handle = register_module_forward_hook(self._note, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if id(module) in self._others or (self._found is not None and module is not self._found):
            return
        made = tensors_of(output)
        if not made or not made[0].ndim or made[0].numel() != len(made[0]) * self._size:
            self._others[id(module)] = module
            return
        if self._found is None:
            # At its first call it has the weights that were sent.
            places = _find_places(module, self._weights)
            if places is None:
                self._others[id(module)] = module
                return
            self._found, self.places = module, places
            self.generator = deepcopy(module).eval()
        if self._count < SAMPLES:
            self._count += len(made[0])
            self.inputs.append(tree_map(_copy, (args, kwargs)))


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _count_rows(args: Any, kwargs: Any) -> int:
    return max((len(value) for value in tensors_of((args, kwargs)) if value.ndim), default=1)


def _find_places(module: nn.Module, weights: Arrays) -> dict[str, str] | None:
    """Return where in a model's state each array of the weights stands; ``None`` if one stands nowhere."""
    left = [(name, value) for name, value in module.state_dict().items() if isinstance(value, Tensor)]
    places = {}
    for name, array in weights.items():
        for index, (place, value) in enumerate(left):
            if value.numel() == array.size and same([as_array(value).reshape(array.shape)], [array]):
                places[name] = place
                del left[index]
                break
        else:
            return None
    return places
