"""One round's detector: a linear feature that tells updates with a property from updates without it.

PROLIN (Kerkouche et al. 2023), Sections 5.1.2, 5.2.1 and 5.2.2. The detector M_r = h∘g_r is the sigmoid of an affine
g_r, trained on auxiliary records alone. g_r > 0 means "more likely with than without": g_r is in log odds, or a
fraction of them.

The paper draws 12,000 shadow updates a round and trains a logistic regression on them. Here g_r is the shrunken linear
discriminant (Σ + κD)⁻¹(μ⁺ − μ⁻), with D a diagonal. It is found in the Krylov space of Σ and μ⁺ − μ⁻, whose size and κ
are chosen on examples apart. What Σ and the means are taken from is the mode:

``linear``
    One local step is the mean of per-example gradients. Means and covariance of updates therefore follow from one
    gradient for each auxiliary record, and no shadow update is drawn. Several small steps are nearly linear: gradients
    are then taken along the mean client's path. Densities come from clients made of the gradients of unseen examples.
``exact``
    Shadow clients are trained as clients are, in batches.

A row of all parameters for each shadow client may be more than there is memory for. Of this matrix only products are
then computed, block by block (:mod:`fedattack.learning.rows`). So it is always for the gradients of examples, which are
kept as far as there is memory. The detector is the same but for rounding.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.attacks.knowledge import ModelKnowledge, Targets
from fedattack.base.errors import NeedsError
from fedattack.base.machine import MEMORY, give_back_large_blocks, shown_size
from fedattack.learning import LocalSGD
from fedattack.learning.importing import one_line, trust_given
from fedattack.learning.inputs import Examples, examples_of, one_after_another
from fedattack.learning.losses import mean_loss
from fedattack.learning.rows import (
    PASSES,
    Block,
    Centred,
    GradientRows,
    LayerModel,
    Rows,
    Whole,
    group_means,
    numbers_kept,
)
from fedattack.learning.shadows import CHUNK, TRAINED, ShadowModel
from fedattack.learning.torch_utils import fix_seed, to_tensor
from fedattack.threats.property.disaggregation import Array
from fedattack.threats.property.options import Mode
from fedattack.threats.property.properties import Behaviour, Property
from fedattack.threats.property.sketch import Sketch

Part = Literal["train", "choose", "test"]

# How the auxiliary records are divided. The paper trains on 80 % and takes the densities from the other 20 %; the part
# to choose with comes out of the 80.
_SHARES = {"train": 0.7, "choose": 0.1, "test": 0.2}
STEPS = 24
_SIZES = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24)
_SHRINKAGE = (1e-4, 1e-3, 1e-2, 1e-1)
# Clients that the linear mode puts together: to weigh records with, and to choose and to measure densities with.
_WEIGHING = 16_000
_VIRTUAL = {"choose": 2_000, "test": 4_000}
# Dropout masks drawn for each record outside the auxiliary ones, which is in every batch with the property.
_MASKS = {"train": 512, "choose": 32, "test": 128}
# Points of the mean client's path at which gradients are taken, and records to find its direction with.
_POINTS = 3
_PATH_RECORDS = 1_000
_CHECKED = 200
# Examples on which it is tried whether the model's gradients can be taken apart.
_TRIED = 3
# The mean log odds beyond which a detector's features are shrunk.
_MEAN = 2.0
# Parameters whose gradient hardly varies are not blown up to the spread of the others.
_FLOOR = 0.1
_TINY = 1e-30
_SAMPLED = 200
# Vectors of all parameters beside the Krylov space itself.
_BESIDE = 8
# Shares of the memory: for the Krylov space, for what is computed at a time, and for what the system does not get back.
_SPANNED = 0.75
_AT_A_TIME = 0.1
_LOST = 0.15
# Sketches of updates: from how many parameters, which share of the memory, and the least numbers in one.
_SKETCHED_FROM = 1_000_000
_SKETCHED = 0.5
_NARROWEST = 1_000

log = logging.getLogger("fedattack")


@dataclass(frozen=True)
class DetectorSetting:
    """What the detectors of all rounds share.

    Attributes
    ----------
    model, training
        The clients' architecture, loss and local training.
    auxiliary
        The attacker's own examples.
    questions
        Properties to detect.
    mode
        ``linear`` or ``exact``.
    sizes
        (groups,): numbers of training examples that clients have.
    seed, device
        Of all draws; where to compute.
    memory
        Bytes that the work on one round may hold, beside the auxiliary examples and what torch takes.
    """

    model: ModelKnowledge
    training: LocalSGD
    auxiliary: Targets
    questions: Sequence[Property]
    mode: Mode
    sizes: tuple[int, ...]
    seed: int
    device: str
    memory: float = MEMORY


@dataclass(frozen=True)
class Detector:
    """M_r for one property.

    Attributes
    ----------
    weights, offset
        g_r(Δ) = ⟨weights, Δ⟩ + offset; weights (size,) in float32.
    plus_mean, plus_sd, minus_mean, minus_sd
        (groups,): the feature's mean and standard deviation with and without the property, by size of the client.
    accuracy
        On clients made of unseen auxiliary records, half of them with the property.
    checked
        The same on exact shadow updates of unseen examples, where that was measured.
    plus_sample, minus_sample
        Some features, for a histogram, of the same clients in every round.
    """

    weights: NDArray[np.float32]
    offset: float
    plus_mean: Array
    plus_sd: Array
    minus_mean: Array
    minus_sd: Array
    accuracy: float
    checked: float | None
    plus_sample: Array
    minus_sample: Array

    @property
    def spread(self) -> float:
        """The largest standard deviation; 0 for a detector that saw no difference, whose features are all 0."""
        return float(max(*self.plus_sd, *self.minus_sd))

    def without_weights(self) -> "Detector":
        """Drop what grows with the model, once the sums are projected."""
        return replace(self, weights=self.weights[:0])


Features = tuple[list[Array], list[Array]]
"""Projections (clients, k) with and without the property, one array for each size of client."""


class _ShadowSource(Protocol):
    """Where updates' means, covariance and projections are taken from."""

    def spaces(self) -> "Iterator[_Space]": ...

    def project(self, question: int, part: Part, directions: Tensor) -> Features: ...


