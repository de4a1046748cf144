"""What a defence is, and how its settings are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError
from fedattack.base.settings import SettingField, SettingsModel, Value, setting

if TYPE_CHECKING:
    from torch import nn

Update = Mapping[str, NDArray[np.floating[Any]]]
"""Δ = sent − received in float32, by parameter name, in the model's order. Integer buffers are never among it."""

Settings = Mapping[str, Any]
"""Settings of a run by key, such as Flower's run config; keys that are not a defence's are not looked at."""

SETTINGS: dict[str, Value] = {}
"""Keys of the settings and their defaults; ``defence`` has to be stated.

:mod:`fedattack.defences.kinds` makes it of those that all defences share and those that each declares.
"""

FIELDS: dict[str, SettingField] = {}
"""What each may be."""


class PrivacySettings(SettingsModel):
    """Settings of every defence that promises (ε, δ)."""

    dp_delta: float = setting(
        1e-5,
        "differential privacy: δ of the guarantee, which should be far below 1 over a client's number of examples",
        gt=0,
        lt=1,
    )


@dataclass(frozen=True)
class Batch:
    """What a client's training code hands over to defences that need more than the update.

    Attributes
    ----------
    x
        (n, …): examples of this round's training.
    y
        (n,): their labels.
    model
        A copy of the client's model, at the received parameters.
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
        """Return what the client sends instead of ``update``, which stays unchanged; ``rng`` makes all random draws."""


@dataclass(frozen=True)
class DefenceKind:
    """What a defence declares about itself in its own file.

    Attributes
    ----------
    name
        Value of the setting ``defence``.
    make
        Makes the defence from the settings of a run; ``None`` if the defence changes the training, not the update.
    settings
        The defence's own settings.
    guarantee
        Texts about its (ε, δ), by key; empty if it guarantees nothing.
    artefacts
        Names of the ``settings`` that are paths to files which the defence needs.
    strength
        What ``defence-strength`` means, for the help of that setting.
    """

    name: str
    make: Callable[[Settings], Defence] | None
    settings: type[SettingsModel] = SettingsModel
    guarantee: Mapping[str, str] = field(default_factory=dict)
    artefacts: tuple[str, ...] = ()
    strength: str = ""


def number(settings: Settings, key: str, *, high: float = math.inf, above: bool = False) -> float:
    """Read a number from the settings, within the bounds of its declaration.

    Parameters
    ----------
    settings
        See :data:`Settings`.
    key
        One of :data:`SETTINGS`.
    high
        Largest value that this defence accepts.
    above
        Whether this defence refuses 0.

    Raises
    ------
    ConfigError
        If it is not a finite number in the range.
    """
    value = float(FIELDS[key].check(settings.get(key, SETTINGS[key])))
    # Zero is allowed in general; a clip or a noise may have to be above it.
    if value > high or (above and not value):
        expected = f"at most {high:g}" if value > high else "more than 0"
        raise ConfigError(f"{key} = {value}: expected {expected} ({FIELDS[key].help})")
    return value


def text(settings: Settings, key: str) -> str:
    """Read a text from the settings."""
    return str(settings.get(key, SETTINGS[key]))


def words(settings: Settings, key: str) -> list[str]:
    """Read a list from the settings: a text with commas between the entries. Empty entries are left out."""
    entries = map(str.strip, text(settings, key).split(","))
    return list(filter(None, entries))


def as_float32(update: Update) -> dict[str, NDArray[np.float32]]:
    """Copy an update, each array in C order."""
    return {name: np.array(array, dtype=np.float32, order="C") for name, array in update.items()}


AT_ONCE = 2**20
"""Entries of an update that a defence computes on at a time: beside its result, it then holds some 30 MB at most."""


def in_parts(array: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield an array's entries in C order, :data:`AT_ONCE` at a time, and where they stand.

    Where the array is in C order itself, they share its memory.
    """
    flat = array.reshape(-1)
    for first in range(0, flat.size, AT_ONCE):
        # A view: what is written to it changes the array.
        part = slice(first, first + AT_ONCE)
        yield part, flat[part]
