"""Noise on the clipped update: DP-Gaussian (Wei et al. 2021) and DP-Laplace (Liu et al. 2020).

As in RecUP-FL's paper (Cui et al. 2023, Section 3.1): g ← g / max(1, ‖g‖₂ / C), then noise in every entry.
:mod:`fedattack.defences.guarantee` says what they guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedattack.base.settings import setting
from fedattack.defences.base import Batch, DefenceKind, PrivacySettings, Settings, Update, as_float32, in_parts, number


class _Draw(Protocol):
    def __call__(self, rng: np.random.Generator, scale: float, size: tuple[int, ...]) -> NDArray[Any]: ...


def _normal(rng: np.random.Generator, scale: float, size: tuple[int, ...]) -> NDArray[Any]:
    return rng.normal(0.0, scale, size)


def _laplace(rng: np.random.Generator, scale: float, size: tuple[int, ...]) -> NDArray[Any]:
    return rng.laplace(0.0, scale, size)


@dataclass(frozen=True)
class Noise:
    """Clips an update and adds noise with mean 0.

    Parameters
    ----------
    name
        ``dp-gaussian`` or ``dp-laplace``.
    scale
        The Gaussian's standard deviation σ, or the Laplace's scale b (its standard deviation is √2·b), in units of the
        update. 0 leaves the update as it is, not even clipped.
    clip
        C, the largest norm of the whole update; 0 for no clipping, and then there is no guarantee.
    """

    name: str
    scale: float
    clip: float
    needs_batch = False

    DRAWS: ClassVar[dict[str, _Draw]] = {"dp-gaussian": _normal, "dp-laplace": _laplace}

    def apply(
        self, update: Update, rng: np.random.Generator, batch: Batch | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Return the clipped and noisy update. The noise is drawn for one array after another."""
        if not self.scale:
            return as_float32(update)
        draw = self.DRAWS[self.name]
        # One factor for the whole update, as the norm is of all entries.
        factor = clip_factor(update, self.clip) if self.clip else 1.0
        noisy = {}
        for name, array in update.items():
            noisy[name] = np.empty(array.shape, dtype=np.float32)
            # A view on the same memory.
            into = noisy[name].reshape(-1)
            for part, values in in_parts(array):
                into[part] = values.astype(np.float64) * factor + draw(rng, self.scale, values.shape)
        return noisy


@contextmanager
def global_draws(entropy: Sequence[int]) -> Iterator[None]:
    """Give NumPy's global generator, from which Flower draws its noise, its own state for a while.

    ``numpy.random.seed`` keeps 32 bits of a number. Whoever tries them all finds the noise.

    Parameters
    ----------
    entropy
        Entropy of the state, as for :class:`numpy.random.SeedSequence`; 128 bits of it count.
    """
    before = np.random.get_state()  # noqa: NPY002
    try:
        np.random.set_state(dict(np.random.MT19937(np.random.SeedSequence(entropy)).state))  # noqa: NPY002
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def clip_factor(update: Update, clip: float) -> float:
    """Return the factor that scales an update down to the norm ``clip`` if it is longer: 1 / max(1, ‖g‖₂ / C).

    Parameters
    ----------
    update
        Arrays by name; the norm is that of all arrays together.
    clip
        C, above 0.

    Returns
    -------
    float
        1 for an update that is short enough. In float64 the norm of the scaled update is at most C.
    """
    factor, norm = 1.0, _norm(update, 1.0)
    while norm > clip:
        # A second pass takes away what rounding may have left above the norm.
        factor = math.nextafter(factor * (clip / norm), 0.0)
        norm = _norm(update, factor)
    return factor


def _norm(update: Update, factor: float) -> float:
    """Return the norm of an update times a factor, in float64."""
    squares = []
    for array in update.values():
        for _, values in in_parts(array):
            scaled = values.astype(np.float64) * factor
            squares.append(float(np.vdot(scaled, scaled)))
    # fsum adds the parts exactly, in whatever order they come.
    return math.sqrt(math.fsum(squares))


def maker(name: str) -> Callable[[Settings], Noise]:
    """Return what reads ``defence-strength`` (σ or b) and ``defence-clip`` of a run's settings."""

    def make(settings: Settings) -> Noise:
        return Noise(name, number(settings, "defence-strength"), number(settings, "defence-clip"))

    return make


class NoiseSettings(PrivacySettings):
    """Settings of every defence that adds noise to the update."""

    defence_clip: float = setting(
        1.0,
        "dp-gaussian, dp-laplace, flower-localdp: norm C to which the whole update is clipped; 0 for no clipping, "
        "and no guarantee",
        ge=0,
    )


_LOCAL = {
    "unit": "all examples of one client, whatever they are, towards a server that sees all that the client sends; how "
    "many examples a client has counts as known",
    "not_protected": "how many examples a client has, and in which rounds it takes part",
    "accountant": "exact, for a sensitivity of 2C, composed over the rounds (dp-accounting)",
    "assumes": "that the server does not learn the seed of the noise, which in a simulation follows from the run's own",
}
GAUSSIAN_GUARANTEE = _LOCAL | {
    "noise_is": "standard deviation σ of the noise",
    "mechanism": "DP-Gaussian: the update is clipped to norm C, and Gaussian noise of standard deviation σ is added to "
    "every entry",
    "name": "DP-Gaussian",
}
_LAPLACE_GUARANTEE = _LOCAL | {
    "accountant": "Rényi orders (dp-accounting) for a sensitivity of 2C, composed over the rounds: an upper bound",
    "name": "DP-Laplace",
    "noise_is": "scale b of the noise",
    "mechanism": "DP-Laplace: the update is clipped to norm C, and Laplace noise of scale b is added to every entry",
}
DEVIATION = "standard deviation σ of the noise in every entry"
"""What the strength of Gaussian noise is."""

GAUSSIAN = DefenceKind("dp-gaussian", maker("dp-gaussian"), NoiseSettings, GAUSSIAN_GUARANTEE, strength=DEVIATION)
LAPLACE = DefenceKind(
    "dp-laplace", maker("dp-laplace"), NoiseSettings, _LAPLACE_GUARANTEE, strength="scale b of the noise in every entry"
)
