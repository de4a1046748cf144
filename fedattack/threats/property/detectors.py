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

A row of all parameters for each shadow client may be more than there is memory for. Then only products with this matrix
are computed, block by block (:mod:`fedattack.learning.rows`). This is always so for the gradients of examples, which
are kept as far as there is memory. The detector is the same but for rounding.

Each way of computing has its file: :mod:`linear <fedattack.threats.property.linear>` one,
:mod:`exact <fedattack.threats.property.exact>` three, by what of the updates fits into memory. All find a direction in
the same :mod:`krylov <fedattack.threats.property.krylov>` space.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.attacks.knowledge import ModelKnowledge
from fedattack.base.machine import give_back_large_blocks, shown_size
from fedattack.learning.importing import trust_given
from fedattack.learning.losses import mean_loss
from fedattack.learning.shadows import ShadowModel
from fedattack.learning.torch_utils import to_tensor
from fedattack.threats.property.clients import DrawnClients
from fedattack.threats.property.disaggregation import Array
from fedattack.threats.property.exact import ExactClients
from fedattack.threats.property.exact_in_parts import ExactClientsInParts
from fedattack.threats.property.exact_sketched import SketchedClients
from fedattack.threats.property.krylov import KrylovSpace
from fedattack.threats.property.linear import LinearClients
from fedattack.threats.property.memory import fits_into_memory, sketch_width
from fedattack.threats.property.setting import DetectorSetting
from fedattack.threats.property.sketch import Sketch

# Exact shadow clients of each kind on which a linear detector is checked.
_CHECKED = 200
# The mean log odds beyond which a detector's features are shrunk.
_MEAN = 2.0
_SAMPLED = 200

log = logging.getLogger("fedattack")


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
    common = to_tensor(start, dtype=torch.float32, device=setting.device)
    fits, width = fits_into_memory(setting, shadow.size, random=shadow.random), sketch_width(setting, shadow.size)
    if not fits:
        give_back_large_blocks()
        log.info("round %d: gradients do not fit into %s and are computed in parts", number, shown_size(setting.memory))
    if width:
        sketch = Sketch(shadow.sizes, width, setting.seed)
        detectors = _fit_all(SketchedClients(setting, shadow, common, number, sketch), shares)
        detectors = [replace(detector, weights=sketch.back(detector.weights)) for detector in detectors]
    elif setting.mode == "linear":
        detectors = _fit_all(LinearClients(setting, shadow, common, number), shares)
    else:
        detectors = _fit_all(_exact_clients(setting, shadow, common, number, fits=fits), shares)
    if not check:
        return detectors
    if setting.mode == "exact":
        return [replace(detector, checked=detector.accuracy) for detector in detectors]
    checker = _exact_clients(setting, shadow, common, number, fits=fits, count=_CHECKED)
    return [_check_detector(checker, question, detector, shares) for question, detector in enumerate(detectors)]


def _exact_clients(
    setting: DetectorSetting, shadow: ShadowModel, start: Tensor, number: int, *, fits: bool, count: int | None = None
) -> ExactClients:
    """Return shadow clients whose updates are kept if they fit, and else made again in each pass."""
    way = ExactClients if fits else ExactClientsInParts
    return way(setting, shadow, start, number, count=count)


def _fit_all(clients: DrawnClients, shares: Array) -> list[Detector]:
    """Fit a detector for each question; what is made for it goes with this call."""
    return [_fit(clients, question, space, shares) for question, space in enumerate(clients.spaces())]


def can_be_linear(model: ModelKnowledge, record: NDArray[Any]) -> bool:
    """Whether a batch's gradient is the mean of its examples' gradients."""
    return ShadowModel(model.build(), record, mean_loss(trust_given(model.loss))).separable


def _fit(clients: DrawnClients, question: int, space: KrylovSpace, shares: Array) -> Detector:
    """Choose a direction on the part "choose", and measure it on the part "test"."""
    # Size of the space and κ are chosen where neither the space nor the densities come from.
    chosen_on = _join_sizes(clients.project(question, "choose", space.basis))
    best = max(space.coefficients(), key=lambda c: _separation(chosen_on[0] @ c, chosen_on[1] @ c))
    weights = torch.as_tensor(best, dtype=torch.float32, device=space.basis.device) @ space.basis
    plus, minus = clients.project(question, "test", weights[None])
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


def _check_detector(checker: ExactClients, question: int, detector: Detector, shares: Array) -> Detector:
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
    # The log odds of N(±d/2, s²) are odds · x, and the means of these ± odds · d/2.
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
