"""Losses of examples under discriminators that take no labels: how little one takes an example for a real one.

A discriminator that was trained on few examples scores these higher than others (Hayes et al. 2019, "LOGAN: Membership
inference attacks against generative models"). It is asked for its score of an example alone, without a generator.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.apps.generating import AdversaryCalls, AdversaryPlayer, is_state
from fedattack.apps.player import Handler
from fedattack.record.format import Arrays
from fedattack.witness.step import as_array, tensors_of

BY_DISCRIMINATOR = "the loss of an example is how little "
"""How a note begins that losses are scores of a discriminator."""

_BATCH = 256

# What only changes the form of an output, behind the function that gives it.
_RESHAPING = ("View", "Squeeze", "Unsqueeze", "Reshape", "UnsafeView", "Select", "Slice")


class DiscriminatorPlayer(AdversaryPlayer):
    """Gives the loss −log σ(s) of each target, whose score s a discriminator gives, under any weights.

    Training raises the score of real examples, or lowers it, as some apps do: then the loss is −log σ(−s).
    """

    def __init__(self, handler: Handler, weights: Arrays, x: NDArray[Any], y: NDArray[Any]) -> None:
        calls = _DiscriminatorCalls(weights, x)
        super().__init__(handler, weights, x, y, calls)
        self._gives_probabilities, self._sign = calls.gives_probabilities, calls.sign

    def losses(self) -> NDArray[np.float64]:
        """Return the losses (targets,) under the weights that were taken last."""
        like = next(self._model.parameters())
        scores = []
        with torch.no_grad():
            for rows in np.array_split(self._x, -(-len(self._x) // _BATCH)):
                scores.append(self._model(torch.from_numpy(rows).to(like)).double().reshape(-1))
        score = torch.cat(scores)
        if self._gives_probabilities:
            score = score.logit(eps=1e-12)
        # −log σ(s) = log(1 + exp(−s)), without overflow.
        return nn.functional.softplus(-self._sign * score).numpy(force=True)

    def list_assumptions(self) -> Iterator[str]:
        """Say what the loss of an example is."""
        yield (
            f"{BY_DISCRIMINATOR}the discriminator that a client sent takes it for a real one: −log σ(s) of the score s "
            "that it gives the example alone"
        )


class _DiscriminatorCalls(AdversaryCalls):
    """Finds a discriminator, and whether training raises its scores of the client's examples, which are targets.

    Attributes
    ----------
    gives_probabilities
        Whether its scores have passed a sigmoid.
    sign
        1 where training raises scores of examples, −1 where it lowers them.
    """

    does = "gives one number for an example alone"

    def __init__(self, weights: Arrays, x: NDArray[Any]) -> None:
        super().__init__(weights)
        self._shape = x.shape[1:]
        self._known = {row.tobytes() for row in x}
        self._slope = 0.0
        self.gives_probabilities = False

    @property
    def sign(self) -> int:
        """The direction into which training moves scores of examples."""
        return -1 if self._slope > 0 else 1

    def fits(self, taken: Sequence[Tensor], made: Tensor) -> bool:
        """Say whether a call takes nothing but examples, and gives a number for each."""
        return len(taken) == 1 and taken[0].shape[1:] == self._shape and made.numel() == len(made) == len(taken[0])

    def find_places(self, module: nn.Module) -> dict[str, str]:
        """Return where some of the weights stand, if all of the model does, in one piece and its order."""
        names = [*self._weights]
        # Buffers are not always sent.
        for entries in (module.state_dict(), dict(module.named_parameters())):
            for start in range(len(names) - len(entries) + 1):
                places = dict(zip(names[start:], entries, strict=False))
                if entries and all(is_state(entries[place], self._weights[name]) for name, place in places.items()):
                    return places
        return {}

    def note_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], made: Tensor) -> None:
        """Wait for the gradient of the scores of examples."""
        if not made.requires_grad:
            return
        self.gives_probabilities = _is_sigmoid(made)
        (rows,) = tensors_of((args, kwargs))
        is_known = [row.tobytes() in self._known for row in as_array(rows)]
        if any(is_known):
            made.register_hook(partial(self._note_gradient, torch.tensor(is_known)))

    def _note_gradient(self, is_known: Tensor, gradient: Tensor) -> None:
        self._slope += float(gradient.reshape(len(is_known))[is_known].sum())


def _is_sigmoid(output: Tensor) -> bool:
    """Say whether a sigmoid gives an output, whose form may be changed behind it."""
    node = output.grad_fn
    while node is not None and node.name().startswith(_RESHAPING):
        node = node.next_functions[0][0]
    return node is not None and node.name().startswith("Sigmoid")
