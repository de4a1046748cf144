"""Gradient inversion: find examples whose training moves a model as a client's did.

Two searches: cosine distance plus total variation with signed Adam (Geiping et al. 2020, "Inverting gradients – how
easy is it to break privacy in federated learning?", equation 4), and squared distance with L-BFGS (Zhu et al. 2019,
"Deep leakage from gradients"). Labels are read off the last layer (Zhao et al. 2020, "iDLG") or searched for as well.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_, vmap

from fedattack.errors import DataError, NeedsError
from fedattack.learning import LocalSGD
from fedattack.learning.soft_losses import soft_loss
from fedattack.learning.torch_utils import to_tensor
from fedattack.threats.attribute.gradient_matching import descend, entries, generators, scaled
from fedattack.threats.matching import is_finite, is_zero

Method = Literal["cos", "l2"]
Arrays = Mapping[str, NDArray[Any]]
Tensors = Mapping[str, Tensor]

METHODS: tuple[Method, ...] = ("cos", "l2")

MEMORY = 2**30
"""Bytes that the batches searched together may take; more batches are searched in groups."""

ONE_GRADIENT = LocalSGD(epochs=1, batch_size=0, lr=1.0)
"""Local training whose movement is the gradient over all examples: what a client of FedSGD sends."""

# Geiping et al. 2020, Appendix: the step, and the shares of the search after which it falls to a tenth.
_STEP = 0.1
_FALLS = (3 / 8, 5 / 8, 7 / 8)
# A movement and its own gradient keep about this many copies of a model alive in every local step.
_COPIES = 8


@dataclass(frozen=True)
class Batch:
    """What a server knows of the examples that a client trained on in a round.

    Attributes
    ----------
    received
        The model that the client started from: parameters and buffers by name.
    movement
        By how much the model moved, as :meth:`ClientModel.movement` states it, by parameter name.
    records
        How many examples there are.
    labels
        (n,): their labels; ``None`` to search for them as well.
    """

    received: Arrays
    movement: Arrays
    records: int
    labels: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Search:
    """How examples are searched for.

    Attributes
    ----------
    method
        ``cos``: cosine distance, signed Adam; ``l2``: squared distance as a share of the movement's, L-BFGS.
    iterations
        Steps of Adam; at most as many of L-BFGS.
    restarts
        Searches from different random examples, of which the one with the least objective is taken.
    variation
        Weight of the total variation, which counts for images alone.
    """

    method: Method = "cos"
    iterations: int = 2000
    restarts: int = 1
    variation: float = 0.0


class Found(NamedTuple):
    """Reconstructed examples.

    Attributes
    ----------
    x
        (n, *shape) float32: model inputs.
    y
        (n,) int64 labels; (n, outputs) float32 targets of a regression.
    objectives
        (restarts,): where each search ended; NaN where it diverged.
    """

    x: NDArray[np.float32]
    y: NDArray[Any]
    objectives: NDArray[np.float64]


class ClientModel:
    """What an attacker takes a client to compute in a round, as a differentiable function of its examples.

    All examples in their order make the mini-batches of every epoch: the client's own order is not known. Dropout is
    off, because its masks are not known either. Batch normalisation takes the batch's own statistics, as in training.

    Parameters
    ----------
    model
        The architecture; copied.
    loss
        A name in :data:`fedattack.learning.LOSSES`, or an import path.
    training
        How clients train; :data:`ONE_GRADIENT` where they send gradients.
    running_statistics
        Let batch normalisation take the received model's running statistics instead.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: str,
        training: LocalSGD,
        *,
        device: torch.device | str = "cpu",
        running_statistics: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.model = copy.deepcopy(model).to(self.device).eval()
        if not running_statistics:
            replace_all_batch_norm_modules_(self.model)
        self.loss, self.training = loss, training
        self._loss = soft_loss(loss)
        self._parameters = {*dict(self.model.named_parameters())}
        self._buffers = {*dict(self.model.named_buffers())}

    def split(self, state: Arrays) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the parameters of a state, and the buffers that are used, as tensors."""
        parameters, buffers = {}, {}
        for name, array in state.items():
            tensor = to_tensor(array, device=self.device)
            if name in self._parameters:
                parameters[name] = tensor.float()
            elif name in self._buffers:
                buffers[name] = tensor.float() if tensor.is_floating_point() else tensor
        return parameters, buffers

    def outputs(self, shape: tuple[int, ...]) -> int:
        """Return how many outputs the model has for an example of a shape."""
        with torch.no_grad():
            # Two records, because some normalisations take no single one.
            return int(self.model(torch.zeros((2, *shape), device=self.device)).reshape(2, -1).shape[1])

    def movement(self, parameters: Tensors, buffers: Tensors, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return (received − sent) / lr by name: for a single step the gradient, with weight decay.

        Parameters
        ----------
        parameters, buffers
            Of the model that the client received.
        x
            (n, *shape): its examples.
        targets
            (n, …): labels as :func:`fedattack.threats.attribute.gradient_matching.soft_targets` makes them.
        """
        how = self.training

        def mean_loss(current: dict[str, Tensor], records: Tensor, wanted: Tensor) -> Tensor:
            outputs = functional_call(self.model, {**current, **buffers}, (records,))
            return self._loss(outputs, wanted).mean()

        moved = {name: torch.zeros_like(value) for name, value in parameters.items()}
        velocity: dict[str, Tensor] = dict(moved)
        size = how.batch_size or len(x)
        for _ in range(how.epochs):
            for records, wanted in zip(x.split(size), targets.split(size), strict=True):
                current = {name: value - how.lr * moved[name] for name, value in parameters.items()}
                gradients = grad(mean_loss)(current, records, wanted)
                for name, gradient in gradients.items():
                    velocity[name] = how.momentum * velocity[name] + gradient + how.weight_decay * current[name]
                    moved[name] = moved[name] + velocity[name]
        return moved


