"""Shadow updates: what clients would send, made by whoever knows how they train; many clients at once.

All clients of a call are trained together under ``torch.func.vmap``. Dropout stays on, as while clients train, and
its masks are drawn beforehand from the caller's generator, so that the same draws can be replayed one client at a time.

Models that take more than one array, such as those of transformers, often look into a mask to save work. ``vmap``
cannot trace that. Clients of such a model are trained, and gradients taken, one after the other.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_, vmap

from fedattack.base.errors import DataError
from fedattack.learning.inputs import Examples, Inputs, call, examples_of, mean_loss_in
from fedattack.learning.losses import MeanLoss
from fedattack.learning.returned import output_in
from fedattack.learning.stated import LocalSGD
from fedattack.learning.torch_utils import fix_seed, has_batch_norm, has_dropout, to_tensor
from fedattack.learning.training import Stepping

CHUNK = 64
"""Clients trained at a time; on a CPU larger chunks fall out of its caches."""


TRAINED = 8
"""Copies of its model that a client's training holds."""


class GivenDropout(nn.Module):
    """Dropout whose masks come from outside: ``mask`` is set before a pass.

    ``shape`` is that of what it masks, without the batch.
    """

    def __init__(self, p: float, shape: torch.Size) -> None:
        super().__init__()
        self.p = p
        self.shape = tuple(shape)
        self.mask: Tensor | None = None

    def forward(self, value: Tensor) -> Tensor:
        """Multiply by the mask, whose kept entries are 1/(1 − p)."""
        if self.mask is None:
            return value
        return value * self.mask


@dataclass(frozen=True)
class ShadowStep:
    """One local step of k clients: which of its examples each takes, (k, b), and a mask (k, b, …) for each dropout."""

    rows: Tensor
    masks: tuple[Tensor, ...]

    def of(self, clients: slice) -> ShadowStep:
        """Return the same step of some of the clients."""
        return ShadowStep(self.rows[clients], tuple(mask[clients] for mask in self.masks))


