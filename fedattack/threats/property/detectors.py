"""One round's detector: a linear feature that tells updates with a property from updates without it.

PROLIN (Kerkouche et al. 2023), Sections 5.1.2, 5.2.1 and 5.2.2. The detector M_r = h∘g_r is the sigmoid of an affine
g_r, trained on auxiliary records alone. g_r > 0 means "more likely with than without": g_r is in log odds, or a
fraction of them.

The paper draws 12,000 shadow updates a round and trains a logistic regression on them. Here g_r is the shrunken linear
discriminant (Σ + κD)⁻¹(μ⁺ − μ⁻), D a diagonal, found in the Krylov space of Σ and μ⁺ − μ⁻, whose size and κ are chosen
on records apart. What Σ and the means are taken from is the mode:

``linear``
    One local step is the mean of per-record gradients, so that means and covariance of updates follow from one gradient
    for each auxiliary record, and no shadow update is drawn. Several small steps are nearly linear: gradients are then
    taken along the mean client's path. Densities come from clients put together from the gradients of unseen records.
``exact``
    Shadow clients are trained as clients are, in batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.errors import NeedsError
from fedattack.learning import LocalSGD
from fedattack.learning.importing import given, one_line
from fedattack.learning.losses import mean_loss
from fedattack.learning.shadows import ShadowModel
from fedattack.learning.torch_utils import to_tensor
from fedattack.threats.knowledge import ModelKnowledge, Targets
from fedattack.threats.property.disaggregation import Array
from fedattack.threats.property.many_features import FeatureDetector
from fedattack.threats.property.properties import Property

Mode = Literal["linear", "exact"]
Part = Literal["train", "choose", "test"]
MODES: tuple[Mode, ...] = ("linear", "exact")

# How the auxiliary records are divided. The paper trains on 80 % and takes the densities from the other 20 %; the part
# to choose with comes out of the 80.
_SHARES = {"train": 0.7, "choose": 0.1, "test": 0.2}
_STEPS = 24
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
# The mean log odds beyond which a detector's features are shrunk.
_MEAN = 2.0
# Parameters whose gradient hardly varies are not blown up to the spread of the others.
_FLOOR = 0.1
_TINY = 1e-30
_ROWS = 512
_SAMPLED = 200


@dataclass(frozen=True)
class Setting:
    """What the detectors of all rounds share.

    Attributes
    ----------
    model, training
        The clients' architecture, loss and local training.
    auxiliary
        The attacker's own records.
    questions
        Properties to detect.
    mode
        ``linear`` or ``exact``.
    sizes
        (groups,): numbers of training records that clients have.
    seed, device
        Of all draws; where to compute.
    features
        How many features a round has: t of the paper.
    """

    model: ModelKnowledge
    training: LocalSGD
    auxiliary: Targets
    questions: Sequence[Property]
    mode: Mode
    sizes: tuple[int, ...]
    seed: int
    device: str
    features: int = 1


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
        The same on exact shadow updates of unseen records, where that was measured.
    plus_sample, minus_sample
        Some features, for a histogram, of the same clients in every round.
    many
        With t > 1, the detector of all features.
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
    many: FeatureDetector | None = None

    @property
    def spread(self) -> float:
        """The largest standard deviation; 0 for a detector that saw no difference, whose features are all 0."""
        return float(max(*self.plus_sd, *self.minus_sd))

    def without_weights(self) -> "Detector":
        """Drop what grows with the model, once the sums are projected."""
        many = None if self.many is None else replace(self.many, weights=self.many.weights[:, :0])
        return replace(self, weights=self.weights[:0], many=many)


Features = tuple[list[Array], list[Array]]
"""Projections (clients, k) with and without the property, one array for each size of client."""


class _Shadows(Protocol):
    """Where updates' means, covariance and projections are taken from."""

    def spaces(self) -> "list[_Space]": ...

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


