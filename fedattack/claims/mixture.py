"""How far apart a Gaussian and a mixture are: N(m, s²) beside (1 − q)·N(m, s²) + q·N(m + μs, s²), with q known."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]

# Where the expectation of a smooth function of a Gaussian is taken; the sum is exact for polynomials of degree 79.
_NODES = 40
# The search for μ: steps to the end, and how often the step that is found is halved.
_STEPS = 48
_HALVED = 16


def mixture_shift(left: Scores, right: Scores, rate: float, quantile: float, distance: float) -> float | None:
    """Return a lower bound on μ, or None if the left draws are no such mixture.

    It inverts a test of each μ: the mean over the left draws of the derivative of their log-density by μ is as far from
    its expectation as ``quantile`` standard errors allow. Mean and deviation of the right draws, which are estimated,
    are part of the error (as by the delta method). For thousands of draws it holds at the level of ``quantile``.

    Parameters
    ----------
    left, right
        Draws with the unit, and without it.
    rate
        q.
    quantile
        Of the standard normal distribution.
    distance
        How far the left draws may be from the mixture, √n times the largest distance of the distribution functions.
    """
    scale = float(right.std(ddof=1))
    # Standardised by the draws without the unit: N(0, 1) against the mixture.
    z = (left - right.mean()) / scale
    # What the mean alone says is the end of the search.
    most = max(0.0, (float(z.mean()) + 6 * math.sqrt(2 / len(z))) / rate) + 1.0
    best = _find_shift(z, len(right), rate, 0.0, most)
    bound = _find_shift(z, len(right), rate, quantile, most)
    if best is None or bound is None or _compute_distance(z, best, rate) >= distance:
        return None
    return bound


def _find_shift(z: Scores, others: int, rate: float, quantile: float, most: float) -> float | None:
    """Return the smallest μ whose excess is no more than so many standard errors; None if there is none."""
    low = 0.0
    for shift in np.linspace(0, most, _STEPS):
        if _compute_excess(z, others, float(shift), rate) <= quantile:
            break
        low = float(shift)
    else:
        return None
    high = float(shift)
    for _ in range(_HALVED):
        # Bisection between the last step that was too small and the first that was not.
        middle = (low + high) / 2
        if _compute_excess(z, others, middle, rate) > quantile:
            low = middle
        else:
            high = middle
    return low


def _compute_slope(z: Scores, shift: float, rate: float) -> tuple[Scores, Scores]:
    """Return the derivative of the log-density by μ, and the derivative of that by z."""
    # The probability that the unit took part, given z.
    odds = rate / (1 - rate) * np.exp(np.minimum(shift * z - shift**2 / 2, 700))
    part = odds / (1 + odds)
    return part * (z - shift), part * (1 + (1 - part) * shift * (z - shift))


def _compute_excess(z: Scores, others: int, shift: float, rate: float) -> float:
    """Return by how many standard errors the mean slope is above what it is for this μ."""
    # Gauss-Hermite: the expectation of a smooth function under N(0, 1).
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    expected = turned = stretched = 0.0
    for mean, share in ((0.0, 1 - rate), (shift, rate)):
        slope, turn = _compute_slope(nodes + mean, shift, rate)
        expected += share * float(weights @ slope)
        turned += share * float(weights @ turn)
        stretched += share * float(weights @ (turn * (nodes + mean)))
    slope, _ = _compute_slope(z, shift, rate)
    # The variance of the slope, and what the estimated mean and deviation of the other side add (delta method).
    variance = float(slope.var()) / len(z) + turned**2 / others + stretched**2 / (2 * others)
    return (float(slope.mean()) - expected) / math.sqrt(variance)


def _compute_distance(z: Scores, shift: float, rate: float) -> float:
    from scipy import special

    ordered = np.sort(z)
    law = (1 - rate) * special.ndtr(ordered) + rate * special.ndtr(ordered - shift)
    steps = np.arange(len(z) + 1) / len(z)
    # Kolmogorov's distance between the empirical distribution and the mixture.
    return max(float((steps[1:] - law).max()), float((law - steps[:-1]).max())) * math.sqrt(len(z))
