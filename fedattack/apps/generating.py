"""Losses of examples under generators that clients send alone: how near the best of some outputs comes to an example.

A generator that was trained on few examples makes outputs that are nearer to these than to others (Hilprecht et al.
2019, "Monte Carlo and reconstruction membership inference attacks against generative models"; Chen et al. 2020,
"GAN-Leaks"). The app's own training says what a generator takes: its inputs are kept, and put into each generator.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
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


class AdversaryPlayer(UpdatesPlayer):
    """Plays one of two models that are trained against each other.

    Parameters
    ----------
    handler
        The training of a client.
    weights
        What it is sent.
    x, y
        (n, …), (n,): the targets.
    calls
        What finds the model, while the client trains.

    Raises
    ------
    DataError
        If the training calls no such model with these weights.
    """

    gives_gradients = False

    def __init__(
        self, handler: Handler, weights: Arrays, x: NDArray[Any], y: NDArray[Any], calls: "AdversaryCalls"
    ) -> None:
        super().__init__(x, y)
        self._handler = handler
        if fields(x):
            raise DataError("an example has several arrays, but models that are trained against each other take one")
        with calls.watching():
            self._steps = find_own_steps(lambda: handler(weights), x, None)
        if calls.model is None:
            raise DataError(f"clients send the weights of no model that {calls.does} in their training")
        self._model, self._places = calls.model, calls.places

    def take(self, weights: Arrays) -> None:
        """Put other weights in."""
        self._weights = weights
        state = self._model.state_dict()
        with torch.no_grad():
            for name, place in self._places.items():
                put_in(state[place], weights[name])

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
        raise DataError("nothing here has a gradient that training follows")


class GeneratorPlayer(AdversaryPlayer):
    """Gives the squared distance of each target to the nearest output of a generator, under any weights."""

    def __init__(self, handler: Handler, weights: Arrays, x: NDArray[Any], y: NDArray[Any]) -> None:
        calls = _GeneratorCalls(weights, x[0].size)
        super().__init__(handler, weights, x, y, calls)
        self._inputs = calls.inputs

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
                output = tensors_of(self._model(*args, **kwargs))[0]
                made.append(output.reshape(len(output), -1).double().numpy(force=True))
        return np.concatenate(made)[:SAMPLES]

    def list_assumptions(self) -> Iterator[str]:
        """Say what the loss of an example is."""
        count = min(SAMPLES, sum(starmap(_count_rows, self._inputs)))
        yield (
            f"{BY_GENERATOR}{count:,} outputs of the generator that a client sent, for inputs that the app's own "
            "training draws"
        )


class AdversaryCalls(ABC):
    """Finds the model that a training calls with some weights, by what it takes and gives.

    Attributes
    ----------
    does
        What the model does, as after "that".
    model
        A copy of it, with the weights that were sent; ``None`` if none was called.
    places
        By the names of the weights, where they stand in its state.
    """

    does: str

    def __init__(self, weights: Arrays) -> None:
        self._weights = weights
        self._found: nn.Module | None = None
        # Other models, which stay alive: a new one would get the id of one that is gone.
        self._others: dict[int, nn.Module] = {}
        self.model: nn.Module | None = None
        self.places: dict[str, str] = {}

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
        taken, made = tensors_of((args, kwargs)), tensors_of(output)
        is_fit = bool(made) and made[0].ndim > 0 and self.fits(taken, made[0])
        if is_fit and self._found is None:
            # At its first call it has the weights that were sent.
            self.places = self.find_places(module)
            is_fit = bool(self.places)
        if not is_fit:
            self._others[id(module)] = module
            return
        if self._found is None:
            self._found, self.model = module, deepcopy(module).eval()
        self.note_call(args, kwargs, made[0])

    @abstractmethod
    def fits(self, taken: Sequence[Tensor], made: Tensor) -> bool:
        """Say whether a call is one of such a model."""

    @abstractmethod
    def find_places(self, module: nn.Module) -> dict[str, str]:
        """Return by the names of the weights where they stand in a model's state; nothing if it is another one."""

    @abstractmethod
    def note_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], made: Tensor) -> None:
        """Note a call of the model."""


class _GeneratorCalls(AdversaryCalls):
    """Finds a generator, and keeps what it takes."""

    does = "makes something as large as an example"

    def __init__(self, weights: Arrays, size: int) -> None:
        super().__init__(weights)
        self._size = size
        self._count = 0
        self.inputs: list[tuple[Any, Any]] = []

    def fits(self, taken: Sequence[Tensor], made: Tensor) -> bool:
        """Say whether an output is as large as an example."""
        return made.numel() == len(made) * self._size

    def find_places(self, module: nn.Module) -> dict[str, str]:
        """Return where each of the weights stands, if all stand in the model."""
        left = [(name, value) for name, value in module.state_dict().items() if isinstance(value, Tensor)]
        places = {}
        for name, array in self._weights.items():
            for index, (place, value) in enumerate(left):
                if is_state(value, array):
                    places[name] = place
                    del left[index]
                    break
            else:
                return {}
        return places

    def note_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], made: Tensor) -> None:
        """Keep the inputs, up to as many as are used."""
        if self._count < SAMPLES:
            self._count += len(made)
            self.inputs.append(tree_map(_copy, (args, kwargs)))


def is_state(value: Tensor, array: NDArray[Any]) -> bool:
    """Say whether an entry of a model's state is an array that was sent."""
    return value.numel() == array.size and same([as_array(value).reshape(array.shape)], [array])


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _count_rows(args: Any, kwargs: Any) -> int:
    return max((len(value) for value in tensors_of((args, kwargs)) if value.ndim), default=1)
