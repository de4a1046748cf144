"""Gradient inversion: find examples whose training moves a model as a client's did.

Two searches: cosine distance plus total variation with Adam (Geiping et al. 2020, "Inverting gradients – how easy is it
to break privacy in federated learning?", equation 4), and squared distance with L-BFGS (Zhu et al. 2019, "Deep leakage
from gradients"). Labels are read off the last layer (Zhao et al. 2020, "iDLG") or searched for as well.

Both differ from the papers in three ways, each of which finds more at the same cost:

- A small distance counts by its logarithm. A sum of distance and total variation weighs the variation against
  distances of one size; on a smooth network all distances are a millionth of those on another.
- Inputs stay within the range that is known of the data. Steps and the variation are counted in this range.
- The cosine distance is half the squared distance of unit vectors. One minus a cosine ends at the precision of 1.

Where a client's buffers tell the statistics of its batches, these are matched, too; see
:mod:`fedattack.threats.inversion.batch_norm`. Tables whose columns are known are searched for as rows of categories and
numbers; see :mod:`fedattack.threats.inversion.table_rows`.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_, vmap

from fedattack.attacks.coding import TableCoding
from fedattack.base.machine import MEMORY
from fedattack.learning import LocalSGD
from fedattack.learning.convolutions import Cut, leave_unreached_out, multiply_few_positions
from fedattack.learning.soft_losses import soft_loss
from fedattack.learning.torch_utils import has_batch_norm, to_tensor
from fedattack.threats.attribute.gradient_matching import descend, entries, generators, scale_values
from fedattack.threats.inversion.batch_norm import (
    MEAN,
    VARIANCE,
    compute_statistics,
    distances,
    find_tracked,
    step_weights,
)
from fedattack.threats.inversion.distance import half_squared_distance
from fedattack.threats.inversion.options import MOST_ORDERED, Method, Order
from fedattack.threats.inversion.table_rows import Relaxation, Span, leave_span, pool_rows

Arrays = Mapping[str, NDArray[Any]]
Tensors = Mapping[str, Tensor]
Box = tuple[NDArray[np.float32], NDArray[np.float32]]

ONE_GRADIENT = LocalSGD(epochs=1, batch_size=0, lr=1.0)
"""Local training whose movement is the gradient over all examples: what a client of FedSGD sends."""

# Adam's first step, as a share of the range of an input, of labels, and of orders that are searched for.
_STEP = 0.3
_LABEL_STEP = 0.1
_ORDER_STEP = 0.1
# Deviation at which the logarithms of parts start, and how often rows and columns are made to sum up in turn.
_ORDER_START, _BALANCED = 0.1, 8
_BETAS, _TINY = (0.9, 0.99), 1e-8
# Steps fall along this power of half a cosine. Larger ones serve smooth networks, and smaller ones ReLU.
_FALL = 1.5
# Weight of the distance of rows from what a first layer says that they are sums of, against that of the movement.
_SPAN = 0.1
# The range that is taken where none is known: inputs of mean 0 and deviation 1.
_RANGE = 3.0
# Keeps the logarithm finite. Single precision does not tell smaller distances of unit vectors from 0.
_LEAST_DISTANCE = 1e-16
# Where the logarithm goes on as a straight line. A client's noise leaves large distances, against which the variation
# would count so much that images were flat.
_LARGE = 0.006
# The share of the evaluations in which all starts take part, half of them, a quarter, and so on.
_RUNG = 0.15
# A movement and its own gradient keep about this many copies of a model alive in every local step.
_COPIES = 8
# Searches in one piece of work. On one thread of a CPU more of them are no faster (measured on two networks).
_MOST_ON_CPU, _MOST_ON_GPU = 4, 64


@dataclass(frozen=True)
class ReplyBatch:
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
    statistics
        Statistics of its batches, as :func:`fedattack.threats.inversion.batch_norm.read_statistics` has them; empty
        where nothing tells them.
    span
        Of rows of a table what they are sums of, where a first layer tells it.
    """

    received: Arrays
    movement: Arrays
    records: int
    labels: NDArray[np.int64] | None = None
    statistics: Arrays = field(default_factory=dict)
    span: Span | None = None


