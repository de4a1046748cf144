"""What a defence is, and how its settings are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedattack.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

Update = Mapping[str, NDArray[np.floating[Any]]]
"""Δ = sent − received in float32, by parameter name, in the model's order. Integer buffers are never among it."""

Settings = Mapping[str, Any]
"""Settings of a run by key, such as Flower's run config; keys that are not a defence's are not looked at."""

SETTINGS: Mapping[str, str | float] = {
    "defence": "none",
    "defence-strength": 0.0,
    "defence-clip": 1.0,
    "dp-delta": 1e-5,
    "soteria-layer": "",
    "recup-zoo": "",
    "recup-attributes": "",
    "recup-weights": "",
    "recup-values": "",
    "recup-variant": "recup",
    "recup-iterations": 10,
    "recup-models": 5,
}
"""Keys of the settings and what they are when they are left out; ``defence`` may not be."""


@dataclass(frozen=True)
class Batch:
    """What a client's training code hands over for defences that need more than the update.

    Attributes
    ----------
    x
        (n, …): records of this round's training.
    y
        (n,): their labels.
    model
        The model at the received parameters, a copy of the client's.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    model: nn.Module


class Defence(Protocol):
    """A change to an update before it leaves the client."""

    @property
    def name(self) -> str:
        """Value of the setting ``defence``."""

    @property
    def needs_batch(self) -> bool:
        """Whether :meth:`apply` needs what a client hands over by :func:`fedattack.defences.hand_over`."""

    def apply(
        self, update: Update, rng: np.random.Generator, batch: Batch | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Return what is sent in place of ``update``, which stays as it is; all randomness comes from ``rng``."""


def number(settings: Settings, key: str, *, low: float = 0.0, high: float = math.inf, above: bool = False) -> float:
    """Read a number among the settings.

    Parameters
    ----------
    settings
        See :data:`Settings`.
    key
        One of :data:`SETTINGS`.
    low, high
        Least and largest value that it may have.
    above
        Whether it must be more than ``low``.

    Raises
    ------
    ConfigError
        If it is no finite number in the range.
    """
    value = settings.get(key, SETTINGS[key])
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not low <= value <= high
        or (above and value == low)
    ):
        least = f"above {low:g}" if above else f"of at least {low:g}"
        most = f" and at most {high:g}" if math.isfinite(high) else ""
        raise ConfigError(f"{key} = {value!r}: expected a finite number {least}{most}; change it in the run config")
    return float(value)


def text(settings: Settings, key: str) -> str:
    """Read a text among the settings."""
    return str(settings.get(key, SETTINGS[key]))


def words(settings: Settings, key: str) -> list[str]:
    """Read what a text among the settings lists, separated by commas."""
    return [word.strip() for word in text(settings, key).split(",") if word.strip()]


def as_float32(update: Update) -> dict[str, NDArray[np.float32]]:
    """Copy an update."""
    return {name: np.array(array, dtype=np.float32) for name, array in update.items()}
