"""Clients that are put together from gradients of examples, one for each: the linear mode.

One local step moves a client by minus the mean of its examples' gradients, times the learning rate. Means, covariance
and projections of updates are therefore those of weighted gradients, and no client is trained. Several small steps are
nearly linear: gradients are then taken along the path of the mean client.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.learning import LocalSGD
from fedattack.learning.gradient_rows import PASSES, GradientRows, numbers_kept
from fedattack.learning.inputs import Examples, examples_of
from fedattack.learning.layer_model import LayerModel
from fedattack.learning.rows import Centred, Rows, Whole, group_means
from fedattack.learning.torch_utils import to_tensor
from fedattack.threats.property.clients import DrawnClients, Features
from fedattack.threats.property.disaggregation import Array
from fedattack.threats.property.krylov import KrylovSpace, project_rows, span_spaces, to_host
from fedattack.threats.property.memory import AT_A_TIME, fits_into_memory, questions_within
from fedattack.threats.property.setting import PARTS, Part, count_masks, count_points

# Clients that are put together: to weigh records with, and to choose and to measure densities with.
_WEIGHING = 16_000
_VIRTUAL = {"choose": 2_000, "test": 4_000}
# Records to find the direction of the mean client's path with.
_PATH_RECORDS = 1_000
# Examples on which it is tried whether the model's gradients can be taken apart.
_TRIED = 3


@dataclass(frozen=True)
class _ProjectedGradients:
    """Gradients at the points of the mean client's path, projected onto k directions.

    - ``auxiliary`` (points, examples, k): of one part of the auxiliary records;
    - ``extra`` (points, extra examples, masks, k): of the extra examples;
    - ``points`` (points, k): the points themselves.
    """

    auxiliary: Array
    extra: Array
    points: Array


class LinearClients(DrawnClients):
    """One gradient for each example, and clients put together from them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        size, memory = self.shadow.size, self.setting.memory
        self._fits = fits_into_memory(self.setting, size, random=self.shadow.random)
        # How many questions' Krylov spaces are in memory together.
        self._together = len(self.setting.questions)
        if not self._fits:
            self._together = questions_within(memory, size, self.steps, self._together)
        self._at_start: dict[Part, Rows] = {}
        for stream, (part, rows) in enumerate(self.rows.items()):
            x, y, masks = self.x[rows], self.y[rows], self.masks_of(1, stream)
            self._at_start[part] = self._gradients(
                self.start, x, y, masks, training=part == "train", once=part == "test", again=self._several
            )
        self._paths: dict[bool, list[Tensor]] = {}
        self._later: dict[tuple[bool, int], Rows] = {}

    def _gradients(
        self,
        at: Tensor,
        x: Examples,
        y: Tensor,
        masks: Callable[[], torch.Generator],
        *,
        training: bool = False,
        once: bool = False,
        again: bool = True,
    ) -> Rows:
        """Return the gradient of each example at a point.

        ``training`` says that they are those to train on; ``once`` that a question multiplies with them once alone;
        ``again`` that others are worth keeping, too: there are passes to come.
        """
        if not self._fits:
            whole, each = self._rooms
            room = again * each * len(x)
            if training:
                room = whole
        elif once:
            # To multiply them out would take longer.
            room = 4.0 * numbers_kept(self._model) * len(x)
        else:
            room = 4.0 * self.shadow.size * len(x)
        return GradientRows(self._model, at, x, y, masks, room=room, scratch=AT_A_TIME * self.setting.memory)

    @cached_property
    def _model(self) -> LayerModel:
        return LayerModel(self.shadow, self.start, self.x[:_TRIED], self.y[:_TRIED])

    @cached_property
    def _rooms(self) -> tuple[float, float]:
        """Bytes for what is kept of all the gradients to train on, and of each other one."""
        room = self.room(self._together)
        train, choose, test = map(len, self.rows.values())
        extra = sum(question.extra_count for question in self.setting.questions) * self._masks_of("train")
        others = extra + self._several * (choose + test * (2 * count_points(self.setting) - 1))
        each = min(4.0 * numbers_kept(self._model), room / (train + others))
        return room - each * others, each

    @property
    def _several(self) -> bool:
        """Whether there are several questions, each of which goes through what is chosen and tested on."""
        return len(self.setting.questions) > 1

    def _masks_of(self, part: Part) -> int:
        """How many dropout masks are drawn for an example beside the auxiliary ones."""
        return count_masks(part, self.shadow.random)

    def spaces(self) -> Iterator[KrylovSpace]:
        """See :class:`DrawnClients`."""
        count = len(self.x)
        weights = torch.zeros(count, dtype=torch.float64)
        # An update is −Σᵢ nᵢgᵢ, up to a factor: nᵢ counts example i in the batch, and gᵢ is its gradient. So μ⁺ − μ⁻ is
        # −Σᵢ (E⁺nᵢ − E⁻nᵢ)gᵢ. Who ascends, or inverts its update, moves by +Σᵢ nᵢgᵢ: E⁺nᵢ then has the other sign.
        changes = []
        often = []
        for question in range(len(self.setting.questions)):
            usual, odd = self._weights(question, False), self._weights(question, True)
            weights += usual[:count] + odd[:count]
            change = odd - usual
            if self.behaviour(question, True) != "descend":
                change = -odd - usual
            changes.append(change)
            often.append((usual + odd)[count:])
        use = weights[torch.as_tensor(self.rows["train"])].float().to(self.start.device)
        for first in range(0, len(changes), self._together):
            group = range(first, min(first + self._together, len(changes)))
            yield from self._spaces_of(group, use, changes, often)

    def _spaces_of(
        self, group: Sequence[int], use: Tensor, changes: Sequence[Tensor], often: Sequence[Tensor]
    ) -> list[KrylovSpace]:
        """Span the spaces of some questions side by side.

        ``use`` is how often each example to train on is in a client's batch; ``changes`` and ``often`` are by question
        how much more often all examples are with the property, and how often those beside the auxiliary ones.
        """
        rows, gradients = torch.as_tensor(self.rows["train"]), self._at_start["train"]
        count = len(self.x)
        # Clients with and without the property share the weights of Σ: those of one question sum to this.
        share = use.sum() / len(self.setting.questions)
        differences = torch.zeros((len(group), self.shadow.size), device=use.device)
        changed = [changes[question][:count][rows].float().to(use.device) for question in group]
        for where, block in gradients.blocks():
            for difference, change in zip(differences, changed, strict=True):
                block.accumulate(difference, change[where])
        differences.neg_()
        extras: list[tuple[Rows, Tensor]] = []
        for difference, question in zip(differences, group, strict=True):
            extra = self._extra_gradients(question, "train", self.start)
            if extra is None:
                extras.append((Whole(differences[:0]), torch.zeros(0, device=use.device)))
                continue
            masks = self._masks_of("train")
            varied, means = self._apart(extra, masks)
            # An extra record is in every batch with the property: its mean gradient over masks is part of μ⁺ − μ⁻.
            difference -= changes[question][count:].float().to(use.device) @ means
            # a record that is always there adds no spread but that of its dropout masks
            part = often[question].float().to(use.device) / masks
            extras.append((varied, part.repeat_interleave(masks) / share))
        return span_spaces(gradients, use / use.sum(), differences, self.steps, extras)

    def _apart(self, extra: Rows, masks: int) -> tuple[Rows, Tensor]:
        """Return the gradients of extra examples less their means over dropout masks, and the means."""
        group = torch.arange(len(extra) // masks, device=self.start.device).repeat_interleave(masks)
        means = group_means(extra, group, len(extra) // masks, self.shadow.size)
        return Centred(extra, means, group), means

    def project(self, question: int, part: Part, directions: Tensor) -> Features:
        """See :class:`DrawnClients`."""
        usual = odd = self._along_path(question, part, directions, ascend=False)
        # The inverted update is a faithful one until it is sent.
        if self.behaviour(question, True) == "ascend":
            odd = self._along_path(question, part, directions, ascend=True)
        return self._clients(question, part, odd, True), self._clients(question, part, usual, False)

    def _clients(self, question: int, part: Part, projected: _ProjectedGradients, has: bool) -> list[Array]:
        """Put clients of each size together, and project their updates."""
        behaviour = self.behaviour(question, has)
        numbers = self.numbers(PARTS.index(part), question, has)
        clients = []
        for batches in self.batches(question, has, part, self.counts(_VIRTUAL[part]), numbers):
            features = self._assemble(projected, batches, part, numbers, ascend=behaviour == "ascend")
            if behaviour == "invert":
                features = -features
            clients.append(features)
        return clients

    def _weights(self, question: int, has: bool) -> Tensor:
        """How often each example, auxiliary and extra, is in a client's batch, on average."""
        # with and without are drawn alike, so that what they have in common cancels
        numbers = self.numbers(len(PARTS), question)
        length = len(self.x) + self.setting.questions[question].extra_count
        total = torch.zeros(length, dtype=torch.float64)
        counts = self.counts(_WEIGHING)
        for batches in self.batches(question, has, "train", counts, numbers):
            total += torch.bincount(torch.as_tensor(batches).reshape(-1), minlength=length)
        return total / sum(counts)

    def _extra_gradients(self, question: int, part: Part, at: Tensor, point: int = 0) -> Rows | None:
        """(extra examples · masks, size): gradients of the examples beside the auxiliary ones, under several masks."""
        extra = self.setting.questions[question].extra
        if extra is None:
            return None
        masks = self._masks_of(part)
        x = examples_of(extra.x).repeat_interleave(masks, dim=0)
        y = to_tensor(extra.y).repeat_interleave(masks, dim=0)
        drawn = self.masks_of(2, PARTS.index(part), question, point)
        return self._gradients(at, x, y, drawn, once=part == "test", again=part == "train")

    def _path(self, ascend: bool) -> list[Tensor]:
        """Points that the mean client passes, the first of them the common model."""
        if ascend not in self._paths:
            self._paths[ascend] = self._walk(ascend)
        return self._paths[ascend]

    @cached_property
    def _walking(self) -> int | None:
        """How many examples of the path's are computed at a time; ``None`` for all."""
        if self._fits:
            return None
        return int(max(1, AT_A_TIME * self.setting.memory // (4 * PASSES * self._model.activations)))

    def _walk(self, ascend: bool) -> list[Tensor]:
        training = self.setting.training
        rows = self.rows["train"][:_PATH_RECORDS]
        generator = self.masks(3, ascend)
        steps = training.steps(max(self.setting.sizes))
        wanted = count_points(self.setting)
        parameters, velocity = self.start, torch.zeros_like(self.start)
        points: list[Tensor] = []
        for step in range(steps):
            # Points are spread evenly over the steps, from the first one on.
            if len(points) * steps <= step * wanted:
                points.append(parameters)
            if len(points) == wanted:
                break
            gradient = self.shadow.mean_gradient(
                parameters, self.x[rows], self.y[rows], generator=generator, chunk=self._walking
            )
            if ascend:
                gradient = -gradient
            # As torch.optim.SGD steps, without dampening.
            velocity = training.momentum * velocity + gradient + training.weight_decay * parameters
            parameters = parameters - training.lr * velocity
        return points

    def _along_path(self, question: int, part: Part, directions: Tensor, ascend: bool) -> _ProjectedGradients:
        """Project gradients along the path."""
        auxiliary, extras, positions = [], [], []
        points = [self.start]
        # What only decides between spaces need not follow the path.
        if part == "test":
            points = self._path(ascend)
        for number, point in enumerate(points):
            gradients = self._later_gradients(ascend, number, point) if number else self._at_start[part]
            auxiliary.append(project_rows(gradients, directions))
            extra = self._extra_gradients(question, part, point, number)
            features = np.zeros((0, 1, 0))
            if extra is not None:
                features = project_rows(extra, directions).reshape(-1, self._masks_of(part), len(directions))
            extras.append(features)
            positions.append(to_host(directions @ point))
        return _ProjectedGradients(np.stack(auxiliary), np.stack(extras), np.stack(positions))

    def _later_gradients(self, ascend: bool, number: int, point: Tensor) -> Rows:
        """Gradients of the test examples at a later point of the path, once for all questions."""
        if (ascend, number) not in self._later:
            x, y = self.x[self.rows["test"]], self.y[self.rows["test"]]
            masks = self.masks_of(4, ascend, number)
            self._later[ascend, number] = self._gradients(point, x, y, masks, once=True, again=self._several)
        return self._later[ascend, number]

    def _assemble(
        self,
        projected: _ProjectedGradients,
        batches: NDArray[np.int64],
        part: Part,
        generator: np.random.Generator,
        *,
        ascend: bool,
    ) -> Array:
        """Sum the projected gradients (clients, k) of clients that take their steps with these examples."""
        training = self.setting.training
        known = self.rows[part]
        # Where an auxiliary example's gradient stands among those of the part.
        position = np.full(len(self.x), -1)
        position[known] = np.arange(len(known))
        count, size = batches.shape
        total = np.zeros((count, projected.auxiliary.shape[2]))
        lengths = _step_sizes(training, size)
        reach = _reach(training.momentum, len(lengths))
        at = 0
        order = batches
        for step, length in enumerate(lengths):
            if at % size == 0:
                # An epoch begins, in which each client shuffles its examples anew.
                order = generator.permuted(batches, axis=1)
                at = 0
            rows = order[:, at : at + length]
            at += length
            point = step * len(projected.points) // len(lengths)
            # Extra examples are counted after the auxiliary ones. Each use of one draws a dropout mask.
            outside = rows >= len(self.x)
            gradients = projected.auxiliary[point][position[np.where(outside, known[0], rows)]]
            if outside.any():
                mask = generator.integers(projected.extra.shape[2], size=int(outside.sum()))
                gradients[outside] = projected.extra[point][rows[outside] - len(self.x), mask]
            mean = gradients.mean(axis=1)
            if ascend:
                mean = -mean
            total -= training.lr * reach[step] * (mean + training.weight_decay * projected.points[point])
        return total


def _step_sizes(training: LocalSGD, size: int) -> list[int]:
    """Return how many examples each local step of a client with ``size`` examples takes."""
    batch = min(training.batch_size or size, size)
    epoch = [min(batch, size - at) for at in range(0, size, batch)]
    return epoch * training.epochs


def _reach(momentum: float, steps: int) -> Array:
    """Return how often each step's gradient (steps,) counts in the end, with all that momentum makes of it."""
    later = np.arange(steps, 0, -1)
    # A gradient is in the velocity of its own step and of all later ones, k in all: 1 + m + … + m^(k−1).
    if momentum < 1:
        return np.asarray((1 - momentum**later) / (1 - momentum))
    return later.astype(np.float64)
