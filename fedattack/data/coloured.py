"""Digits with private attributes: written in a colour, and with a thin or a thick pen.

The task stays the digit. Colour and thickness are drawn from the seed, independently of the digit and of each other, so
that nothing but the image tells them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedattack.data._pool import Pool
from fedattack.errors import DataError

COLOURS = {"red": (1.0, 0.25, 0.25), "green": (0.25, 1.0, 0.25), "blue": (0.25, 0.25, 1.0)}
"""Shares of the brightness in the red, the green and the blue channel."""

THICKNESSES = ("thin", "thick")

# The pen's streams are apart from the splits', which are drawn from the bare seed.
_STREAM = 0xC0


def doubled(pool: Pool) -> Pool:
    """Enlarge images (n, 1, h, w) to (n, 1, 2h, 2w), linearly: strokes of one pixel cannot be thinned."""
    from scipy.ndimage import zoom

    enlarged = zoom(np.asarray(pool.x, dtype=np.float32), (1, 1, 2, 2), order=1)
    return replace(pool, x=enlarged)


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
        If the records are no grey images.
    """
    from scipy.ndimage import grey_dilation, grey_erosion

    if not pool.images or pool.x.shape[1] != 1:
        raise DataError(
            f"digits in colour: expected grey images as uint8 of shape (n, H, W); got records of shape "
            f"{pool.x.shape[1:]}; give the MNIST images themselves"
        )
    rng = np.random.default_rng((seed, _STREAM))
    colour = rng.integers(len(COLOURS), size=len(pool.x))
    thick = rng.integers(len(THICKNESSES), size=len(pool.x))
    grey = np.asarray(pool.x, dtype=np.float32)
    # A square of 2 x 2 moves a stroke's edges by half a pixel each.
    pens: tuple[NDArray[np.float32], ...] = tuple(pen(grey, size=(1, 1, 2, 2)) for pen in (grey_erosion, grey_dilation))
    written = np.where(thick[:, np.newaxis, np.newaxis, np.newaxis] == 1, pens[1], pens[0])
    shares = np.array(list(COLOURS.values()), dtype=np.float32)[colour]
    return replace(
        pool,
        x=written * shares[:, :, np.newaxis, np.newaxis],
        private={"colour": (tuple(COLOURS), colour), "thickness": (THICKNESSES, thick)},
    )
