"""How close examples are to others: squared error, peak signal-to-noise ratio, structural similarity, and pairing."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Images = NDArray[np.float32]

IDENTICAL = 100.0
"""Peak signal-to-noise ratio in dB at which an image counts as identical; it is infinite for equal ones."""

# Wang et al. 2004: the window's side and deviation in pixels, and what keeps quotients of dark or flat parts finite.
_SIDE, _DEVIATION = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2


def squared_error(one: Images, other: Images) -> NDArray[np.float64]:
    """Return the mean squared error (n,) of examples (n, …) in 0 … 1."""
    apart = one.astype(np.float64) - other.astype(np.float64)
    return np.asarray(np.square(apart).reshape(len(one), -1).mean(axis=1))


def peak_ratio(error: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the peak signal-to-noise ratio −10·log₁₀(MSE) in dB of errors in 0 … 1, at most :data:`IDENTICAL`."""
    return np.asarray(-10 * np.log10(np.maximum(error, 10 ** (-IDENTICAL / 10))))


def structural_similarity(one: Images, other: Images) -> NDArray[np.float64]:
    r"""Return the structural similarity (n,) of images (n, channels, height, width) in 0 … 1 (Wang et al. 2004).

    The mean over channels and positions of

    .. math:: \frac{(2 \mu_a \mu_b + C_1)(2 \sigma_{ab} + C_2)}
        {(\mu_a^2 + \mu_b^2 + C_1)(\sigma_a^2 + \sigma_b^2 + C_2)},

    with C₁ = 0.01² and C₂ = 0.03². Means, variances and the covariance are taken under a Gaussian window of 11 × 11
    pixels and a deviation of 1.5, whose weights sum to one. Every position counts at which the window lies within the
    image. Where the image is smaller than the window, its side is the largest odd one that fits.
    """
    side = min(_SIDE, *one.shape[2:])
    side -= 1 - side % 2
    away = np.arange(side) - side // 2
    line = np.exp(-(away**2) / (2 * _DEVIATION**2))
    window = np.outer(line, line) / line.sum() ** 2

    def mean(image: NDArray[np.float64]) -> NDArray[np.float64]:
        views = sliding_window_view(image, (side, side), axis=(2, 3))
        return np.asarray(np.einsum("ncijkl,kl->ncij", views, window))

    a, b = one.astype(np.float64), other.astype(np.float64)
    mean_a, mean_b = mean(a), mean(b)
    spread_a, spread_b = mean(a * a) - mean_a**2, mean(b * b) - mean_b**2
    joint = mean(a * b) - mean_a * mean_b
    above = (2 * mean_a * mean_b + _C1) * (2 * joint + _C2)
    below = (mean_a**2 + mean_b**2 + _C1) * (spread_a + spread_b + _C2)
    return np.asarray((above / below).mean(axis=(1, 2, 3)))


def paired(reconstructed: Images, truth: Images) -> NDArray[np.int64]:
    """Return for each true example (n, …) which of the reconstructed ones (m, …) stands for it.

    All pairs together have the least mean squared error. Each reconstruction is used once. −1 stands where there are
    too few.
    """
    shape = reconstructed.shape
    cost = np.stack([squared_error(reconstructed, np.broadcast_to(record, shape)) for record in truth])
    rows, columns = linear_sum_assignment(cost)
    positions = np.full(len(truth), -1, dtype=np.int64)
    positions[rows] = columns
    return positions
