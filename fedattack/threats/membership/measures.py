"""What a server can measure of a target record and a client's message: losses, gradients, and where the update points.

Gradients of single examples are made a few at a time, so that neither examples × parameters nor clients × parameters is
ever held: :data:`BOUND` limits both.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad, vmap

from fedattack.attacks.knowledge import Targets
from fedattack.base.machine import MEMORY
from fedattack.learning import losses_of_models
from fedattack.learning.inputs import Inputs, call, mean_loss_in
from fedattack.learning.losses import RecordLoss, mean_loss
from fedattack.learning.torch_utils import in_mode, to_tensor
from fedattack.record.format import Arrays
from fedattack.threats.membership.fedmia import LARGEST_LOSS

Floats = NDArray[np.float64]

BOUND = MEMORY // 8
"""Bytes of gradients, and of updates, that are held at a time: of each there are several copies."""

# How many arrays of the size of a chunk's gradients torch.func holds at once, beside activations.
_COPIES = 3

_MOST_EXAMPLES = 128


class ExampleGradients:
    """Gradients of single examples' losses at given parameters, in evaluation mode.

    Parameters
    ----------
    model
        The architecture; moved to the device.
    loss
        What clients minimise; see :func:`fedattack.learning.losses.mean_loss`.
    x, y
        (n, *shape), (n,): examples and labels.
    device
        Where to compute.
    bound
        Bytes of gradients held at a time.
    frozen
        Names of parameters that no client trains, of which there is no gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: str,
        x: NDArray[Any],
        y: NDArray[Any],
        *,
        device: torch.device | str = "cpu",
        bound: int = BOUND,
        frozen: Collection[str] = (),
    ) -> None:
        self.model = model.to(device)
        self.device = torch.device(device)
        self.inputs = Inputs.of(x, device)
        self.y = to_tensor(y, device=device)
        if loss == "cross-entropy":
            self.y = self.y.long()
        trained = {name: value for name, value in model.named_parameters() if name not in frozen}
        self.names = [*trained]
        self.size = sum(value.numel() for value in trained.values())
        self.bound = bound
        self._one_by_one = False
        self._loss = mean_loss(loss)
        self._gradient = vmap(grad(self._loss_of), in_dims=(None, None, 0, 0))

    def _loss_of(
        self, parameters: dict[str, Tensor], others: dict[str, Tensor], leaves: dict[str, Tensor], y: Tensor
    ) -> Tensor:
        batch = {place: leaf[None] for place, leaf in leaves.items()}
        return mean_loss_in(call(self.model, {**others, **parameters}, batch, ties=True), y[None], self._loss)

    def at(self, state: Mapping[str, Any]) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """Yield which examples, and by parameter their gradients (examples, numbers), a few at a time."""
        parameters, others = self._split(state)
        count = min(_MOST_EXAMPLES, rows_at_once(self.size * _COPIES, self.bound))
        with in_mode(self.model, training=False):
            for first in range(0, len(self.inputs), count):
                rows = slice(first, first + count)
                gradients = self._gradients(parameters, others, self.inputs[rows].leaves, self.y[rows])
                yield rows, {name: gradients[name].flatten(1) for name in self.names}

    def _gradients(
        self, parameters: dict[str, Tensor], others: dict[str, Tensor], leaves: dict[str, Tensor], y: Tensor
    ) -> dict[str, Tensor]:
        """Return by parameter the gradients (examples, …) of a few examples."""
        if not self._one_by_one:
            try:
                together: dict[str, Tensor] = self._gradient(parameters, others, leaves, y)
                return together
            except RuntimeError:
                if self.inputs.only is not None:
                    raise
                # Models that look at masks to save work cannot be traced for many examples at once.
                self._one_by_one = True
        single: dict[str, list[Tensor]] = {name: [] for name in self.names}
        for row in range(len(y)):
            of_row = {place: leaf[row] for place, leaf in leaves.items()}
            for name, gradient in grad(self._loss_of)(parameters, others, of_row, y[row]).items():
                single[name].append(gradient)
        return {name: torch.stack(gradients) for name, gradients in single.items()}

    def norms(self, state: Mapping[str, Any]) -> Floats:
        """Return the norm of each example's gradient, (n,)."""
        norms = np.empty(len(self.inputs))
        for rows, gradients in self.at(state):
            norms[rows] = _norms(gradients)
        return norms

    def along(self, state: Mapping[str, Any], updates: Sequence[Mapping[str, Any]]) -> tuple[Floats, Floats]:
        """Return ⟨−∇ℓ, Δ⟩ for each example and update, (n, updates), and ‖∇ℓ‖, (n,).

        A client that trained on an example pulled its update down the example's own gradient: the product is large.
        """
        products = np.zeros((len(self.inputs), len(updates)))
        norms = np.empty(len(self.inputs))
        most = rows_at_once(self.size, self.bound)
        for first in range(0, len(updates), most):
            chunk = slice(first, first + most)
            directions = {name: self._stack(name, updates[chunk]) for name in self.names}
            for rows, gradients in self.at(state):
                for name, gradient in gradients.items():
                    products[rows, chunk] -= (gradient @ directions[name]).cpu().numpy()
                norms[rows] = _norms(gradients)
        return products, norms

    def _stack(self, name: str, updates: Sequence[Mapping[str, Any]]) -> Tensor:
        """Return the parts (numbers, updates) of updates that belong to a parameter."""
        parts = []
        for update in updates:
            parts.append(to_tensor(update[name], dtype=torch.float32, device=self.device).flatten())
        return torch.stack(parts, dim=1)

    def _split(self, state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Tell trained parameters from all else, each of the model's own type; of tied ones the first is given."""
        own = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        values = {}
        for name, value in state.items():
            if name in own:
                values[name] = to_tensor(value, dtype=own[name].dtype, device=self.device)
        parameters = {name: values.pop(name) for name in self.names}
        return parameters, values


def _norms(gradients: Mapping[str, Tensor]) -> Floats:
    squares = 0.0
    for gradient in gradients.values():
        squares = squares + torch.linalg.vector_norm(gradient, dim=1).double().cpu().numpy() ** 2
    return np.asarray(np.sqrt(squares))


def losses_at(
    state: Mapping[str, Any], model: nn.Module, examples: Targets, loss: RecordLoss, device: torch.device
) -> Floats:
    """Return the examples' losses (n,) at some parameters, none above :data:`LARGEST_LOSS`; NaN stays NaN."""
    losses = losses_of_models(model, [state], examples.x, examples.y, loss, device=device)[0]
    return np.asarray(np.minimum(losses.numpy(), LARGEST_LOSS))


def length_of(update: Mapping[str, NDArray[Any]]) -> float:
    """Return the norm of an update."""
    return float(np.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in update.values())))


def rows_at_once(size: int, bound: int = BOUND) -> int:
    """Return how many vectors of ``size`` float32 numbers are held at a time, at least one."""
    return max(1, bound // (4 * max(1, size)))


def difference(sent: Arrays, received: Arrays, names: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Return Δ = sent − received of the parameters ``names``."""
    update = {}
    for name in names:
        update[name] = (sent[name].astype(np.float64) - received[name].astype(np.float64)).astype(np.float32)
    return update