@dataclass(frozen=True)
class _Space:
    """The Krylov space of one question: ``basis`` (k, size), and of scaled parameters Σ in it (k, k) and ‖μ⁺ − μ⁻‖."""

    basis: Tensor
    covariance: Array
    length: float

    def coefficients(self) -> Iterator[Array]:
        """Solve (Σ + κI)c = μ⁺ − μ⁻ in spaces of growing size, for several κ."""
        for size in _SIZES:
            if size > len(self.basis):
                return
            block = self.covariance[:size, :size]
            right = np.zeros(size)
            right[0] = self.length
            for shrinkage in _SHRINKAGE:
                solution = np.zeros(len(self.basis))
                if self.length * block[0, 0] > 0:
                    solution[:size] = np.linalg.solve(block + shrinkage * block[0, 0] * np.eye(size), right)
                yield solution


def fit_detectors(
    setting: DetectorSetting, start: NDArray[Any], shares: Array, number: int, *, check: bool
) -> list[Detector]:
    """Fit a detector for each question.

    Parameters
    ----------
    setting
        What all rounds share.
    start
        (size,): the round's common model.
    shares
        (groups,): how the round's participants are distributed over the sizes.
    number
        The round, from which with the seed all draws follow.
    check
        Measure the accuracy on exact shadow updates, too.

    Raises
    ------
    NeedsError
        If there are too few auxiliary records for the property's batches.
    """
    loss = mean_loss(trust_given(setting.model.loss))
    shadow = ShadowModel(setting.model.build(), setting.auxiliary.x[0], loss, device=setting.device)
    if bytes_needed(setting, shadow.size, random=shadow.random) > setting.memory:
        give_back_large_blocks()
        log.info("round %d: gradients do not fit into %s and are computed in parts", number, shown_size(setting.memory))
    common = to_tensor(start, dtype=torch.float32, device=setting.device)
    width = sketch_width(setting, shadow.size)
    own = None
    if width:
        own = Sketch(shadow.sizes, width, setting.seed)
    shadows: _ShadowSource
    if setting.mode == "linear":
        shadows = _Linear(setting, shadow, common, number)
    else:
        shadows = _Exact(setting, shadow, common, number, sketch=own)
    detectors = []
    for question, space in enumerate(shadows.spaces()):
        detector = _fit(shadows, question, space, shares)
        if own is not None:
            detector = _of_updates(detector, own)
        detectors.append(detector)
    if not check:
        return detectors
    if setting.mode == "exact":
        return [replace(detector, checked=detector.accuracy) for detector in detectors]
    # the gradients and what is made for the check need not be in memory together
    del shadows, space
    checker = _Exact(setting, shadow, common, number, count=_CHECKED)
    return [_check_detector(checker, question, detector, shares) for question, detector in enumerate(detectors)]


def _of_updates(detector: Detector, sketch: Sketch) -> Detector:
    """Turn a detector of sketches into one of updates."""
    return replace(detector, weights=sketch.back(detector.weights))


def sketch_width(setting: DetectorSetting, size: int) -> int:
    """Return how many numbers sketches of updates have; 0 where updates themselves are used.

    Shadow clients are trained again in every pass over updates that do not fit into memory. With a large model, of
    which not even a chunk of updates fits, that would take hours, and one pass over sketches takes its place.
    """
    if setting.mode == "linear" or size < _SKETCHED_FROM or 4.0 * size * CHUNK <= setting.memory:
        return 0
    vectors = 6 * len(setting.auxiliary) + 2 * (STEPS + _BESIDE)
    # Odd, so that sums do not follow the sides of layers.
    return min(size, max(_NARROWEST, int(_SKETCHED * setting.memory / (4 * vectors))) | 1)