def restore_labels(model: nn.Module, movement: Arrays, records: int) -> NDArray[np.int64]:
    """Read the labels (n,) of a batch off its gradient, ascending (iDLG, Section 3).

    The cross-entropy's gradient by the last bias is the mean of p − onehot(y), whose only negative entry is the label
    of a single example. Of several examples, labels are taken one after another where it is lowest, each adding back
    the 1/n that it took; this is exact while all classes are predicted alike. Without a bias the row sums of the last
    weights stand in, whose signs are the same after a ReLU.

    Parameters
    ----------
    model
        The architecture.
    movement
        By parameter name.
    records
        n, at least 1.

    Raises
    ------
    NeedsError
        If the model does not end in a linear layer.
    """
    prefix, last = "", None
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            prefix, last = f"{name}." if name else "", layer
    if last is None:
        raise NeedsError(
            "labels are read off the gradient of a last linear layer, and this model has none; take label=free"
        )
    if last.bias is not None:
        gradient = movement[f"{prefix}bias"].astype(np.float64)
        share = 1 / records
    else:
        gradient = movement[f"{prefix}weight"].astype(np.float64).sum(axis=1)
        share = float(-gradient[gradient < 0].sum()) / records
    labels = np.zeros(records, dtype=np.int64)
    for record in range(records):
        labels[record] = gradient.argmin()
        gradient[labels[record]] += share
    return np.sort(labels)