class ShadowModel:
    """An architecture made ready to train many clients at once; the caller's module is left alone.

    Batch norm normalises by the batch, as it does in training; its running statistics are no parameters and are left
    out.

    Parameters
    ----------
    model
        The clients' architecture; its parameters do not matter.
    record
        One example, to find the shapes of dropout masks with.
    loss
        What the clients minimise; see :func:`fedattack.learning.losses.mean_loss`.

    Attributes
    ----------
    names, sizes, size
        Names of the parameters in their order, how many numbers each holds, and how many they hold together.
    separable
        Whether a batch's gradient is the mean of its examples' gradients, which batch norm spoils.
    random
        Whether the same examples give another update each time, because of dropout.
    one_by_one
        Whether clients are trained, and gradients of examples taken, one after the other: only of models of more than
        one array that ``torch.func`` cannot trace for many at once.
    """

    def __init__(
        self, model: nn.Module, record: NDArray[Any], loss: MeanLoss, *, device: torch.device | str = "cpu"
    ) -> None:
        self.device = torch.device(device)
        self.model = copy.deepcopy(model).to(self.device).train()
        self.separable = not has_batch_norm(self.model)
        # Running statistics are written to in place, which ``vmap`` refuses.
        replace_all_batch_norm_modules_(self.model)
        self.loss = loss
        self._shapes = {name: value.shape for name, value in self.model.named_parameters()}
        self.names = tuple(self._shapes)
        self.sizes = {name: shape.numel() for name, shape in self._shapes.items()}
        self.size = sum(self.sizes.values())
        examples = examples_of(np.stack([record, record]), self.device)
        self._dropouts = self._give_dropouts(examples)
        self._draws = has_dropout(self.model)
        self.random = bool(self._dropouts or self._draws)
        self.one_by_one = isinstance(examples, Inputs) and not self._can_be_traced(examples)

    def flatten(self, arrays: Mapping[str, NDArray[Any] | Tensor]) -> Tensor:
        """Return the parameters among ``arrays`` as one vector (size,), in the model's order."""
        parts = [to_tensor(arrays[name], dtype=torch.float32).reshape(-1) for name in self.names]
        return torch.cat(parts).to(self.device)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parameters that ``vector`` (…, size) holds, without a copy."""
        parameters, at = {}, 0
        for name, shape in self._shapes.items():
            # No part of Tensor.split, which may not be changed in place.
            # Views: what an optimizer does to them in place, it does to the vector.
            parameters[name] = vector[..., at : at + shape.numel()].view((*vector.shape[:-1], *shape))
            at += shape.numel()
        return parameters

    def updates(
        self,
        start: Tensor,
        x: Examples,
        y: Tensor,
        training: LocalSGD,
        *,
        generator: torch.Generator,
        maximise: bool = False,
        chunk: int = CHUNK,
    ) -> Tensor:
        """Train k clients from one model and return their updates.

        Parameters
        ----------
        start
            (size,): the common model.
        x, y
            (k, n, *shape), (k, n): each client's examples and labels.
        training
            How the clients train.
        generator
            Draws the order of the examples and the dropout.
        maximise
            Ascend the loss instead of descending it.
        chunk
            Clients trained at a time.

        Returns
        -------
        Tensor of float32, shape (k, size)
            Model after local training minus ``start``.

        Raises
        ------
        DataError
            If there are no examples, or not one label for each.
        """
        if x.shape[:2] != y.shape[:2] or not x.shape[1]:
            raise DataError(
                f"shadow updates: expected at least one example and a label for each, got examples {tuple(x.shape)} "
                f"and labels {tuple(y.shape)}"
            )
        out = torch.empty((len(x), self.size), device=self.device)
        at = 0
        for part in self.update_parts(start, x, y, training, generator=generator, maximise=maximise, chunk=chunk):
            out[at : at + len(part)] = part
            at += len(part)
        return out

    def update_parts(
        self,
        start: Tensor,
        x: Examples,
        y: Tensor,
        training: LocalSGD,
        *,
        generator: torch.Generator,
        maximise: bool = False,
        chunk: int = CHUNK,
        together: int | None = None,
    ) -> Iterator[Tensor]:
        """Yield the updates of :meth:`updates` as they are made, of ``together`` clients at a time.

        The draws are those of ``chunk`` clients at a time, whatever ``together`` is.
        """
        for first in range(0, len(x), chunk):
            last = min(first + chunk, len(x))
            # In this order, whether clients are then trained together or not: the same seed gives the same updates in
            # any memory.
            seed = self._draw_seed(generator)
            steps: Iterable[ShadowStep] = self.schedule(last - first, x.shape[1], training, generator)
            if together is not None and together < last - first:
                steps = list(steps)
            for begin in range(first, last, together or chunk):
                clients = slice(begin, min(begin + (together or chunk), last))
                own = (step.of(slice(begin - first, clients.stop - first)) for step in steps)
                records, labels = x[clients].to(self.device), y[clients].to(self.device)
                with self._drawing(seed + begin):
                    updates = self._train(start, records, labels, training, own, maximise)
                yield updates

    def schedule(
        self, clients: int, records: int, training: LocalSGD, generator: torch.Generator
    ) -> Iterator[ShadowStep]:
        """Draw the local steps of ``clients`` clients with ``records`` examples each, one by one."""
        for _ in range(training.epochs):
            # A permutation for each client, as the order of random numbers.
            order = torch.rand((clients, records), generator=generator).argsort(dim=1)
            for rows in order.split(training.batch_size or records, dim=1):
                yield ShadowStep(rows.to(self.device), self.draw_masks(rows.shape, generator))

    def _drawing(self, seed: int) -> AbstractContextManager[None]:
        """Seed the dropout that a model draws itself, if there is any; torch draws it from its global generators."""
        if not self._draws:
            return nullcontext()
        return fix_seed(seed, self.device)

    def _draw_seed(self, generator: torch.Generator) -> int:
        """Draw what :meth:`_drawing` takes; nothing is drawn for a model that draws no dropout itself."""
        if not self._draws:
            return 0
        return int(torch.randint(2**31, (), generator=generator))

    def record_gradients(
        self,
        start: Tensor,
        x: Examples,
        y: Tensor,
        *,
        generator: torch.Generator,
        chunk: int = 2 * CHUNK,
        entries: slice = slice(None),
    ) -> Tensor:
        """Return the gradient of each example's own loss at ``start``, each under a dropout mask of its own.

        Parameters
        ----------
        start
            (size,): parameters.
        x, y
            (n, *shape), (n,): examples and labels.
        chunk
            Examples whose whole gradients are in memory at a time.
        entries
            Which entries are kept, of (n, size) in float32.
        """
        parameters = self.unflatten(start)
        out = torch.empty((len(x), len(range(self.size)[entries])), device=self.device)
        for first in range(0, len(x), chunk):
            rows = slice(first, first + chunk)
            records = x[rows, None].to(self.device)
            labels = y[rows, None].to(self.device)
            gradients = self.gradients(parameters, records, labels, self.draw_masks(labels.shape, generator))
            out[rows] = self._rows(gradients)[:, entries]
        return out

    def gradients(
        self, parameters: dict[str, Tensor], x: Examples, y: Tensor, masks: tuple[Tensor, ...], *, apart: bool = False
    ) -> dict[str, Tensor]:
        """Return the gradients (n, …) of the mean losses of n batches ``x`` (n, b, …), ``y`` (n, b), by parameter.

        Parameters
        ----------
        apart
            Whether each batch has parameters of its own, (n, …).
        """
        of_one = grad(self.loss_of)
        if not self.one_by_one:
            along = None
            if apart:
                along = 0
            # ``different``: dropouts that a model draws itself are drawn for each example.
            many = vmap(of_one, in_dims=(along, 0, 0, 0), randomness="different")
            together: dict[str, Tensor] = many(parameters, x, y, masks)
            return together
        found: dict[str, list[Tensor]] = {name: [] for name in self.names}
        for row in range(len(y)):
            own = parameters
            if apart:
                own = {name: value[row] for name, value in parameters.items()}
            for name, gradient in of_one(own, x[row], y[row], tuple(mask[row] for mask in masks)).items():
                # That of an embedding may be sparse.
                found[name].append(gradient.to_dense())
        return {name: torch.stack(gradients) for name, gradients in found.items()}

    def mean_gradient(
        self, start: Tensor, x: Examples, y: Tensor, *, generator: torch.Generator, chunk: int | None = None
    ) -> Tensor:
        """Return the gradient (size,) of the mean loss over examples ``x``, ``y`` at ``start``, ``chunk`` at a time."""
        # Masks of the whole batch at once: chunks then see those that they would see without chunks.
        masks = tuple(mask[0] for mask in self.draw_masks((1, len(y)), generator))
        parameters, chunk = self.unflatten(start), chunk or len(y)
        seed = self._draw_seed(generator)
        total: Tensor | None = None
        for first in range(0, len(y), chunk):
            rows = slice(first, first + chunk)
            own = tuple(mask[rows] for mask in masks)
            with self._drawing(seed + first):
                gradient = grad(self.loss_of)(parameters, x[rows].to(self.device), y[rows].to(self.device), own)
            part = torch.cat([gradient[name].to_dense().reshape(-1) for name in self.names])
            if chunk < len(y):
                part *= len(y[rows]) / len(y)
            total = part if total is None else total.add_(part)
        if total is None:
            return torch.zeros_like(start)
        return total

    def _train(
        self, start: Tensor, x: Examples, y: Tensor, training: LocalSGD, steps: Iterator[ShadowStep], maximise: bool
    ) -> Tensor:
        """Train clients side by side, in place: an optimizer's steps move each number by itself."""
        # A row for each client. Optimizers move each number by itself, so that one optimizer moves all clients.
        matrix = start.expand(len(x), -1).clone()
        parameters = self.unflatten(matrix)
        stepping = Stepping([*parameters.values()], training, maximise=maximise)
        client = torch.arange(len(x), device=self.device)[:, None]
        for step in steps:
            gradients = self.gradients(parameters, x[client, step.rows], y[client, step.rows], step.masks, apart=True)
            stepping.step([gradients[name] for name in parameters])
        return matrix.sub_(start)

    def loss_of(self, parameters: dict[str, Tensor], x: Examples, y: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
        """Return the mean loss of a batch under dropout masks that :meth:`draw_masks` drew."""
        for dropout, mask in zip(self._dropouts, masks, strict=True):
            dropout.mask = mask
        loss = mean_loss_in(self.call_model(parameters, x), y, self.loss)
        for dropout in self._dropouts:
            dropout.mask = None  # a mask within vmap must not outlive the call
        return loss

    def call_model(self, parameters: dict[str, Tensor], x: Examples) -> Any:
        """Return what the model returns for examples, at some parameters."""
        if isinstance(x, Tensor):
            # A copy: a model may write into its input, which is asked about again.
            return functional_call(self.model, parameters, (x.clone(),))
        return call(self.model, parameters, x.leaves, ties=True)

    def _can_be_traced(self, examples: Inputs) -> bool:
        """Say whether gradients of many examples can be taken at once, tried on some."""
        trained = {name: value.detach() for name, value in self.model.named_parameters()}

        def total(parameters: dict[str, Tensor], x: Inputs) -> Tensor:
            return output_in(self.call_model(parameters, x)).float().sum()

        try:
            with fix_seed(0, self.device):
                # What cannot be traced, such as a branch on a tensor's value, raises here; on two examples that costs
                # little.
                vmap(grad(total), in_dims=(None, 0), randomness="different")(trained, examples[:, None])
        except (RuntimeError, NotImplementedError):
            return False
        return True

    def _rows(self, values: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([values[name].reshape(len(values[name]), -1) for name in self.names], dim=1)

    def draw_masks(self, shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw a mask (*shape, …) for each dropout."""
        masks = []
        for dropout in self._dropouts:
            # Drawn on the generator's device and moved: the same seed then gives the same masks everywhere.
            # On a CPU, bernoulli_ takes five times as long.
            kept = torch.rand((*shape, *dropout.shape), generator=generator).lt_(1 - dropout.p)
            masks.append(kept.div_(1 - dropout.p).to(self.device))
        return tuple(masks)

    def _give_dropouts(self, records: Examples) -> tuple[GivenDropout, ...]:
        """Replace the plain dropouts that a pass uses once; those that it uses more often keep drawing themselves."""
        given: dict[nn.Module, GivenDropout] = {}
        for dropout, shapes in self._dropout_shapes(records).items():
            if len(shapes) == 1:
                given[dropout] = GivenDropout(dropout.p, shapes[0])
        # A module is replaced in its parent: a hook could change what it returns, and not what it draws.
        for parent in list(self.model.modules()):
            for name, child in list(parent.named_children()):
                if child in given:
                    setattr(parent, name, given[child])
        return tuple(given.values())

    def _dropout_shapes(self, records: Examples) -> dict[nn.Dropout, list[torch.Size]]:
        """Return the shapes of what each plain dropout masks in a pass, without the batch."""
        shapes: dict[Any, list[torch.Size]] = {}
        for part in self.model.modules():
            # No subclass, which may do anything else.
            if type(part) is nn.Dropout and 0 < part.p < 1:
                shapes[part] = []
        hooks = [
            part.register_forward_hook(lambda part, _, output: shapes[part].append(output.shape[1:])) for part in shapes
        ]
        with torch.no_grad():
            self.call_model({}, records)
        for hook in hooks:
            hook.remove()
        return shapes