def can_be_linear(model: ModelKnowledge, record: NDArray[Any]) -> bool:
    """Whether a batch's gradient is the mean of its examples' gradients."""
    return ShadowModel(model.build(), record, mean_loss(trust_given(model.loss))).separable


def bytes_needed(setting: DetectorSetting, size: int, *, random: bool) -> float:
    """Return how many bytes the usual way takes at most for a model of ``size`` parameters, which keeps all rows.

    Where it is more than the memory, products of these matrices are computed in parts. ``random`` says whether the
    model has dropout.
    """
    records, questions = len(setting.auxiliary), setting.questions
    spaces = 2 * (STEPS + _BESIDE) * len(questions)
    if setting.mode == "exact":
        return 4.0 * size * (6 * records + TRAINED * CHUNK + spaces)
    extra = [question.extra_count * _count_masks("train", random) for question in questions]
    sides = len({question.behaviour == "ascend" for question in questions} | {False})
    later = sides * (_points(setting) - 1) * _SHARES["test"] * records
    return 4.0 * size * (records + later + sum(extra) + 3 * max(extra) + 6 * CHUNK + spaces)


def _count_masks(part: Part, random: bool) -> int:
    """Return how many dropout masks are drawn for an example; one where the model has no dropout."""
    if not random:
        return 1
    return _MASKS[part]


def _points(setting: DetectorSetting) -> int:
    """Return at how many points of the mean client's path gradients are taken."""
    return min(_POINTS, setting.training.steps(max(setting.sizes)))


def _step_sizes(training: LocalSGD, size: int) -> list[int]:
    """Return how many examples each local step of a client with ``size`` examples takes."""
    batch = min(training.batch_size or size, size)
    epoch = [min(batch, size - at) for at in range(0, size, batch)]
    return epoch * training.epochs


def steps_within(memory: float, size: int) -> int:
    """Return how many steps a Krylov space may have for a model of ``size`` parameters."""
    return int(np.clip(_SPANNED * memory / (4 * size) - _BESIDE, 2, STEPS))


def _fit(shadows: _ShadowSource, question: int, space: _Space, shares: Array) -> Detector:
    """Choose a direction on the part "choose", and measure it on the part "test"."""
    chosen_on = _join_sizes(shadows.project(question, "choose", space.basis))
    best = max(space.coefficients(), key=lambda c: _separation(chosen_on[0] @ c, chosen_on[1] @ c))
    weights = torch.as_tensor(best, dtype=torch.float32, device=space.basis.device) @ space.basis
    plus, minus = shadows.project(question, "test", weights[None])
    scale, offset = _log_odds(plus, minus, shares)
    if scale == 0:
        # no difference, or gradients that overflow: a detector that always says 0 does no harm
        weights, plus, minus = torch.zeros_like(weights), _zeros(plus), _zeros(minus)
    weights = scale * weights
    with_it, without = _affine(plus, scale, offset), _affine(minus, scale, offset)
    return Detector(
        weights=weights.cpu().numpy(),
        offset=offset,
        plus_mean=_each(np.mean, with_it),
        plus_sd=_each(np.std, with_it),
        minus_mean=_each(np.mean, without),
        minus_sd=_each(np.std, without),
        accuracy=_accuracy(with_it, without, shares),
        checked=None,
        plus_sample=_sample(with_it),
        minus_sample=_sample(without),
    )


def _check_detector(checker: "_Exact", question: int, detector: Detector, shares: Array) -> Detector:
    """Measure a detector's accuracy on exact shadow updates."""
    if not detector.spread:
        return replace(detector, checked=0.5)
    weights = to_tensor(detector.weights, device=checker.start.device)[None]
    sides = checker.project(question, "test", weights)
    with_it, without = (_affine(side, 1.0, detector.offset) for side in sides)
    return replace(detector, checked=_accuracy(with_it, without, shares))


def _join_sizes(sides: Sequence[Sequence[Array]]) -> tuple[Array, Array]:
    """Put the clients of all sizes together."""
    plus, minus = sides
    return np.concatenate(plus), np.concatenate(minus)


def _each(statistic: Callable[[Array], Any], side: Sequence[Array]) -> Array:
    """Return a statistic for each size of client, (groups,)."""
    return np.array(list(map(statistic, side)))


def _zeros(side: Sequence[Array]) -> list[Array]:
    return [np.zeros_like(values) for values in side]


def _affine(side: Sequence[Array], scale: float, offset: float) -> list[Array]:
    """Return the feature g_r of clients: their first projection, scaled and moved."""
    return [scale * values[:, 0] + offset for values in side]


