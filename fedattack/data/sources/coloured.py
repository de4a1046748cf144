"""Digits with private attributes: written in a colour, and with a thin or a thick pen.

The task stays the digit. Colour and thickness are drawn from the seed, independently of the digit and of each other, so
that nothing but the image tells them.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedattack.base.errors import DataError
from fedattack.data.arrays import read_arrays
from fedattack.data.source import Pool, Source
from fedattack.data.sources.bundled import digits
from fedattack.data.sources.mnist import MNIST

COLOURS = {"red": (1.0, 0.25, 0.25), "green": (0.25, 1.0, 0.25), "blue": (0.25, 0.25, 1.0)}
"""Shares of the brightness in the red, the green and the blue channel."""

THICKNESSES = ("thin", "thick")

# The pen's streams are apart from the splits', which are drawn from the bare seed.
_STREAM = 0xC0


def colour_digits(seed: int, root: Path) -> Pool:
    """Read scikit-learn's digits, enlarged and in colour: 1,797 images (3, 16, 16)."""
    from scipy.ndimage import zoom

    pool = digits(seed, root)
    # Strokes of one pixel cannot be thinned.
    enlarged = zoom(np.asarray(pool.x, dtype=np.float32), (1, 1, 2, 2), order=1)
    return colour_images(replace(pool, x=enlarged), seed)


def colour_mnist(seed: int, root: Path) -> Pool:
    """Read MNIST in colour (3, 28, 28), from ``mnist.npz`` in the data folder or, failing that, MNIST's own files."""
    file = root / "mnist.npz"
    pool = read_arrays(file) if file.is_file() else MNIST.read(seed, root)
    return colour_images(pool, seed)


def colour_images(pool: Pool, seed: int) -> Pool:
    """Write grey images anew, each with a drawn colour and thickness.

    Parameters
    ----------
    pool : Pool
        Images (n, 1, h, w), bright on dark.
    seed : int
        Of both attributes.

    Returns
    -------
    Pool
        Images (n, 3, h, w), with the private attributes ``colour`` and ``thickness``.

    Raises
    ------
    DataError
        If the examples are no grey images.
    """
    from scipy.ndimage import grey_dilation, grey_erosion

    if not pool.images or pool.x.shape[1] != 1:
        raise DataError(
            f"digits in colour: expected grey images as uint8 of shape (n, H, W); got examples of shape "
            f"{pool.x.shape[1:]}; give the MNIST images themselves"
        )
    # A pair as a seed: independent of the splits, which are drawn from the seed alone.
    rng = np.random.default_rng((seed, _STREAM))
    colour = rng.integers(len(COLOURS), size=len(pool.x))
    thick = rng.integers(len(THICKNESSES), size=len(pool.x))
    grey = np.asarray(pool.x, dtype=np.float32)
    # A square of 2 x 2 moves a stroke's edges by half a pixel each.
    pen = (1, 1, 2, 2)
    # Brightness is the ink: dilation, a maximum, thickens strokes, and erosion, a minimum, thins them.
    written = np.where(
        thick[:, np.newaxis, np.newaxis, np.newaxis] == 1, grey_dilation(grey, size=pen), grey_erosion(grey, size=pen)
    )
    shares = np.array(list(COLOURS.values()), dtype=np.float32)[colour]
    return replace(
        pool,
        x=written * shares[:, :, np.newaxis, np.newaxis],
        private={"colour": (tuple(COLOURS), colour), "thickness": (THICKNESSES, thick)},
    )


SOURCES = (
    Source(
        "colour-digits",
        "digits in colour, 1,797 images of 3 x 16 x 16; private attributes colour and thickness, drawn from the seed",
        colour_digits,
        position=40,
    ),
    Source(
        "colour-mnist",
        "MNIST in colour (or mnist.npz in the data folder); private attributes colour and thickness, drawn from the "
        "seed",
        colour_mnist,
        MNIST.download,
        position=41,
    ),
)
