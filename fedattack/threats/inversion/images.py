"""How close examples are to others: squared error, peak signal-to-noise ratio, structural similarity, and pairing."""

import numpy as np
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
    a, b = one.astype(np.float64), other.astype(np.float64)
    return _similarity(a, b, _moments(a), _moments(b))


def similarities(one: Images, other: Images) -> NDArray[np.float64]:
    """Return the structural similarity (n, m) of each of n images with each of m others."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    of_b = _moments(b)
    return np.stack([_similarity(image, b, _moments(image), of_b) for image in a[:, np.newaxis]])


_Moments = tuple[NDArray[np.float64], NDArray[np.float64]]


def _similarity(a: NDArray[np.float64], b: NDArray[np.float64], of_a: _Moments, of_b: _Moments) -> NDArray[np.float64]:
    mean_a, spread_a = of_a
    mean_b, spread_b = of_b
    joint = _under_window(a * b) - mean_a * mean_b
    above = (2 * mean_a * mean_b + _C1) * (2 * joint + _C2)
    below = (mean_a**2 + mean_b**2 + _C1) * (spread_a + spread_b + _C2)
    return np.asarray((above / below).mean(axis=(1, 2, 3)))


def _moments(images: NDArray[np.float64]) -> _Moments:
    """Return mean and variance under the window at each of its positions."""
    mean = _under_window(images)
    return mean, _under_window(images * images) - mean**2


def _under_window(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted mean (n, channels, …, …) under the window at each of its positions."""
    height, width = images.shape[2:]
    side = min(_SIDE, height, width)
    side -= 1 - side % 2
    # The window is a product of one line down and the same line across.
    down = np.tensordot(images, _positions(height, side), axes=(2, 1))
    return np.tensordot(down, _positions(width, side), axes=(2, 1))


def _positions(length: int, side: int) -> NDArray[np.float64]:
    """Return the window's weights (positions, length) at each position along an axis."""
    away = np.arange(side) - side // 2
    line = np.exp(-(away**2) / (2 * _DEVIATION**2))
    weights = np.zeros((length - side + 1, length))
    for position, row in enumerate(weights):
        row[position : position + side] = line / line.sum()
    return weights


def pair_images(reconstructed: Images, truth: Images) -> NDArray[np.int64]:
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