def _log_odds(plus: Sequence[Array], minus: Sequence[Array], shares: Array) -> tuple[float, float]:
    """Return the scale and the offset that turn the first projection into log odds; zeros where it shows nothing.

    Log odds of two normal densities of one variance have means ± half the squared separation. The regressions take a
    client's expected feature to be the same in all rounds. Features of strong detectors are therefore shrunk.
    """
    top = float(shares @ [values[:, 0].mean() for values in plus])
    bottom = float(shares @ [values[:, 0].mean() for values in minus])
    spread = float(shares @ [(a[:, 0].var() + b[:, 0].var()) / 2 for a, b in zip(plus, minus, strict=True)])
    if not 0 < spread < np.inf:
        return 0.0, 0.0
    odds = (top - bottom) / spread
    mean = abs(odds * (top - bottom) / 2)
    if not mean > 0:
        return 0.0, 0.0
    scale = odds * min(1.0, _MEAN / mean)
    if not np.isfinite(scale) or scale == 0:
        return 0.0, 0.0
    return scale, -scale * (top + bottom) / 2 + 0.0


def _sample(side: Sequence[Array]) -> Array:
    values = np.concatenate(side)
    return values[:: max(1, len(values) // _SAMPLED)][:_SAMPLED]


def _accuracy(plus: Sequence[Array], minus: Sequence[Array], shares: Array) -> float:
    return float(shares @ [((a > 0).mean() + (b <= 0).mean()) / 2 for a, b in zip(plus, minus, strict=True)])


def _separation(plus: Array, minus: Array) -> float:
    spread = np.sqrt((plus.var() + minus.var()) / 2)
    if not spread > 0:
        return 0.0
    return float((plus.mean() - minus.mean()) / spread)


def divide(records: int, seed: int) -> dict[Part, NDArray[np.int64]]:
    """Divide the auxiliary records, the same for all rounds."""
    order = np.random.default_rng((seed, _DIVISION)).permutation(records)
    ends = np.cumsum([round(share * records) for share in _SHARES.values()])
    train, choose, test = np.split(order, ends[:2])
    return {"train": train, "choose": choose, "test": test}


# Streams of random numbers, apart from each other.
_DIVISION, _BATCHES, _TRAINING = 1, 2, 3


def _generator(*stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(int(np.random.SeedSequence(stream).generate_state(1)[0]))


class _Base:
    """What both modes need: the divided examples and the draws of one round."""

    def __init__(self, setting: DetectorSetting, shadow: ShadowModel, start: Tensor, number: int) -> None:
        self.setting = setting
        self.shadow = shadow
        self.start = start
        self.number = number
        self.rows = divide(len(setting.auxiliary), setting.seed)
        self.x = examples_of(setting.auxiliary.x)
        self.y = to_tensor(setting.auxiliary.y)
        self.fits = bytes_needed(setting, shadow.size, random=shadow.random) <= setting.memory
        self.steps = steps_within(setting.memory, shadow.size)

    def room(self, questions: int) -> float:
        """Return the bytes that are left beside the Krylov spaces of some questions for what passes over rows keep."""
        spanned = 4.0 * self.shadow.size * (self.steps + _BESIDE) * questions
        return max(0.0, self.setting.memory * (1 - _AT_A_TIME - _LOST) - spanned)

    def numbers(self, *stream: int) -> np.random.Generator:
        """Make a generator of one use's batches, the same in all rounds: clients keep their examples."""
        return np.random.default_rng((self.setting.seed, _BATCHES, *stream))

    def masks(self, *stream: int) -> torch.Generator:
        """Make a generator of one use's local training, another in each round, the same if the round is done again."""
        return self.masks_of(*stream)()

    def masks_of(self, *stream: int) -> Callable[[], torch.Generator]:
        """Return what makes that generator, again and again, and holds nothing of this object.

        What an object holds that holds the object again would fill the memory until Python looks for such circles.
        """
        return partial(_generator, self.setting.seed, _TRAINING, self.number, *stream)

    def behaviour(self, question: int, has: bool) -> Behaviour:
        """Say what a client with or without the property does with its batch."""
        if not has:
            return "descend"
        return self.setting.questions[question].behaviour

    def counts(self, total: int) -> list[int]:
        """How many of ``total`` clients to make of each size; at least two, so that there is a variance."""
        return [max(2, total // len(self.setting.sizes))] * len(self.setting.sizes)

    def batches(
        self, question: int, has: bool, part: Part, counts: Sequence[int], generator: np.random.Generator
    ) -> Iterator[NDArray[np.int64]]:
        """Draw (clients, size) example indices for each size of client."""
        asked, rows = self.setting.questions[question], self.rows[part]
        for count, size in zip(counts, self.setting.sizes, strict=True):
            try:
                drawn = asked.draw(has, count, size, rows, generator)
                allowed = np.concatenate([rows, len(self.x) + np.arange(asked.extra_count)])
                yield _checked_batches(drawn, (count, size), allowed)
            except NeedsError as cause:
                raise NeedsError(
                    f"property {asked.name}: {cause} (of {len(self.x)} auxiliary records, {len(rows)} are kept to "
                    f"{part} with)"
                ) from None
            except Exception as cause:  # the user's code may raise anything
                raise NeedsError(f"property {asked.name}: drawing batches failed ({one_line(cause)})") from cause

    def records(self, question: int, batches: NDArray[np.int64]) -> tuple[Examples, Tensor]:
        """Look the examples (clients, size, *shape) and labels of ``batches`` up."""
        x, y = self.x, self.y
        extra = self.setting.questions[question].extra
        if extra is not None:
            x = one_after_another(x, examples_of(extra.x))
            y = torch.cat([y, to_tensor(extra.y)])
        index = torch.as_tensor(batches)
        return x[index], y[index]


def _checked_batches(drawn: object, shape: tuple[int, int], allowed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Check what a recipe drew: other examples than those allowed may be those that the detector is fitted on."""
    batches = np.asarray(drawn)
    if batches.shape != shape or batches.dtype.kind not in "iu":
        raise NeedsError(
            f"batches must be example indices of shape {shape}, (clients, examples each); got {batches.dtype} of shape "
            f"{batches.shape}"
        )
    batches = batches.astype(np.int64)
    # By a table: a sort of all batches, as of np.setdiff1d, takes longer than a Krylov step.
    known = np.zeros(allowed.max(initial=-1) + 2, dtype=bool)
    known[allowed] = True
    strange = batches[~known[np.clip(batches, -1, len(known) - 1)]]
    if len(strange):
        raise NeedsError(f"batches must be drawn from the rows given and from extra; got example {strange.min()}")
    return batches


class _Exact(_Base):
    """Shadow clients, trained."""

    def __init__(self, *args: Any, count: int | None = None, sketch: Sketch | None = None) -> None:
        super().__init__(*args)
        self.count = count
        self.sketch = sketch
        if sketch is not None:
            # What is kept is of the sketches' size.
            self.fits, self.steps = True, STEPS

    def spaces(self) -> Iterator[_Space]:
        for question in range(len(self.setting.questions)):
            if not self.fits:
                yield self._space_in_parts(question)
                continue
            plus = torch.cat(list(self._updates(question, "train", True)))
            minus = torch.cat(list(self._updates(question, "train", False)))
            mean_plus, mean_minus = plus.mean(dim=0), minus.mean(dim=0)
            # in place: the updates fill much of the memory
            plus -= mean_plus
            minus -= mean_minus
            matrix = torch.cat([plus, minus])
            del plus, minus
            weights = torch.full((len(matrix),), 1 / len(matrix), device=matrix.device)
            yield from _krylov(Whole(matrix), weights, (mean_plus - mean_minus)[None], self.steps)

    def _space_in_parts(self, question: int) -> _Space:
        room = self.room(1)
        rows = _JoinedRows(*(_ShadowRows(self, question, "train", has, room / 2) for has in (True, False)))
        sides = [torch.full((len(side),), number) for number, side in enumerate((rows.plus, rows.minus))]
        group = torch.cat(sides).to(self.start.device)
        means = group_means(rows, group, 2, self.shadow.size)
        weights = torch.full((len(rows),), 1 / len(rows), device=means.device)
        (space,) = _krylov(Centred(rows, means, group), weights, (means[0] - means[1])[None], self.steps)
        return space

    def project(self, question: int, part: Part, directions: Tensor) -> Features:
        sides = []
        for has in (True, False):
            if self.fits:
                sides.append([_host(updates @ directions.T) for updates in self._updates(question, part, has)])
            else:
                rows = _ShadowRows(self, question, part, has, 0.0)
                sides.append(np.split(_project(rows, directions), np.cumsum(rows.counts)[:-1]))
        return sides[0], sides[1]

    def streams(self, question: int, part: Part, has: bool) -> tuple[np.random.Generator, torch.Generator]:
        """Make the generators of clients' batches and of their training."""
        stream = (_PARTS.index(part), question, has)
        return self.numbers(*stream), self.masks(0, *stream)

    def clients(self, part: Part) -> list[int]:
        """How many shadow clients to make of each size."""
        return self.counts(self.count or len(self.rows[part]))

    def _updates(self, question: int, part: Part, has: bool) -> Iterator[Tensor]:
        if self.sketch is not None:
            rows = _ShadowRows(self, question, part, has, 0.0)
            sketches = self.start.new_empty((len(rows), self.sketch.width))
            for where, block in rows.blocks():
                sketches[where] = block.matrix
            yield from sketches.split(rows.counts)
            return
        numbers, masks = self.streams(question, part, has)
        behaviour = self.behaviour(question, has)
        for batches in self.batches(question, has, part, self.clients(part), numbers):
            x, y = self.records(question, batches)
            updates = self.shadow.updates(
                self.start, x, y, self.setting.training, generator=masks, maximise=behaviour == "ascend"
            )
            if behaviour == "invert":
                updates = -updates
            yield updates


class _ShadowRows:
    """Updates of shadow clients or their sketches, made again in each pass but for what fits into ``room`` bytes."""

    def __init__(self, exact: _Exact, question: int, part: Part, has: bool, room: float) -> None:
        self.exact = exact
        self.question = question
        self.part: Part = part
        self.has = has
        self.room = room
        self.counts = exact.clients(part)
        # by the first row: updates, and the state in which the draws of their training leave the generator
        self._kept: dict[int, tuple[list[Tensor], Tensor]] = {}

    def __len__(self) -> int:
        return sum(self.counts)

    def blocks(self) -> Iterator[tuple[slice, Whole]]:
        exact = self.exact
        numbers, masks = exact.streams(self.question, self.part, self.has)
        at = 0
        for batches in exact.batches(self.question, self.has, self.part, self.counts, numbers):
            for first in range(0, len(batches), CHUNK):
                for updates in self._chunk(at, batches[first : first + CHUNK], masks):
                    yield slice(at, at + len(updates)), Whole(updates)
                    at += len(updates)

    def _chunk(self, at: int, batches: NDArray[np.int64], masks: torch.Generator) -> Iterable[Tensor]:
        """Return the updates of clients whose steps are drawn together."""
        if at in self._kept:
            updates, state = self._kept[at]
            masks.set_state(state)
            return updates
        made = self._train(at, batches, masks)
        taken = 4.0 * self.exact.shadow.size * len(batches)
        if taken > self.room:
            return made
        self.room -= taken
        self._kept[at] = list(made), masks.get_state()
        return self._kept[at][0]

    def _train(self, at: int, batches: NDArray[np.int64], masks: torch.Generator) -> Iterator[Tensor]:
        exact, shadow = self.exact, self.exact.shadow
        behaviour = exact.behaviour(self.question, self.has)
        together = int(np.clip(_AT_A_TIME * exact.setting.memory / (4 * shadow.size * TRAINED), 1, CHUNK))
        x, y = exact.records(self.question, batches)
        # what draws its own dropout must draw the same in each pass
        with fix_seed(at, shadow.device):
            for updates in shadow.update_parts(
                exact.start,
                x,
                y,
                exact.setting.training,
                generator=masks,
                maximise=behaviour == "ascend",
                together=together,
            ):
                made = updates
                if exact.sketch is not None:
                    made = exact.sketch.of(updates)
                if behaviour == "invert":
                    made = -made
                yield made


@dataclass(frozen=True)
class _JoinedRows:
    """Rows with the property, and after them rows without."""

    plus: _ShadowRows
    minus: _ShadowRows

    def __len__(self) -> int:
        return len(self.plus) + len(self.minus)

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        yield from self.plus.blocks()
        for where, block in self.minus.blocks():
            yield slice(len(self.plus) + where.start, len(self.plus) + where.stop), block


def _project(rows: Rows, directions: Tensor) -> Array:
    """Return the rows' products (n, k) with directions (k, size)."""
    return np.concatenate([_host(block.project(directions).T) for _, block in rows.blocks()])


@dataclass(frozen=True)
class _Projected:
    """Gradients at the points of the mean client's path, projected onto k directions.

    - ``auxiliary`` (points, examples, k): of one part of the auxiliary records;
    - ``extra`` (points, extra examples, masks, k): of the extra examples;
    - ``points`` (points, k): the points themselves.
    """

    auxiliary: Array
    extra: Array
    points: Array


class _Linear(_Base):
    """One gradient for each example, and clients put together from them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # How many questions' Krylov spaces are in memory together.
        self._together = len(self.setting.questions)
        if not self.fits:
            spanned = 4 * self.shadow.size * (self.steps + _BESIDE)
            self._together = int(np.clip(_SPANNED * self.setting.memory / spanned, 1, self._together))
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
        if not self.fits:
            whole, each = self._rooms
            room = again * each * len(x)
            if training:
                room = whole
        elif once:
            # To multiply them out would take longer.
            room = 4.0 * numbers_kept(self._model) * len(x)
        else:
            room = 4.0 * self.shadow.size * len(x)
        return GradientRows(self._model, at, x, y, masks, room=room, scratch=_AT_A_TIME * self.setting.memory)

    @cached_property
    def _model(self) -> LayerModel:
        return LayerModel(self.shadow, self.start, self.x[:_TRIED], self.y[:_TRIED])

    @cached_property
    def _rooms(self) -> tuple[float, float]:
        """Bytes for what is kept of all the gradients to train on, and of each other one."""
        room = self.room(self._together)
        train, choose, test = map(len, self.rows.values())
        extra = sum(question.extra_count for question in self.setting.questions) * self._masks_of("train")
        others = extra + self._several * (choose + test * (2 * _points(self.setting) - 1))
        each = min(4.0 * numbers_kept(self._model), room / (train + others))
        return room - each * others, each

    @property
    def _several(self) -> bool:
        """Whether there are several questions, each of which goes through what is chosen and tested on."""
        return len(self.setting.questions) > 1

    def _masks_of(self, part: Part) -> int:
        """How many dropout masks are drawn for an example beside the auxiliary ones."""
        return _count_masks(part, self.shadow.random)

    def spaces(self) -> Iterator[_Space]:
        count = len(self.x)
        weights = torch.zeros(count, dtype=torch.float64)
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
    ) -> list[_Space]:
        """Span the spaces of some questions side by side.

        ``use`` is how often each example to train on is in a client's batch; ``changes`` and ``often`` are by question
        how much more often all examples are with the property, and how often those beside the auxiliary ones.
        """
        rows, gradients = torch.as_tensor(self.rows["train"]), self._at_start["train"]
        count = len(self.x)
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
            difference -= changes[question][count:].float().to(use.device) @ means
            # a record that is always there adds no spread but that of its dropout masks
            part = often[question].float().to(use.device) / masks
            extras.append((varied, part.repeat_interleave(masks) / share))
        return _krylov(gradients, use / use.sum(), differences, self.steps, extras)

    def _apart(self, extra: Rows, masks: int) -> tuple[Rows, Tensor]:
        """Return the gradients of extra examples less their means over dropout masks, and the means."""
        group = torch.arange(len(extra) // masks, device=self.start.device).repeat_interleave(masks)
        means = group_means(extra, group, len(extra) // masks, self.shadow.size)
        return Centred(extra, means, group), means

    def project(self, question: int, part: Part, directions: Tensor) -> Features:
        usual = odd = self._along_path(question, part, directions, ascend=False)
        # The inverted update is a faithful one until it is sent.
        if self.behaviour(question, True) == "ascend":
            odd = self._along_path(question, part, directions, ascend=True)
        return self._clients(question, part, odd, True), self._clients(question, part, usual, False)

    def _clients(self, question: int, part: Part, projected: _Projected, has: bool) -> list[Array]:
        """Put clients of each size together, and project their updates."""
        behaviour = self.behaviour(question, has)
        numbers = self.numbers(_PARTS.index(part), question, has)
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
        numbers = self.numbers(len(_PARTS), question)
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
        drawn = self.masks_of(2, _PARTS.index(part), question, point)
        return self._gradients(at, x, y, drawn, once=part == "test", again=part == "train")

    def _path(self, ascend: bool) -> list[Tensor]:
        """Points that the mean client passes, the first of them the common model."""
        if ascend not in self._paths:
            self._paths[ascend] = self._walk(ascend)
        return self._paths[ascend]

    @cached_property
    def _walking(self) -> int | None:
        """How many examples of the path's are computed at a time; ``None`` for all."""
        if self.fits:
            return None
        return int(max(1, _AT_A_TIME * self.setting.memory // (4 * PASSES * self._model.activations)))

    def _walk(self, ascend: bool) -> list[Tensor]:
        training = self.setting.training
        rows = self.rows["train"][:_PATH_RECORDS]
        generator = self.masks(3, ascend)
        steps = training.steps(max(self.setting.sizes))
        wanted = _points(self.setting)
        parameters, velocity = self.start, torch.zeros_like(self.start)
        points: list[Tensor] = []
        for step in range(steps):
            if len(points) * steps <= step * wanted:
                points.append(parameters)
            if len(points) == wanted:
                break
            gradient = self.shadow.mean_gradient(
                parameters, self.x[rows], self.y[rows], generator=generator, chunk=self._walking
            )
            if ascend:
                gradient = -gradient
            velocity = training.momentum * velocity + gradient + training.weight_decay * parameters
            parameters = parameters - training.lr * velocity
        return points

    def _along_path(self, question: int, part: Part, directions: Tensor, ascend: bool) -> _Projected:
        """Project gradients along the path."""
        auxiliary, extras, positions = [], [], []
        points = [self.start]
        # What only decides between spaces need not follow the path.
        if part == "test":
            points = self._path(ascend)
        for number, point in enumerate(points):
            gradients = self._later_gradients(ascend, number, point) if number else self._at_start[part]
            auxiliary.append(_project(gradients, directions))
            extra = self._extra_gradients(question, part, point, number)
            features = np.zeros((0, 1, 0))
            if extra is not None:
                features = _project(extra, directions).reshape(-1, self._masks_of(part), len(directions))
            extras.append(features)
            positions.append(_host(directions @ point))
        return _Projected(np.stack(auxiliary), np.stack(extras), np.stack(positions))

    def _later_gradients(self, ascend: bool, number: int, point: Tensor) -> Rows:
        """Gradients of the test examples at a later point of the path, once for all questions."""
        if (ascend, number) not in self._later:
            x, y = self.x[self.rows["test"]], self.y[self.rows["test"]]
            masks = self.masks_of(4, ascend, number)
            self._later[ascend, number] = self._gradients(point, x, y, masks, once=True, again=self._several)
        return self._later[ascend, number]

    def _assemble(
        self,
        projected: _Projected,
        batches: NDArray[np.int64],
        part: Part,
        generator: np.random.Generator,
        *,
        ascend: bool,
    ) -> Array:
        """Sum the projected gradients (clients, k) of clients that take their steps with these examples."""
        training = self.setting.training
        known = self.rows[part]
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
                order = generator.permuted(batches, axis=1)
                at = 0
            rows = order[:, at : at + length]
            at += length
            point = step * len(projected.points) // len(lengths)
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


_PARTS: tuple[Part, ...] = ("train", "choose", "test")


def _host(values: Tensor) -> Array:
    return values.double().cpu().numpy()


def _reach(momentum: float, steps: int) -> Array:
    """Return how often each step's gradient (steps,) counts in the end, with all that momentum makes of it."""
    later = np.arange(steps, 0, -1)
    if momentum < 1:
        return np.asarray((1 - momentum**later) / (1 - momentum))
    return later.astype(np.float64)


def _krylov(
    rows: Rows,
    weights: Tensor,
    differences: Tensor,
    most: int,
    extra: Sequence[tuple[Rows, Tensor]] = (),
) -> list[_Space]:
    """Span the spaces of (Σ, d) for many d side by side (Lanczos, fully reorthogonalised).

    Parameters are first brought to about one spread, as a logistic regression would have them. Half as many steps then
    go as far. Only vectors are scaled, never the matrix.

    Parameters
    ----------
    rows, weights
        (n, size), (n,) summing to one: Σ is their weighted covariance.
    differences
        (questions, size): each question's μ⁺ − μ⁻; it is overwritten.
    most
        Steps at most.
    extra
        For each question, centred rows (k, size) that add to its Σ, and their weights (k,).
    """
    mean = torch.zeros_like(differences[0])
    variance = torch.zeros_like(mean)
    for where, block in rows.blocks():
        block.accumulate(mean, weights[where])
        block.accumulate_squares(variance, weights[where])
    variance -= mean**2
    scale = (variance / variance.mean().clamp_min(_TINY) + _FLOOR).rsqrt()
    del variance
    current = differences.mul_(scale)
    lengths = current.norm(dim=1)
    current /= lengths.clamp_min(_TINY)[:, None]
    steps = min(most, current.shape[1], len(rows) - 1)
    basis = torch.empty((steps, *current.shape), device=current.device)
    diagonal, beside = [], []
    for step in range(steps):
        basis[step] = current
        image = _covariance_times(current * scale, rows, weights, mean, extra)
        image *= scale
        diagonal.append((image * current).sum(dim=1))
        for vector in basis[: step + 1]:
            image -= (image * vector).sum(dim=1, keepdim=True) * vector
        length = image.norm(dim=1)
        beside.append(length)
        current = image.div_(length.clamp_min(_TINY)[:, None])
    on, off = _host(torch.stack(diagonal)), _host(torch.stack(beside))
    basis *= scale
    spaces = []
    for question in range(len(differences)):
        steps = len(basis)
        # beyond an invariant subspace there is only rounding
        ended = np.flatnonzero(off[:, question] <= 1e-6 * on[0, question])
        if len(ended):
            steps = int(ended[0]) + 1
        inner = off[: steps - 1, question]
        covariance = np.diag(on[:steps, question]) + np.diag(inner, 1) + np.diag(inner, -1)
        spaces.append(_Space(basis[:steps, question], covariance, float(lengths[question])))
    return spaces


def _covariance_times(
    vectors: Tensor, rows: Rows, weights: Tensor, mean: Tensor, extra: Sequence[tuple[Rows, Tensor]]
) -> Tensor:
    """Return Σ times each question's vector (questions, size)."""
    image = torch.zeros_like(vectors)
    along = (vectors @ mean)[:, None]
    total = torch.zeros_like(along[:, 0])
    for where, block in rows.blocks():
        centred = block.project(vectors) - along
        part = weights[where]
        block.accumulate(image, centred * part)
        total = total + centred @ part
    image -= total[:, None] * mean
    for question, (varied, often) in enumerate(extra):
        for where, block in varied.blocks():
            own = block.project(vectors[question : question + 1])[0]
            block.accumulate(image[question], own * often[where])
    return image