def fit_detectors(setting: Setting, start: NDArray[Any], shares: Array, number: int, *, check: bool) -> list[Detector]:
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
    shadow = ShadowModel(
        setting.model.build(), setting.auxiliary.x[0], mean_loss(given(setting.model.loss)), device=setting.device
    )
    common = to_tensor(start, dtype=torch.float32, device=setting.device)
    linear = setting.mode == "linear"
    shadows: _Shadows = (_Linear if linear else _Exact)(setting, shadow, common, number)
    checker = _Exact(setting, shadow, common, number, count=_CHECKED) if check and linear else None
    found = [
        _fit(shadows, question, space, shares, checker, setting.features)
        for question, space in enumerate(shadows.spaces())
    ]
    return found if linear or not check else [replace(item, checked=item.accuracy) for item in found]


def can_be_linear(model: ModelKnowledge, record: NDArray[np.float32]) -> bool:
    """Whether a batch's gradient is the mean of its records' gradients."""
    return ShadowModel(model.build(), record, mean_loss(given(model.loss))).separable


def _fit(
    shadows: _Shadows, question: int, space: _Space, shares: Array, checker: _Shadows | None, features: int
) -> Detector:
    fitting = [np.concatenate(side) for side in shadows.project(question, "choose", space.basis)]
    best = max(space.coefficients(), key=lambda c: _separation(fitting[0] @ c, fitting[1] @ c))
    weights = torch.as_tensor(best, dtype=torch.float32, device=space.basis.device) @ space.basis
    others = torch.nn.functional.pad(space.basis, (0, 0, 0, features))[: features - 1]
    directions = torch.cat([weights[None], others])
    plus, minus = shadows.project(question, "test", directions)
    p, m = [item[:, 0] for item in plus], [item[:, 0] for item in minus]
    spread = float(shares @ [(a.var() + b.var()) / 2 for a, b in zip(p, m, strict=True)])
    top, bottom = float(shares @ [a.mean() for a in p]), float(shares @ [b.mean() for b in m])
    # Log odds of two normal densities of one variance have means ± half the squared separation. The regressions take a
    # client's expected feature to be the same in all rounds, so that features of strong detectors are shrunk to one
    # scale.
    odds = (top - bottom) / spread if 0 < spread < np.inf else 0.0
    mean = abs(odds * (top - bottom) / 2)
    scale = odds * min(1.0, _MEAN / mean) if mean > 0 else 0.0
    if not np.isfinite(scale) or scale == 0:
        # no difference, or gradients that overflow: a detector that always says 0 does no harm
        scale, p, m = 0.0, [np.zeros(len(item)) for item in p], [np.zeros(len(item)) for item in m]
        top = bottom = 0.0
        weights, directions = torch.zeros_like(weights), torch.zeros_like(directions)
        fitting, best = [np.zeros_like(side) for side in fitting], np.zeros_like(best)
        plus, minus = [np.zeros_like(item) for item in plus], [np.zeros_like(item) for item in minus]
    offset = -scale * (top + bottom) / 2 + 0.0
    p, m = [scale * item + offset for item in p], [scale * item + offset for item in m]
    checked = None
    if checker is not None:
        checked = _checked(checker, question, scale * weights, offset, shares) if scale else 0.5
    return Detector(
        weights=(scale * weights).cpu().numpy(),
        offset=offset,
        plus_mean=np.array([item.mean() for item in p]),
        plus_sd=np.array([item.std() for item in p]),
        minus_mean=np.array([item.mean() for item in m]),
        minus_sd=np.array([item.std() for item in m]),
        accuracy=_accuracy(p, m, shares),
        checked=checked,
        plus_sample=np.concatenate(p)[:: max(1, sum(map(len, p)) // _SAMPLED)][:_SAMPLED],
        minus_sample=np.concatenate(m)[:: max(1, sum(map(len, m)) // _SAMPLED)][:_SAMPLED],
        many=None
        if features == 1
        else _many(directions, best, fitting, [np.concatenate(side) for side in (plus, minus)]),
    )


def _many(directions: Tensor, best: Array, fitting: Sequence[Array], unseen: Sequence[Array]) -> FeatureDetector:
    count = len(directions) - 1
    projected = [np.column_stack([side @ best, np.pad(side, ((0, 0), (0, count)))[:, :count]]) for side in fitting]
    return FeatureDetector.fit(directions, projected, unseen)


def _checked(checker: _Shadows, question: int, weights: Tensor, offset: float, shares: Array) -> float:
    plus, minus = checker.project(question, "test", weights[None])
    return _accuracy([item[:, 0] + offset for item in plus], [item[:, 0] + offset for item in minus], shares)


def _accuracy(plus: list[Array], minus: list[Array], shares: Array) -> float:
    return float(shares @ [((a > 0).mean() + (b <= 0).mean()) / 2 for a, b in zip(plus, minus, strict=True)])


def _separation(plus: Array, minus: Array) -> float:
    spread = np.sqrt((plus.var() + minus.var()) / 2)
    return float((plus.mean() - minus.mean()) / spread) if spread > 0 else 0.0


def divide(records: int, seed: int) -> dict[Part, NDArray[np.int64]]:
    """Divide the auxiliary records, the same for all rounds."""
    order = np.random.default_rng((seed, _DIVISION)).permutation(records)
    ends = np.cumsum([round(share * records) for share in _SHARES.values()])
    train, choose, test = np.split(order, ends[:2])
    return {"train": train, "choose": choose, "test": test}


# Streams of random numbers, apart from each other.
_DIVISION, _BATCHES, _TRAINING = 1, 2, 3


class _Base:
    """What both modes need: the divided records and the draws of one round."""

    def __init__(self, setting: Setting, shadow: ShadowModel, start: Tensor, number: int) -> None:
        self.setting, self.shadow, self.start, self.number = setting, shadow, start, number
        self.rows = divide(len(setting.auxiliary), setting.seed)
        self.x, self.y = to_tensor(setting.auxiliary.x), to_tensor(setting.auxiliary.y)

    def numbers(self, *stream: int) -> np.random.Generator:
        """Make a generator of one use's batches, the same in all rounds: clients keep their records."""
        return np.random.default_rng((self.setting.seed, _BATCHES, *stream))

    def masks(self, *stream: int) -> torch.Generator:
        """Make a generator of one use's local training, another in each round, the same if the round is done again."""
        root = np.random.SeedSequence((self.setting.seed, _TRAINING, self.number, *stream))
        return torch.Generator().manual_seed(int(root.generate_state(1)[0]))

    def counts(self, total: int) -> list[int]:
        """How many of ``total`` clients to make of each size; at least two, so that there is a variance."""
        return [max(2, total // len(self.setting.sizes))] * len(self.setting.sizes)

    def batches(
        self, question: int, has: bool, part: Part, counts: Sequence[int], generator: np.random.Generator
    ) -> Iterator[NDArray[np.int64]]:
        """Draw (clients, size) record indices for each size of client."""
        asked, rows = self.setting.questions[question], self.rows[part]
        for count, size in zip(counts, self.setting.sizes, strict=True):
            try:
                drawn = asked.draw(has, count, size, rows, generator)
                extra = len(asked.extra) if asked.extra is not None else 0
                yield _checked_batches(drawn, (count, size), rows, len(self.x), extra)
            except NeedsError as cause:
                raise NeedsError(
                    f"property {asked.name}: {cause} (of {len(self.x)} auxiliary records, {len(rows)} are kept to "
                    f"{part} with)"
                ) from None
            except Exception as cause:  # the user's code may raise anything
                raise NeedsError(f"property {asked.name}: drawing batches failed ({one_line(cause)})") from cause

    def records(self, question: int, batches: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Look the records (clients, size, *shape) and labels of ``batches`` up."""
        x, y = self.x, self.y
        extra = self.setting.questions[question].extra
        if extra is not None:
            x = torch.cat([x, to_tensor(extra.x)])
            y = torch.cat([y, to_tensor(extra.y)])
        index = torch.as_tensor(batches)
        return x[index], y[index]


def _checked_batches(
    drawn: object, shape: tuple[int, int], rows: NDArray[np.int64], auxiliary: int, extra: int
) -> NDArray[np.int64]:
    """Check what a recipe drew: records beside ``rows`` may be those that the detector is fitted on."""
    batches = np.asarray(drawn)
    if batches.shape != shape or batches.dtype.kind not in "iu":
        raise NeedsError(
            f"batches must be record indices of shape {shape}, (clients, records each); got {batches.dtype} of shape "
            f"{batches.shape}"
        )
    strange = np.setdiff1d(batches, np.concatenate([rows, auxiliary + np.arange(extra)]))
    if len(strange):
        raise NeedsError(f"batches must be drawn from the rows given and from extra; got record {strange[0]}")
    return batches.astype(np.int64)


class _Exact(_Base):
    """Shadow clients, trained."""

    def __init__(self, *args: Any, count: int | None = None) -> None:
        super().__init__(*args)
        self.count = count

    def spaces(self) -> list[_Space]:
        found = []
        for question in range(len(self.setting.questions)):
            plus, minus = (torch.cat(list(self._updates(question, "train", has))) for has in (True, False))
            difference = plus.mean(dim=0) - minus.mean(dim=0)
            for updates in (plus, minus):
                updates -= updates.mean(dim=0)
            matrix = torch.cat([plus, minus])
            del plus, minus
            weights = torch.full((len(matrix),), 1 / len(matrix), device=matrix.device)
            found += _krylov(matrix, weights, difference[None])
        return found

    def project(self, question: int, part: Part, directions: Tensor) -> Features:
        sides = []
        for has in (True, False):
            sides.append([(item @ directions.T).double().cpu().numpy() for item in self._updates(question, part, has)])
        return sides[0], sides[1]

    def _updates(self, question: int, part: Part, has: bool) -> Iterator[Tensor]:
        stream = (_PARTS.index(part), question, has)
        numbers, masks = self.numbers(*stream), self.masks(0, *stream)
        behaviour = self.setting.questions[question].behaviour if has else "descend"
        counts = self.counts(self.count or len(self.rows[part]))
        for batches in self.batches(question, has, part, counts, numbers):
            updates = self.shadow.updates(
                self.start,
                *self.records(question, batches),
                self.setting.training,
                generator=masks,
                maximise=behaviour == "ascend",
            )
            yield -updates if behaviour == "invert" else updates


class _Linear(_Base):
    """One gradient for each record, and clients put together from them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._here = {
            part: self.shadow.record_gradients(self.start, self.x[rows], self.y[rows], generator=self.masks(1, place))
            for place, (part, rows) in enumerate(self.rows.items())
        }
        self._paths: dict[bool, list[Tensor]] = {}
        self._along: dict[tuple[bool, int], Tensor] = {}

    def spaces(self) -> list[_Space]:
        rows, gradients = torch.as_tensor(self.rows["train"]), self._here["train"]
        differences, weights = [], torch.zeros(len(self.x), dtype=torch.float64)
        own_spread: list[tuple[Tensor, Tensor]] = []
        for question, asked in enumerate(self.setting.questions):
            extra = self._extras(question, "train", self.start)
            usual = self._weights(question, False)
            odd = self._weights(question, True)
            weights += usual[: len(self.x)] + odd[: len(self.x)]
            sign = 1.0 if asked.behaviour == "descend" else -1.0
            change = sign * odd - usual
            own = change[: len(self.x)][rows].float().to(gradients.device)
            difference = -(own @ gradients)
            if extra is not None:
                difference -= change[len(self.x) :].float().to(gradients.device) @ extra.mean(dim=1)
                # a record that is always there adds no spread but that of its dropout masks
                often = (usual + odd)[len(self.x) :].float().to(gradients.device) / extra.shape[1]
                varied = (extra - extra.mean(dim=1, keepdim=True)).flatten(0, 1)
                own_spread.append((varied, often.repeat_interleave(extra.shape[1])))
            else:
                own_spread.append((gradients[:0], torch.zeros(0, device=gradients.device)))
            differences.append(difference)
        use = weights[rows].float().to(gradients.device)
        for question, (gradient, often) in enumerate(own_spread):
            own_spread[question] = gradient, often / (use.sum() / len(self.setting.questions))
        return _krylov(gradients, use / use.sum(), torch.stack(differences), own_spread)

    def project(self, question: int, part: Part, directions: Tensor) -> Features:
        sides, features = [], {}
        for has in (True, False):
            behaviour = self.setting.questions[question].behaviour if has else "descend"
            # The inverted update is a faithful one until it is sent.
            ascend = behaviour == "ascend"
            if ascend not in features:
                features[ascend] = self._features(question, part, directions, ascend=ascend)
            numbers = self.numbers(_PARTS.index(part), question, has)
            found = []
            for batches in self.batches(question, has, part, self.counts(_VIRTUAL[part]), numbers):
                values = self._assemble(*features[ascend], batches, part, numbers, ascend=ascend)
                found.append(-values if behaviour == "invert" else values)
            sides.append(found)
        return sides[0], sides[1]

    def _weights(self, question: int, has: bool) -> Tensor:
        """How often each record, auxiliary and extra, is in a client's batch, on average."""
        # with and without are drawn alike, so that what they have in common cancels
        numbers = self.numbers(len(_PARTS), question)
        extra = self.setting.questions[question].extra
        length = len(self.x) + (len(extra) if extra is not None else 0)
        total = torch.zeros(length, dtype=torch.float64)
        counts = self.counts(_WEIGHING)
        for batches in self.batches(question, has, "train", counts, numbers):
            total += torch.bincount(torch.as_tensor(batches).reshape(-1), minlength=length)
        return total / sum(counts)

    def _extras(self, question: int, part: Part, at: Tensor, point: int = 0) -> Tensor | None:
        """(extra records, masks, size): gradients of the records beside the auxiliary ones, under several masks."""
        extra = self.setting.questions[question].extra
        if extra is None:
            return None
        masks = _MASKS[part] if self.shadow.random else 1
        x = to_tensor(extra.x).repeat_interleave(masks, dim=0)
        y = to_tensor(extra.y).repeat_interleave(masks, dim=0)
        generator = self.masks(2, _PARTS.index(part), question, point)
        return self.shadow.record_gradients(at, x, y, generator=generator).view(len(extra), masks, -1)

    def _path(self, ascend: bool) -> list[Tensor]:
        """Points that the mean client passes, the first of them the common model."""
        if ascend not in self._paths:
            training = self.setting.training
            steps = self._step_sizes(max(self.setting.sizes))
            rows = self.rows["train"][:_PATH_RECORDS]
            now, velocity = self.start, torch.zeros_like(self.start)
            points: list[Tensor] = []
            generator = self.masks(3, ascend)
            for step in range(len(steps)):
                if len(points) * len(steps) <= step * min(_POINTS, len(steps)):
                    points.append(now)
                if step + 1 == len(steps) or len(points) == min(_POINTS, len(steps)):
                    break
                slope = self.shadow.mean_gradient(now, self.x[rows], self.y[rows], generator=generator)
                velocity = training.momentum * velocity + (-slope if ascend else slope) + training.weight_decay * now
                now = now - training.lr * velocity
            self._paths[ascend] = points
        return self._paths[ascend]

    def _features(self, question: int, part: Part, directions: Tensor, ascend: bool) -> tuple[Array, Array, Array]:
        """Project gradients along the path.

        Returns (points, records, k) of auxiliary records, (points, extra records, masks, k), and (points, k) of the
        points themselves.
        """
        own, others, places = [], [], []
        # What only decides between spaces need not follow the path.
        points = self._path(ascend) if part == "test" else [self.start]
        for number, point in enumerate(points):
            gradients = self._gradients_along(ascend, number, point) if number else self._here[part]
            own.append((gradients @ directions.T).double().cpu().numpy())
            extra = self._extras(question, part, point, number)
            others.append((extra @ directions.T).double().cpu().numpy() if extra is not None else np.zeros((0, 1, 0)))
            places.append((directions @ point).double().cpu().numpy())
        return np.stack(own), np.stack(others), np.stack(places)

    def _gradients_along(self, ascend: bool, number: int, point: Tensor) -> Tensor:
        """Gradients of the test records at a later point of the path, once for all questions."""
        if (ascend, number) not in self._along:
            rows = torch.as_tensor(self.rows["test"])
            generator = self.masks(4, ascend, number)
            self._along[ascend, number] = self.shadow.record_gradients(
                point, self.x[rows], self.y[rows], generator=generator
            )
        return self._along[ascend, number]

    def _assemble(
        self,
        own: Array,
        others: Array,
        places: Array,
        batches: NDArray[np.int64],
        part: Part,
        generator: np.random.Generator,
        *,
        ascend: bool,
    ) -> Array:
        """Sum the projected gradients (clients, k) of clients that take their steps with these records."""
        training = self.setting.training
        count, size = batches.shape
        position = np.full(len(self.x), -1)
        position[self.rows[part]] = np.arange(len(self.rows[part]))
        total = np.zeros((count, own.shape[2]))
        lengths = self._step_sizes(size)
        reach = (
            (1 - training.momentum ** np.arange(len(lengths), 0, -1)) / (1 - training.momentum)
            if training.momentum < 1
            else np.arange(len(lengths), 0, -1)
        )
        at = 0
        order = batches
        for step, length in enumerate(lengths):
            if at % size == 0:
                order = generator.permuted(batches, axis=1)
                at = 0
            rows = order[:, at : at + length]
            at += length
            point = step * len(own) // len(lengths)
            outside = rows >= len(self.x)
            values = own[point][position[np.where(outside, self.rows[part][0], rows)]]
            if outside.any():
                mask = generator.integers(others.shape[2], size=int(outside.sum()))
                values[outside] = others[point][rows[outside] - len(self.x), mask]
            slope = (-1.0 if ascend else 1.0) * values.mean(axis=1) + training.weight_decay * places[point]
            total -= training.lr * reach[step] * slope
        return total

    def _step_sizes(self, size: int) -> list[int]:
        """How many records each local step of a client with ``size`` records takes."""
        batch = min(self.setting.training.batch_size or size, size)
        return [min(batch, size - at) for _ in range(self.setting.training.epochs) for at in range(0, size, batch)]


_PARTS: tuple[Part, ...] = ("train", "choose", "test")


def _krylov(
    matrix: Tensor, weights: Tensor, differences: Tensor, own: Sequence[tuple[Tensor, Tensor]] = ()
) -> list[_Space]:
    """Span the spaces of (Σ, d) for many d side by side (Lanczos, fully reorthogonalised).

    Parameters are first brought to about one spread, as a logistic regression would have them; half as many steps then
    go as far. Only vectors are scaled, never the matrix.

    Parameters
    ----------
    matrix, weights
        (n, size), (n,) summing to one: Σ is their weighted covariance.
    differences
        (questions, size): each question's μ⁺ − μ⁻.
    own
        For each question, centred rows (k, size) that add to its Σ, and their weights (k,).
    """
    mean = weights @ matrix
    variance = sum(part @ rows.square() for rows, part in zip(matrix.split(_ROWS), weights.split(_ROWS), strict=True))
    variance = torch.as_tensor(variance, device=matrix.device) - mean**2
    scale = (variance / variance.mean().clamp_min(_TINY) + _FLOOR).rsqrt()
    scaled = differences * scale
    lengths = scaled.norm(dim=1)
    now = scaled / lengths.clamp_min(_TINY)[:, None]
    basis: list[Tensor] = []
    diagonal, beside = [], []
    for _ in range(min(_STEPS, matrix.shape[1], len(matrix) - 1)):
        basis.append(now)
        vectors = now * scale
        centred = vectors @ matrix.T - (vectors @ mean)[:, None]
        image = (centred * weights) @ matrix - (centred @ weights)[:, None] * mean
        for question, (rows, part) in enumerate(own):
            image[question] += ((rows @ vectors[question]) * part) @ rows
        image = image * scale
        diagonal.append((image * now).sum(dim=1))
        for old in basis:
            image = image - (image * old).sum(dim=1, keepdim=True) * old
        length = image.norm(dim=1)
        beside.append(length)
        now = image / length.clamp_min(_TINY)[:, None]
    on, off = torch.stack(diagonal).double().cpu().numpy(), torch.stack(beside).double().cpu().numpy()
    spaces = []
    for question in range(len(differences)):
        # beyond an invariant subspace there is only rounding
        ended = np.flatnonzero(off[:, question] <= 1e-6 * on[0, question])
        steps = int(ended[0]) + 1 if len(ended) else len(basis)
        covariance = np.diag(on[:steps, question])
        covariance += np.diag(off[: steps - 1, question], 1) + np.diag(off[: steps - 1, question], -1)
        vectors = torch.stack([item[question] for item in basis[:steps]]) * scale
        spaces.append(_Space(vectors, covariance, float(lengths[question])))
    return spaces
