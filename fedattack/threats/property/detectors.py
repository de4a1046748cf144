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
"""

from collections.abc import Callable, Iterator, Sequence
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
from fedattack.threats.property.options import Mode
from fedattack.threats.property.properties import Behaviour, Property

Part = Literal["train", "choose", "test"]

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
        The attacker's own examples.
    questions
        Properties to detect.
    mode
        ``linear`` or ``exact``.
    sizes
        (groups,): numbers of training examples that clients have.
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
        The same on exact shadow updates of unseen examples, where that was measured.
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
    loss = mean_loss(given(setting.model.loss))
    shadow = ShadowModel(setting.model.build(), setting.auxiliary.x[0], loss, device=setting.device)
    common = to_tensor(start, dtype=torch.float32, device=setting.device)
    shadows: _Shadows
    checker: _Shadows | None = None
    if setting.mode == "linear":
        shadows = _Linear(setting, shadow, common, number)
        if check:
            checker = _Exact(setting, shadow, common, number, count=_CHECKED)
    else:
        shadows = _Exact(setting, shadow, common, number)
    detectors = []
    for question, space in enumerate(shadows.spaces()):
        detector = _fit(shadows, question, space, shares, checker, setting.features)
        if check and setting.mode == "exact":
            detector = replace(detector, checked=detector.accuracy)
        detectors.append(detector)
    return detectors


def can_be_linear(model: ModelKnowledge, record: NDArray[np.float32]) -> bool:
    """Whether a batch's gradient is the mean of its examples' gradients."""
    return ShadowModel(model.build(), record, mean_loss(given(model.loss))).separable


def _fit(
    shadows: _Shadows, question: int, space: _Space, shares: Array, checker: _Shadows | None, features: int
) -> Detector:
    """Choose a direction on the part "choose", and measure it on the part "test"."""
    chosen_on: Sequence[Array] = _joined(shadows.project(question, "choose", space.basis))
    best = max(space.coefficients(), key=lambda c: _separation(chosen_on[0] @ c, chosen_on[1] @ c))
    weights = torch.as_tensor(best, dtype=torch.float32, device=space.basis.device) @ space.basis
    others = torch.nn.functional.pad(space.basis, (0, 0, 0, features))[: features - 1]
    directions = torch.cat([weights[None], others])
    plus, minus = shadows.project(question, "test", directions)
    scale, offset = _log_odds(plus, minus, shares)
    if scale == 0:
        # no difference, or gradients that overflow: a detector that always says 0 does no harm
        directions, best = torch.zeros_like(directions), np.zeros_like(best)
        chosen_on, plus, minus = _zeros(chosen_on), _zeros(plus), _zeros(minus)
    weights = scale * directions[0]
    with_it, without = _affine(plus, scale, offset), _affine(minus, scale, offset)
    checked = None
    if checker is not None and scale == 0:
        checked = 0.5
    elif checker is not None:
        fresh = checker.project(question, "test", weights[None])
        checked = _accuracy(_affine(fresh[0], 1.0, offset), _affine(fresh[1], 1.0, offset), shares)
    many = None
    if features > 1:
        combined = [_with_first(side, best, features) for side in chosen_on]
        many = FeatureDetector.fit(directions, combined, _joined((plus, minus)))
    return Detector(
        weights=weights.cpu().numpy(),
        offset=offset,
        plus_mean=_each(np.mean, with_it),
        plus_sd=_each(np.std, with_it),
        minus_mean=_each(np.mean, without),
        minus_sd=_each(np.std, without),
        accuracy=_accuracy(with_it, without, shares),
        checked=checked,
        plus_sample=_sample(with_it),
        minus_sample=_sample(without),
        many=many,
    )


def _joined(sides: Sequence[Sequence[Array]]) -> tuple[Array, Array]:
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


def _with_first(values: Array, coefficients: Array, count: int) -> Array:
    """Put the chosen direction before the basis; returns (clients, count)."""
    first = values @ coefficients
    padded = np.pad(values, ((0, 0), (0, count)))
    return np.column_stack([first, padded[:, : count - 1]])


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


class _Base:
    """What both modes need: the divided examples and the draws of one round."""

    def __init__(self, setting: Setting, shadow: ShadowModel, start: Tensor, number: int) -> None:
        self.setting = setting
        self.shadow = shadow
        self.start = start
        self.number = number
        self.rows = divide(len(setting.auxiliary), setting.seed)
        self.x = to_tensor(setting.auxiliary.x)
        self.y = to_tensor(setting.auxiliary.y)

    def numbers(self, *stream: int) -> np.random.Generator:
        """Make a generator of one use's batches, the same in all rounds: clients keep their examples."""
        return np.random.default_rng((self.setting.seed, _BATCHES, *stream))

    def masks(self, *stream: int) -> torch.Generator:
        """Make a generator of one use's local training, another in each round, the same if the round is done again."""
        root = np.random.SeedSequence((self.setting.seed, _TRAINING, self.number, *stream))
        return torch.Generator().manual_seed(int(root.generate_state(1)[0]))

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

    def records(self, question: int, batches: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Look the examples (clients, size, *shape) and labels of ``batches`` up."""
        x, y = self.x, self.y
        extra = self.setting.questions[question].extra
        if extra is not None:
            x = torch.cat([x, to_tensor(extra.x)])
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
    strange = np.setdiff1d(batches, allowed)
    if len(strange):
        raise NeedsError(f"batches must be drawn from the rows given and from extra; got example {strange[0]}")
    return batches.astype(np.int64)


class _Exact(_Base):
    """Shadow clients, trained."""

    def __init__(self, *args: Any, count: int | None = None) -> None:
        super().__init__(*args)
        self.count = count

    def spaces(self) -> list[_Space]:
        spaces = []
        for question in range(len(self.setting.questions)):
            plus = torch.cat(list(self._updates(question, "train", True)))
            minus = torch.cat(list(self._updates(question, "train", False)))
            mean_plus, mean_minus = plus.mean(dim=0), minus.mean(dim=0)
            # in place: the updates fill much of the memory
            plus -= mean_plus
            minus -= mean_minus
            matrix = torch.cat([plus, minus])
            del plus, minus
            weights = torch.full((len(matrix),), 1 / len(matrix), device=matrix.device)
            spaces += _krylov(matrix, weights, (mean_plus - mean_minus)[None])
        return spaces

    def project(self, question: int, part: Part, directions: Tensor) -> Features:
        plus = [_host(updates @ directions.T) for updates in self._updates(question, part, True)]
        minus = [_host(updates @ directions.T) for updates in self._updates(question, part, False)]
        return plus, minus

    def _updates(self, question: int, part: Part, has: bool) -> Iterator[Tensor]:
        stream = (_PARTS.index(part), question, has)
        numbers, masks = self.numbers(*stream), self.masks(0, *stream)
        behaviour = self.behaviour(question, has)
        counts = self.counts(self.count or len(self.rows[part]))
        for batches in self.batches(question, has, part, counts, numbers):
            x, y = self.records(question, batches)
            updates = self.shadow.updates(
                self.start, x, y, self.setting.training, generator=masks, maximise=behaviour == "ascend"
            )
            yield -updates if behaviour == "invert" else updates


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
        self._at_start: dict[Part, Tensor] = {}
        for stream, (part, rows) in enumerate(self.rows.items()):
            generator = self.masks(1, stream)
            self._at_start[part] = self.shadow.record_gradients(
                self.start, self.x[rows], self.y[rows], generator=generator
            )
        self._paths: dict[bool, list[Tensor]] = {}
        self._later: dict[tuple[bool, int], Tensor] = {}

    def spaces(self) -> list[_Space]:
        rows, gradients = torch.as_tensor(self.rows["train"]), self._at_start["train"]
        count = len(self.x)
        weights = torch.zeros(count, dtype=torch.float64)
        differences, extras = [], []
        for question in range(len(self.setting.questions)):
            usual, odd = self._weights(question, False), self._weights(question, True)
            weights += usual[:count] + odd[:count]
            change = odd - usual
            if self.behaviour(question, True) != "descend":
                change = -odd - usual
            difference = -(change[:count][rows].float().to(gradients.device) @ gradients)
            extra = self._extra_gradients(question, "train", self.start)
            if extra is None:
                extras.append((gradients[:0], torch.zeros(0, device=gradients.device)))
            else:
                mean, masks = extra.mean(dim=1, keepdim=True), extra.shape[1]
                difference -= change[count:].float().to(gradients.device) @ mean[:, 0]
                # a record that is always there adds no spread but that of its dropout masks
                often = (usual + odd)[count:].float().to(gradients.device) / masks
                extras.append(((extra - mean).flatten(0, 1), often.repeat_interleave(masks)))
            differences.append(difference)
        use = weights[rows].float().to(gradients.device)
        share = use.sum() / len(self.setting.questions)
        weighted = [(varied, often / share) for varied, often in extras]
        return _krylov(gradients, use / use.sum(), torch.stack(differences), weighted)

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
            clients.append(-features if behaviour == "invert" else features)
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

    def _extra_gradients(self, question: int, part: Part, at: Tensor, point: int = 0) -> Tensor | None:
        """(extra examples, masks, size): gradients of the examples beside the auxiliary ones, under several masks."""
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
            self._paths[ascend] = self._walk(ascend)
        return self._paths[ascend]

    def _walk(self, ascend: bool) -> list[Tensor]:
        training = self.setting.training
        rows = self.rows["train"][:_PATH_RECORDS]
        generator = self.masks(3, ascend)
        steps = len(self._step_sizes(max(self.setting.sizes)))
        wanted = min(_POINTS, steps)
        parameters, velocity = self.start, torch.zeros_like(self.start)
        points: list[Tensor] = []
        for step in range(steps):
            if len(points) * steps <= step * wanted:
                points.append(parameters)
            if len(points) == wanted:
                break
            gradient = self.shadow.mean_gradient(parameters, self.x[rows], self.y[rows], generator=generator)
            if ascend:
                gradient = -gradient
            velocity = training.momentum * velocity + gradient + training.weight_decay * parameters
            parameters = parameters - training.lr * velocity
        return points

    def _along_path(self, question: int, part: Part, directions: Tensor, ascend: bool) -> _Projected:
        """Project gradients along the path."""
        auxiliary, extras, positions = [], [], []
        # What only decides between spaces need not follow the path.
        points = self._path(ascend) if part == "test" else [self.start]
        for number, point in enumerate(points):
            gradients = self._later_gradients(ascend, number, point) if number else self._at_start[part]
            auxiliary.append(_host(gradients @ directions.T))
            extra = self._extra_gradients(question, part, point, number)
            extras.append(np.zeros((0, 1, 0)) if extra is None else _host(extra @ directions.T))
            positions.append(_host(directions @ point))
        return _Projected(np.stack(auxiliary), np.stack(extras), np.stack(positions))

    def _later_gradients(self, ascend: bool, number: int, point: Tensor) -> Tensor:
        """Gradients of the test examples at a later point of the path, once for all questions."""
        if (ascend, number) not in self._later:
            x, y = self.x[self.rows["test"]], self.y[self.rows["test"]]
            generator = self.masks(4, ascend, number)
            self._later[ascend, number] = self.shadow.record_gradients(point, x, y, generator=generator)
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
        lengths = self._step_sizes(size)
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

    def _step_sizes(self, size: int) -> list[int]:
        """How many examples each local step of a client with ``size`` examples takes."""
        batch = min(self.setting.training.batch_size or size, size)
        epoch = [min(batch, size - at) for at in range(0, size, batch)]
        return epoch * self.setting.training.epochs


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
    matrix: Tensor, weights: Tensor, differences: Tensor, extra: Sequence[tuple[Tensor, Tensor]] = ()
) -> list[_Space]:
    """Span the spaces of (Σ, d) for many d side by side (Lanczos, fully reorthogonalised).

    Parameters are first brought to about one spread, as a logistic regression would have them. Half as many steps then
    go as far. Only vectors are scaled, never the matrix.

    Parameters
    ----------
    matrix, weights
        (n, size), (n,) summing to one: Σ is their weighted covariance.
    differences
        (questions, size): each question's μ⁺ − μ⁻.
    extra
        For each question, centred rows (k, size) that add to its Σ, and their weights (k,).
    """
    mean = weights @ matrix
    square = sum(part @ rows.square() for rows, part in zip(matrix.split(_ROWS), weights.split(_ROWS), strict=True))
    variance = torch.as_tensor(square, device=matrix.device) - mean**2
    scale = (variance / variance.mean().clamp_min(_TINY) + _FLOOR).rsqrt()
    scaled = differences * scale
    lengths = scaled.norm(dim=1)
    current = scaled / lengths.clamp_min(_TINY)[:, None]
    basis: list[Tensor] = []
    diagonal, beside = [], []
    for _ in range(min(_STEPS, matrix.shape[1], len(matrix) - 1)):
        basis.append(current)
        vectors = current * scale
        centred = vectors @ matrix.T - (vectors @ mean)[:, None]
        image = (centred * weights) @ matrix - (centred @ weights)[:, None] * mean
        for question, (rows, part) in enumerate(extra):
            image[question] += ((rows @ vectors[question]) * part) @ rows
        image = image * scale
        diagonal.append((image * current).sum(dim=1))
        for vector in basis:
            image = image - (image * vector).sum(dim=1, keepdim=True) * vector
        length = image.norm(dim=1)
        beside.append(length)
        current = image / length.clamp_min(_TINY)[:, None]
    on, off = _host(torch.stack(diagonal)), _host(torch.stack(beside))
    spaces = []
    for question in range(len(differences)):
        steps = len(basis)
        # beyond an invariant subspace there is only rounding
        ended = np.flatnonzero(off[:, question] <= 1e-6 * on[0, question])
        if len(ended):
            steps = int(ended[0]) + 1
        inner = off[: steps - 1, question]
        covariance = np.diag(on[:steps, question]) + np.diag(inner, 1) + np.diag(inner, -1)
        vectors = torch.stack([vector[question] for vector in basis[:steps]]) * scale
        spaces.append(_Space(vectors, covariance, float(lengths[question])))
    return spaces
