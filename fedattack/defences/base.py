"""What every defence is: an update before it leaves the client → the update that leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

Update = Mapping[str, NDArray[np.floating[Any]]]
"""Δ = sent − received: floating-point parameters by name, in float32. Integer buffers never get here."""


@dataclass(frozen=True)
class Batch:
    """What a client's training code hands over to defences that need more than the update.

    Attributes
    ----------
    x : ndarray, shape (n, …)
        The records of this round's training.
    y : ndarray, shape (n,)
        Their labels.
    model : nn.Module
        The model at the received parameters.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    model: nn.Module


class Defence(Protocol):
    """A change to an update; strength 0 returns the update bit for bit.

    Attributes
    ----------
    name
        As in the registry.
    needs_batch
        Whether :meth:`apply` needs ``batch``.
    """

    name: str
    needs_batch: bool

    def apply(
        self, update: Update, rng: np.random.Generator, batch: Batch | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Return what is sent instead of ``update``, which is left alone."""
        ...