@dataclass(frozen=True)
class Search:
    """How examples are searched for.

    Attributes
    ----------
    method
        ``cos``: cosine distance, Adam; ``l2``: squared distance as a share of the movement's, L-BFGS; ``table``: as
        ``cos``, for rows of a table.
    iterations
        How often a batch's movement may be computed, over all its starts.
    restarts
        Starts from different random examples. With Adam every other one takes signed slopes. Those with the larger
        objectives are given up early (successive halving), and the one with the least is taken. For rows of a table all
        starts go on to the end, and are pooled.
    variation
        Weight of the total variation, which counts for images alone, against the logarithm of the distance.
    box
        Least and largest input, in a shape that broadcasts with an example; ``None`` where they are not known.
    statistics
        Weight of the logarithm of the distance of batch statistics against that of the movement's.
    order
        Which examples are in which mini-batch. ``fixed``: as they stand, in every epoch. ``searched``: each example is
        in every mini-batch by a part, and the parts are searched for, too, where :meth:`ClientModel.can_order` allows.
    coding
        How a table's columns are coded; needed by ``table``.
    """

    method: Method = "cos"
    iterations: int = 2000
    restarts: int = 1
    variation: float = 0.0
    box: Box | None = None
    statistics: float = 0.0
    order: Order = "fixed"
    coding: TableCoding | None = None


class Reconstructed(NamedTuple):
    """Reconstructed examples.

    Attributes
    ----------
    x
        (n, *shape) float32: model inputs.
    y
        (n,) int64 labels; (n, outputs) float32 targets of a regression.
    objectives
        (restarts,): the least objective of each start, at its end or when it was given up; NaN where it diverged. It is
        what half the squared distance of movements counts, the client's of length 1, plus the weighted variation.
    unsure
        (n, columns): of rows of a table, as :func:`~fedattack.threats.inversion.table_rows.pool_rows` has it; else
        ``None``.
    """

    x: NDArray[np.float32]
    y: NDArray[Any]
    objectives: NDArray[np.float64]
    unsure: NDArray[np.float64] | None = None