def total_variation(x: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, down plus across; 0 for examples that are no images.

    Parameters
    ----------
    x
        (n, channels, height, width), or any other shape.
    """
    if x.ndim != 4:
        return x.new_zeros(())
    total = x.new_zeros(())
    for difference in (x.diff(dim=2), x.diff(dim=3)):
        if difference.numel():
            total = total + difference.abs().mean()
    return total


def invert(
    client: ClientModel,
    batches: Sequence[Batch],
    shape: tuple[int, ...],
    how: Search,
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
    memory: int = MEMORY,
) -> list[Found]:
    """Reconstruct the examples of several batches, each by itself.

    Parameters
    ----------
    client
        What clients compute.
    batches
        What is known of each batch.
    shape
        Shape of an example.
    how
        The search.
    seed
        Of the examples at which searches start.
    progress
        Called with how many batches are done.
    memory
        Bytes that the batches searched together may take.

    Returns
    -------
    list of Found
        One per batch.

    Raises
    ------
    DataError
        If a movement is zero or not finite, or a batch has no examples.
    NeedsError
        If labels are to be searched for under a loss of the user's own.
    """
    for number, batch in enumerate(batches):
        parts = batch.movement.values()
        if batch.records < 1 or not is_finite(parts) or is_zero(parts):
            raise DataError(
                f"gradient inversion, batch {number}: expected at least one example and a movement that is finite and "
                "not zero; leave that round out"
            )
        if batch.labels is None and client.loss not in ("cross-entropy", "mse"):
            raise NeedsError(f"labels can be searched for under cross-entropy and mse, and the loss is {client.loss!r}")
    reconstructed: dict[int, Found] = {}
    for group in _groups(batches, how, client.training, memory):
        problem = _Problem(client, [*group.values()], shape, how, generators(seed, group))
        reconstructed |= dict(zip(group, problem.solve(), strict=True))
        progress(len(reconstructed))
    return [reconstructed[number] for number in range(len(batches))]


class _Problem:
    """Batches of one size, each from several starts: a flat axis of P = batches · restarts independent searches."""

    def __init__(
        self,
        client: ClientModel,
        batches: Sequence[Batch],
        shape: tuple[int, ...],
        how: Search,
        draws: Sequence[np.random.Generator],
    ) -> None:
        self._client, self._how, self._batches = client, how, batches
        records, outputs, device = batches[0].records, client.outputs(shape), client.device
        self._classes = client.loss == "cross-entropy"
        parameters, buffers, movements, labels = [], [], [], []
        for batch in batches:
            of_batch = client.split(batch.received)
            parameters.append(of_batch[0])
            buffers.append(of_batch[1])
            movements.append(client.split(batch.movement)[0])
            labels.append(np.asarray(batch.labels))
        self._parameters = self._repeated_states(parameters, parameters[0])
        self._buffers = self._repeated_states(buffers, buffers[0])
        targets = self._repeated_states(movements, parameters[0])
        # Movements of unit length: the squares of a converged model's would underflow.
        self._scale = _products(targets, targets, torch.float64).rsqrt().float()
        self._targets = scaled(targets, self._scale)
        self._free = batches[0].labels is None
        self._x = self._drawn(draws, (records, *shape))
        if self._free:
            self._y = self._drawn(draws, (records, outputs))
        else:
            known = torch.from_numpy(np.stack(labels)).to(device)
            self._y = self._repeated(torch.eye(outputs, device=device)[known] if self._classes else known)

    def _repeated(self, rows: Tensor) -> Tensor:
        return rows.repeat_interleave(self._how.restarts, dim=0)

    def _repeated_states(self, states: Sequence[Tensors], names: Iterable[str]) -> dict[str, Tensor]:
        repeated = {}
        for name in names:
            repeated[name] = self._repeated(torch.stack([state[name] for state in states]))
        return repeated

    def _drawn(self, draws: Sequence[np.random.Generator], shape: tuple[int, ...]) -> Tensor:
        starts = [draw.normal(size=(self._how.restarts, *shape)) for draw in draws]
        return torch.from_numpy(np.concatenate(starts)).float().to(self._client.device)

    def solve(self) -> list[Found]:
        x, y = self._adam() if self._how.method == "cos" else self._lbfgs()
        with torch.no_grad():
            objectives = self._objectives(x, y, slice(None)).reshape(-1, self._how.restarts).double().cpu().numpy()
        results = []
        for batch, ends in enumerate(objectives):
            # A search that diverged is never the best, unless all did.
            best = batch * self._how.restarts + int(np.where(np.isnan(ends), np.inf, ends).argmin())
            results.append(Found(x[best].cpu().numpy(), self._labels(batch, y[best]), ends))
        return results

    def _labels(self, batch: int, searched: Tensor) -> NDArray[Any]:
        known = self._batches[batch].labels
        if known is not None:
            return known
        return (searched.argmax(dim=1) if self._classes else searched).cpu().numpy()

    def _adam(self) -> tuple[Tensor, Tensor]:
        x, y = self._x.clone().requires_grad_(), self._y.clone().requires_grad_(self._free)
        optimizer = torch.optim.Adam([x, y] if self._free else [x], lr=_STEP)
        steps = self._how.iterations
        falls = np.multiply(_FALLS, steps).astype(int).tolist()
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, 0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            self._objectives(x, y, slice(None)).sum().backward()
            if x.grad is not None:
                x.grad.sign_()
            optimizer.step()
            schedule.step()
        return x.detach(), y.detach()

    def _lbfgs(self) -> tuple[Tensor, Tensor]:
        xs, ys = zip(*map(self._descended, range(len(self._x))), strict=True)
        return torch.stack(xs), torch.stack(ys)

    def _descended(self, start: int) -> tuple[Tensor, Tensor]:
        """Search from one start."""
        only = slice(start, start + 1)
        x, y = self._x[only].clone().requires_grad_(), self._y[only].clone().requires_grad_(self._free)
        free = [x, y] if self._free else [x]
        descend(lambda: self._objectives(x, y, only).sum(), free, self._how.iterations)
        return x.detach()[0], y.detach()[0]

    def _objectives(self, x: Tensor, y: Tensor, chosen: slice) -> Tensor:
        """Return the objectives (P,) of examples (P, n, …) and labels (P, n, …)."""
        targets = y.softmax(dim=-1) if self._free and self._classes else y
        parameters, buffers = _rows(self._parameters, chosen), _rows(self._buffers, chosen)
        moved = scaled(vmap(self._client.movement)(parameters, buffers, x, targets), self._scale[chosen])
        wanted = _rows(self._targets, chosen)
        if self._how.method == "l2":
            apart = {name: moved[name] - target for name, target in wanted.items()}
            distance = _products(apart, apart)
        else:
            length = _products(moved, moved)
            distance = 1 - _products(wanted, moved) / (length + torch.finfo(torch.float32).tiny).sqrt()
        if self._how.variation:
            distance = distance + self._how.variation * torch.stack([*map(total_variation, x)])
        return distance


def _rows(state: Tensors, chosen: slice) -> dict[str, Tensor]:
    return {name: value[chosen] for name, value in state.items()}


def _products(one: Tensors, other: Tensors, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the inner products (P,) of tensors (P, …) with those of the same names, in some precision."""
    return torch.stack([(one[name].to(dtype) * other[name].to(dtype)).flatten(1).sum(1) for name in one]).sum(0)


def _groups(batches: Sequence[Batch], how: Search, training: LocalSGD, memory: int) -> Iterator[dict[int, Batch]]:
    """Yield by index batches that have the same number of examples and fit into memory together."""
    alike: dict[tuple[int, bool], list[tuple[int, Batch]]] = defaultdict(list)
    for index, batch in enumerate(batches):
        alike[batch.records, batch.labels is None].append((index, batch))
    for (records, _), numbered in alike.items():
        size = entries(numbered[0][1].movement)
        room = max(int(memory // (4 * _COPIES * training.steps(records) * size * how.restarts)), 1)
        for start in range(0, len(numbered), room):
            yield dict(numbered[start : start + room])
