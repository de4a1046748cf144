"""The values that features have in the attacker's own examples: of whole numbers, codes and pixels there are few."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.knowledge import Knowledge

Floats = NDArray[np.float64]

# Different values of a feature up to which they are a scale, and how often each was seen, at least, on average.
_MOST, _SEEN = 300, 3

# Numbers of a candidate beside the commonest value of their feature, at least.
_TELLING = 5

# How near a number must be to a known value, as a part of the distance of two values. Where features have many, a
# mixture is hardly near to one in each; where they have few, one that is nearly an example is.
_NEAR, _NEAR_FEW, _FEW = 0.25, 0.02, 8


@dataclass(frozen=True)
class KnownValues:
    """What values features have."""

    spans: Floats  # (inputs,): largest less smallest value of each feature; 1 where nothing is known.
    # For each feature its values, ascending; empty where it has no scale, or one is not known.
    scales: tuple[Floats, ...]
    common: Floats  # (inputs,): the commonest value of each feature.

    @property
    def is_complete(self) -> bool:
        """Whether all features have scales."""
        return bool(self.scales) and all(len(scale) for scale in self.scales)

    @property
    def coarsest(self) -> float:
        """How far an entry may be off if known values are still to be told."""
        return max(self.near(column) for column in range(len(self.scales))) if self.is_complete else 0.0

    def near(self, column: int) -> float:
        """Return how near a number of a feature must be to a known value."""
        scale = self.scales[column]
        if len(scale) < 2:
            return float(_NEAR_FEW * self.spans.max())
        return float(np.diff(scale).min() * (_NEAR if len(scale) >= _FEW else _NEAR_FEW))

    def snap(self, candidates: Floats, errors: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the nearest known values of candidates (n, inputs), and which of them (n,) have known values alone."""
        if not self.is_complete or not len(candidates):
            return candidates, np.zeros(len(candidates), dtype=np.bool_)
        snapped = np.empty_like(candidates)
        fits = np.ones(len(candidates), dtype=np.bool_)
        for column, scale in enumerate(self.scales):
            numbers = candidates[:, column]
            places = np.clip(np.searchsorted(scale, numbers), 1, max(len(scale) - 1, 1))
            below, above = scale[places - 1], scale[np.minimum(places, len(scale) - 1)]
            nearest = np.where(numbers - below <= above - numbers, below, above)
            fits &= np.abs(numbers - nearest) <= np.minimum(3 * errors + 1e-6 * self.spans[column], self.near(column))
            snapped[:, column] = nearest
        telling = (np.abs(snapped - self.common) > 0).sum(axis=1) >= _TELLING
        return snapped, np.asarray(fits & telling)


def read_known_values(knowledge: Knowledge, inputs: int, columns: Sequence[int] = ()) -> KnownValues:
    """Read the values of features from the attacker's own examples; of images all pixels have one scale.

    ``columns`` are those of an example's numbers that are asked about; all where it is empty.
    """
    known = [each.x for each in (knowledge.auxiliary, knowledge.targets) if each is not None and len(each)]
    parts = [x.reshape(len(x), -1).astype(np.float64) for x in known]
    if columns:
        parts = [x[:, list(columns)] for x in parts]
    if not parts or parts[0].shape[1] != inputs:
        return KnownValues(np.ones(inputs), (), np.zeros(inputs))
    x = np.concatenate(parts)
    spans = np.ptp(x, axis=0)
    if known[0].ndim == 4:
        spans = np.full(inputs, np.ptp(x))
        values, counts = np.unique(x, return_counts=True)
        scales = (_scale_of(values, counts),) * inputs
        common = np.full(inputs, values[counts.argmax()])
    else:
        counted = [np.unique(column, return_counts=True) for column in x.T]
        scales = tuple(_scale_of(*of_column) for of_column in counted)
        common = np.array([values[counts.argmax()] for values, counts in counted])
    return KnownValues(np.where(spans > 0, spans, max(float(spans.max()), 1e-12)), scales, common)


def _scale_of(values: Floats, counts: NDArray[np.int64]) -> Floats:
    """Return the values of a feature, if they are few and each was seen several times."""
    is_scale = len(values) <= _MOST and counts.sum() >= _SEEN * len(values) and np.isfinite(values).all()
    return values if is_scale else np.zeros(0)