class ClientModel:
    """What an attacker takes a client to compute in a round, as a differentiable function of its examples.

    All examples in their order make the mini-batches of every epoch, unless parts say otherwise: the client's own order
    is not known. Dropout is off, because its masks are not known either. Batch normalisation takes the batch's own
    statistics, as in training.

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
    shape
        Of an example, where it is known. What its training never changes is then left out of states and movements:
        weights of convolutions that meet padding alone.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: str,
        training: LocalSGD,
        *,
        device: torch.device | str = "cpu",
        running_statistics: bool = False,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.model = copy.deepcopy(model).to(self.device).eval()
        self._momenta: dict[str, float | None] = {}
        self._seen: dict[str, Tensor] = {}
        for prefix, layer in find_tracked(self.model).items():
            self._momenta |= {prefix + MEAN: layer.momentum, prefix + VARIANCE: layer.momentum}
            layer.register_forward_pre_hook(partial(self._see, prefix), with_kwargs=True)
        if not running_statistics:
            replace_all_batch_norm_modules_(self.model)
        multiply_few_positions(self.model)
        self._cuts: Mapping[str, Cut] = {}
        # A decay changes all weights.
        if shape is not None and not training.weight_decay:
            self._cuts = leave_unreached_out(self.model, shape)
        self.loss, self.training = loss, training
        self._loss = soft_loss(loss)
        self._parameters = {*dict(self.model.named_parameters())}
        self._buffers = {*dict(self.model.named_buffers())}

    def split(self, state: Arrays) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the parameters of a state, and the buffers that are used, as tensors."""
        parameters, buffers = {}, {}
        for name, array in state.items():
            tensor = to_tensor(array[self._cuts.get(name, ...)], device=self.device)
            if name in self._parameters:
                parameters[name] = tensor.float()
            elif name in self._buffers:
                buffers[name] = tensor.float() if tensor.is_floating_point() else tensor
        return parameters, buffers

    def left_out(self, movement: Arrays) -> float:
        """Return the squared length of what :meth:`split` leaves out of a movement."""
        total = 0.0
        for name, cut in self._cuts.items():
            rest = movement[name].astype(np.float64)
            rest[cut] = 0
            total += float(np.square(rest).sum())
        return total

    def outputs(self, shape: tuple[int, ...]) -> int:
        """Return how many outputs the model has for an example of a shape."""
        with torch.no_grad():
            # Two records, because some normalisations take no single one.
            return int(self.model(torch.zeros((2, *shape), device=self.device)).reshape(2, -1).shape[1])

    def movement(self, parameters: Tensors, buffers: Tensors, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return (received − sent) / lr by name: for a single step the gradient, with weight decay.

        Takes what :meth:`follow` takes.
        """
        return self.follow(parameters, buffers, x, targets)[0]

    def follow(
        self, parameters: Tensors, buffers: Tensors, x: Tensor, targets: Tensor, parts: Tensor | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return :meth:`movement`, and the statistics of the batches as a mean over the steps, by buffer.

        Parameters
        ----------
        parameters, buffers
            Of the model that the client received.
        x
            (n, *shape): its examples.
        targets
            (n, …): labels as :func:`fedattack.threats.attribute.gradient_matching.soft_targets` makes them.
        parts
            (epochs, mini-batches, n): how much each example counts in the loss of each mini-batch; see :func:`dealt`.
        """
        how = self.training
        counts = {name: step_weights(momentum, how.steps(len(x))) for name, momentum in self._momenta.items()}
        statistics: dict[str, Tensor] = {}

        # What is nothing is not added: of a large model each sum takes as long as a layer.
        moved: dict[str, Tensor] = {}
        velocity: dict[str, Tensor] = {}
        for step, (records, wanted, part) in enumerate(self._mini_batches(x, targets, parts)):
            current = dict(parameters)
            if step:
                current = {name: value - how.lr * moved[name] for name, value in parameters.items()}
            gradients, of_batch = grad(self._lose, has_aux=True)(current, buffers, records, wanted, part)
            for name, value in of_batch.items():
                statistics[name] = statistics.get(name, 0) + float(counts[name][step]) * value
            for name, change in gradients.items():
                if step and how.momentum:
                    change = how.momentum * velocity[name] + change
                if how.weight_decay:
                    change = change + how.weight_decay * current[name]
                velocity[name] = change
                moved[name] = moved[name] + change if step else change
        return moved, statistics

    def follow_all(
        self, parameters: Tensors, buffers: Tensors, x: Tensor, targets: Tensor, *parts: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return what :meth:`follow` returns for several clients: all that it takes has one more axis, the first."""
        followed: tuple[dict[str, Tensor], dict[str, Tensor]] = vmap(self.follow)(
            parameters, buffers, x, targets, *parts
        )
        return followed

    def _lose(
        self, current: Tensors, buffers: Tensors, records: Tensor, wanted: Tensor, part: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a mini-batch, and the statistics of its examples in layers of batch normalisation."""
        self._seen = {}
        losses = self._loss(functional_call(self.model, {**current, **buffers}, (records,)), wanted)
        if part is None:
            return losses.mean(), self._seen
        return losses @ part, self._seen

    def sizes(self, records: int) -> list[int]:
        """Return how many examples are in each mini-batch of an epoch."""
        size = self.training.batch_size or records
        return [min(size, records - start) for start in range(0, records, size)]

    def can_order(self, records: int) -> bool:
        """Say whether an order of so many examples can be searched for.

        It can be in two to :data:`MOST_ORDERED` mini-batches, and without batch normalisation: an example that is in a
        mini-batch by a part would change all of its statistics.
        """
        return 1 < len(self.sizes(records)) <= MOST_ORDERED and not has_batch_norm(self.model)

    def _mini_batches(
        self, x: Tensor, targets: Tensor, parts: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Yield the examples of each step, their targets, and how much each counts; None where all count alike."""
        sizes = self.sizes(len(x))
        for epoch in range(self.training.epochs):
            if parts is None:
                for records, wanted in zip(x.split(sizes), targets.split(sizes), strict=True):
                    yield records, wanted, None
            else:
                for part in parts[epoch]:
                    yield x, targets, part

    def _see(self, prefix: str, layer: nn.Module, given: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> None:
        (x,) = (*given, *named.values())
        self._seen |= compute_statistics(prefix, x)


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


def invert_group(
    client: ClientModel,
    group: Mapping[int, ReplyBatch],
    shape: tuple[int, ...],
    how: Search,
    *,
    seed: int = 0,
    memory: int = MEMORY,
) -> dict[int, Reconstructed]:
    """Reconstruct, by index, the examples of a group of :func:`groups_of`; batch i draws from (seed, i)."""
    together = _together(group[min(group)], client.training, memory)
    problem = _Problem(client, [*group.values()], shape, how, generators(seed, group), together)
    return dict(zip(group, problem.solve(), strict=True))


class _Problem:
    """Batches of one size, each from several starts: a flat axis of P = batches · restarts independent searches.

    ``together`` of these are computed at a time.
    """

    def __init__(
        self,
        client: ClientModel,
        batches: Sequence[ReplyBatch],
        shape: tuple[int, ...],
        how: Search,
        draws: Sequence[np.random.Generator],
        together: int,
    ) -> None:
        self._client, self._how, self._batches, self._together = client, how, batches, together
        records, outputs, device = batches[0].records, client.outputs(shape), client.device
        self._classes = client.loss == "cross-entropy"
        parameters, buffers, movements, labels = [], [], [], []
        for batch in batches:
            of_batch = client.split(batch.received)
            parameters.append(of_batch[0])
            buffers.append(of_batch[1])
            movements.append(client.split(batch.movement)[0])
            labels.append(np.asarray(batch.labels))
        # By batch, and not by search: they grow with the model.
        self._parameters = _stack(parameters, parameters[0])
        self._buffers = _stack(buffers, buffers[0])
        targets = _stack(movements, parameters[0])
        # Movements of unit length: the squares of a converged model's would underflow.
        rest = [client.left_out(batch.movement) for batch in batches]
        unexplained = squares = torch.tensor(rest, dtype=torch.float64, device=device)
        for target in targets.values():
            squares = squares + target.double().square().reshape(len(batches), -1).sum(1)
        self._scale = squares.rsqrt().float()
        self._targets = scale_values(targets, self._scale)
        # What no examples can explain is as far away wherever the search is.
        self._unexplained = (unexplained / squares / 2).float()
        self._picked: tuple[Tensor, tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]] | None = None
        statistics = []
        for batch in batches:
            statistics.append({name: to_tensor(array, device=device) for name, array in batch.statistics.items()})
        self._statistics = _stack(statistics, statistics[0] if how.statistics else ())
        self._free = batches[0].labels is None
        self._low, self._span = self._range()
        self._relaxation: Relaxation | None = None
        if how.method == "table":
            if how.coding is None:
                raise AssertionError("checked by the attack")
            self._relaxation = Relaxation(how.coding, device)
        spans = [to_tensor(batch.span.basis, device=device) for batch in batches if batch.span is not None]
        self._spans = torch.stack(spans) if spans else None
        self._floors = torch.tensor([batch.span.floor for batch in batches if batch.span is not None], device=device)
        start = self._draw(draws, (records, *shape))
        # Inputs are searched for as shares of their range, so that steps have the same size whatever the range is.
        if self._relaxation is not None:
            self._shares = self._relaxation.start(start)
        elif how.box is None:
            self._shares = start / self._span
        else:
            self._shares = self._inside(0.5 + start / 4)
        if self._free:
            self._y = self._draw(draws, (records, outputs))
        else:
            known = torch.from_numpy(np.stack(labels)).to(device)
            if self._classes:
                known = torch.eye(outputs, device=device)[known]
            self._y = self._repeat(known)
        sizes = client.sizes(records)
        self._sizes = torch.tensor(sizes, device=device)
        self._deals = how.order == "searched" and client.can_order(records)
        # Logarithms of the parts; none where the order is fixed.
        dealt: tuple[int, ...] = (0,)
        # Which of examples, labels and parts move.
        self._searched = [0]
        if self._free:
            self._searched.append(1)
        if self._deals:
            self._searched.append(2)
            dealt = (client.training.epochs, len(sizes), records)
        self._parts = _ORDER_START * self._draw(draws, dealt)

    def _range(self) -> tuple[Tensor, Tensor]:
        """Return the least input and the span of inputs, in a shape that broadcasts with an example."""
        device = self._client.device
        if self._how.box is None:
            return torch.zeros((), device=device), torch.full((), _RANGE, device=device)
        low, high = (torch.from_numpy(limit).float().to(device) for limit in self._how.box)
        return low, high - low

    def _inputs(self, shares: Tensor) -> Tensor:
        """Return examples of which the shares are searched for."""
        if self._relaxation is not None:
            return self._relaxation.rows(shares)
        return self._low + self._span * shares

    def _inside(self, shares: Tensor) -> Tensor:
        if self._relaxation is not None:
            return self._relaxation.inside(shares)
        if self._how.box is None:
            return shares
        return shares.clamp(0, 1)

    def _repeat(self, rows: Tensor) -> Tensor:
        return rows.repeat_interleave(self._how.restarts, dim=0)

    def _draw(self, draws: Sequence[np.random.Generator], shape: tuple[int, ...]) -> Tensor:
        starts = [draw.normal(size=(self._how.restarts, *shape)) for draw in draws]
        return torch.from_numpy(np.concatenate(starts)).float().to(self._client.device)

    def solve(self) -> list[Reconstructed]:
        ends = self._lbfgs() if self._how.method == "l2" else self._adam()
        x = self._inputs(ends.shares)
        objectives = ends.objectives.reshape(-1, self._how.restarts).double().cpu().numpy()
        results = []
        for batch, row in enumerate(objectives):
            best = batch * self._how.restarts + int(row.argmin())
            labels = self._labels(batch, ends.y[best])
            row = np.where(np.isinf(row), np.nan, row)
            if self._how.coding is None:
                results.append(Reconstructed(x[best].cpu().numpy(), labels, row))
                continue
            found = x[batch * self._how.restarts : (batch + 1) * self._how.restarts].cpu().numpy()
            pooled = pool_rows(self._how.coding, found, row)
            results.append(Reconstructed(pooled.x, labels, row, pooled.unsure))
        return results

    def _labels(self, batch: int, searched: Tensor) -> NDArray[Any]:
        known = self._batches[batch].labels
        if known is not None:
            return known
        if self._classes:
            searched = searched.argmax(dim=1)
        return searched.cpu().numpy()

    def _ends(self) -> _Ends:
        """Return the starts, as long as no better point was found."""
        infinite = torch.full((len(self._shares),), torch.inf, device=self._client.device)
        return _Ends(self._shares.clone(), self._y.clone(), infinite)

    def _adam(self) -> _Ends:
        restarts, ends = self._how.restarts, self._ends()
        ladder = rungs(self._how.iterations, restarts)
        if self._relaxation is not None:
            ladder = [(restarts, max(self._how.iterations // restarts, 1))]
        total, done, among = sum(steps for _, steps in ladder), 0, restarts
        rows = torch.arange(len(self._shares), device=self._client.device)
        variables = [
            _Variable(self._shares, _STEP),
            _Variable(self._y, _LABEL_STEP),
            _Variable(self._parts, _ORDER_STEP),
        ]
        for alive, steps in ladder:
            kept = ends.least(rows.reshape(-1, among), alive)
            rows, among = rows[kept], alive
            for variable in variables:
                variable.keep(kept)
            signed = rows % restarts % 2 == 1
            for _ in range(steps):
                left = ((1 + np.cos(np.pi * done / total)) / 2) ** _FALL
                here = [variable.at.detach() for variable in variables]
                objectives, slopes = self._slopes(here, rows)
                ends.note(rows, here[0], here[1], objectives)
                slopes[0][signed] = slopes[0][signed].sign()
                done += 1
                for number, slope in zip(self._searched, slopes, strict=True):
                    variables[number].step(slope, left, done)
                variables[0].at = self._inside(variables[0].at)
        return ends

    def _slopes(self, at: Sequence[Tensor], rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the objectives (K,) of searches, and their slopes (K, …) along what is searched for."""
        objectives, slopes = [], []
        for part in torch.arange(len(rows), device=rows.device).split(self._together):
            here = [values[part] for values in at]
            searched = [here[number].requires_grad_() for number in self._searched]
            of_part = self._objectives(here, rows[part])
            slopes.append(torch.autograd.grad(of_part.sum(), searched))
            objectives.append(of_part.detach())
        return torch.cat(objectives), [torch.cat(parts) for parts in zip(*slopes, strict=True)]

    def _lbfgs(self) -> _Ends:
        ends = self._ends()
        evaluations = max(self._how.iterations // self._how.restarts, 1)
        limits: tuple[float | None, float | None] = (None, None)
        if self._how.box is not None:
            limits = (0.0, 1.0)
        for start in range(len(self._shares)):
            rows = torch.tensor([start], device=self._client.device)
            here = [self._shares[rows], self._y[rows], self._parts[rows]]
            free = [here[number].requires_grad_() for number in self._searched]

            def objective(rows: Tensor = rows, here: list[Tensor] = here) -> Tensor:
                objectives = self._objectives(here, rows)
                ends.note(rows, here[0], here[1], objectives)
                return objectives.sum()

            bounds = [limits] * here[0].numel() + [(None, None)] * sum(other.numel() for other in free[1:])
            descend(objective, free, evaluations, evaluations=evaluations, bounds=bounds)
        return ends

    def _pick(self, batches: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Return parameters, buffers and movements of some batches: copies, which stay until others are asked for."""
        before = self._picked
        if before is None or before[0].shape != batches.shape or not torch.equal(before[0], batches):
            # The last ones go before others take memory.
            before = self._picked = None
            states = _rows(self._parameters, batches), _rows(self._buffers, batches), _rows(self._targets, batches)
            before = self._picked = batches, states
        return before[1]

    def _objectives(self, at: Sequence[Tensor], rows: Tensor) -> Tensor:
        """Return the objectives (K,) of examples (K, n, …), as shares of their range, labels (K, n, …), and parts."""
        shares, y, parts = at
        targets = y
        if self._free and self._classes:
            targets = y.softmax(dim=-1)
        batches = rows // self._how.restarts
        parameters, buffers, wanted = self._pick(batches)
        x = self._inputs(shares)
        order = []
        if self._deals:
            order.append(draw_counts(parts, self._sizes))
        moved, statistics = self._client.follow_all(parameters, buffers, x, targets, *order)
        unit = self._how.method != "l2"
        apart = half_squared_distance(
            [moved[name] for name in wanted], [*wanted.values()], self._scale[batches], unit=unit
        )
        objectives = _stretch(apart + self._unexplained[batches] + _LEAST_DISTANCE)
        if self._statistics:
            apart_by = distances(statistics, _rows(self._statistics, batches))
            objectives = objectives + self._how.statistics * _stretch(apart_by + _LEAST_DISTANCE)
        if self._spans is not None:
            apart_by = leave_span(x, self._spans[batches]) + self._floors[batches]
            objectives = objectives + _SPAN * _stretch(apart_by)
        if self._how.variation:
            objectives = objectives + self._how.variation * torch.stack([*map(total_variation, shares)])
        return objectives


@dataclass
class _Ends:
    """The best point of each search so far: shares (P, n, …), labels (P, n, …), and their objectives (P,)."""

    shares: Tensor
    y: Tensor
    objectives: Tensor

    @torch.no_grad()
    def note(self, rows: Tensor, shares: Tensor, y: Tensor, objectives: Tensor) -> None:
        """Take points of the searches ``rows`` that are better than what is there; one that is no number never is."""
        better = objectives < self.objectives[rows]
        taken = rows[better]
        self.shares[taken], self.y[taken] = shares[better], y[better]
        self.objectives[taken] = objectives[better]

    def least(self, rows: Tensor, count: int) -> Tensor:
        """Return which of the searches ``rows`` (batches, starts) go on: positions, ``count`` of each batch."""
        order = self.objectives[rows].argsort(dim=1, stable=True)[:, :count].sort(dim=1).values
        first = torch.arange(len(rows), device=rows.device)[:, None] * rows.shape[1]
        return (first + order).flatten()


class _Variable:
    """What Adam moves, and its means of the slopes and of their squares (Kingma & Ba 2015, Algorithm 1).

    PyTorch's optimiser cannot give up rows on its way.
    """

    def __init__(self, start: Tensor, rate: float) -> None:
        self.at, self._rate = start, rate
        self._mean, self._square = torch.zeros_like(start), torch.zeros_like(start)

    def keep(self, rows: Tensor) -> None:
        self.at, self._mean, self._square = self.at[rows], self._mean[rows], self._square[rows]

    def step(self, slope: Tensor, share: float, number: int) -> None:
        """Take the step of a number, from 1, at a share of the rate."""
        first, second = _BETAS
        self._mean = self._mean.lerp(slope, 1 - first)
        self._square = self._square.lerp(slope.square(), 1 - second)
        mean, square = self._mean / (1 - first**number), self._square / (1 - second**number)
        self.at = self.at - share * self._rate * mean / (square.sqrt() + _TINY)


def draw_counts(logarithms: Tensor, sizes: Tensor) -> Tensor:
    """Return how much each example counts in the loss of each mini-batch, (…, mini-batches, n).

    What belongs to a mini-batch sums to one. An example's parts, each times the size of the mini-batch, do so nearly
    (Sinkhorn & Knopp 1967).

    Parameters
    ----------
    logarithms
        (…, mini-batches, n): any numbers.
    sizes
        (mini-batches,): how many examples are in each.
    """
    parts = logarithms
    for _ in range(_BALANCED):
        parts = (parts + sizes[:, None].log()).log_softmax(dim=-2).log_softmax(dim=-1)
    return parts.exp()


def rungs(evaluations: int, restarts: int) -> list[tuple[int, int]]:
    """Divide evaluations among starts of which half are given up again and again: how many go on, for how many steps.

    Every rung has the same share of the evaluations, and the last one what is left.
    """
    divided = []
    alive, left = restarts, evaluations
    while alive > 1:
        steps = max(int(_RUNG * evaluations) // alive, 1)
        divided.append((alive, steps))
        left -= alive * steps
        alive = (alive + 1) // 2
    return [*divided, (1, max(left, 1))]


def _stretch(distances: Tensor) -> Tensor:
    """Return the logarithm of distances, which goes on as a straight line where they are large."""
    ratio = distances / _LARGE
    return torch.where(ratio < 1, ratio.log(), ratio - 1)


def _stack(states: Sequence[Tensors], names: Iterable[str]) -> dict[str, Tensor]:
    stacked = {}
    for name in names:
        stacked[name] = torch.stack([state[name] for state in states])
    return stacked


def _rows(state: Tensors, rows: Tensor) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in state.items()}


def groups_of(
    batches: Sequence[ReplyBatch], how: Search, training: LocalSGD, memory: int, device: torch.device
) -> Iterator[dict[int, ReplyBatch]]:
    """Yield by index batches of which the same is known, and whose searches fit into memory together; few on a CPU."""
    alike: dict[tuple[int, bool, frozenset[str], bool], list[tuple[int, ReplyBatch]]] = defaultdict(list)
    for index, batch in enumerate(batches):
        statistics = frozenset(batch.statistics if how.statistics else ())
        alike[batch.records, batch.labels is None, statistics, batch.span is None].append((index, batch))
    most = _MOST_ON_GPU
    if device.type == "cpu":
        most = _MOST_ON_CPU
    for numbered in alike.values():
        room = max(min(_together(numbered[0][1], training, memory), most) // how.restarts, 1)
        for start in range(0, len(numbered), room):
            yield dict(numbered[start : start + room])


def _together(batch: ReplyBatch, training: LocalSGD, memory: int) -> int:
    """Return how many searches are computed at a time."""
    size = entries(batch.movement)
    return max(int(memory // (4 * _COPIES * training.steps(batch.records) * size)), 1)
