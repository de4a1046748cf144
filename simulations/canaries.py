"""The canaries of a run: clients that send directions, or examples of noise, each put among a client's by a coin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError
from fedattack.claims.canaries import Canaries, CanaryExamples
from fedattack.claims.canaries.directions import move_arrays
from fedattack.data import Dataset
from fedattack.defences.guarantee import NOISY
from fedattack.runs.settings import RunSettings, StudySettings
from simulations.seeds import CANARY_STREAM, derive_secret, generator


def draw_examples(data: Dataset, settings: StudySettings) -> CanaryExamples:
    """Draw a run's canary examples, and throw their coins.

    They are noise of the data's mean and deviation: gradients of real examples point where those of others do, which
    hides one of them.

    Raises
    ------
    ConfigError
        If the data has no classes.
    """
    count = settings.canary_examples
    if data.task != "classification":
        raise ConfigError(f"canary-examples = {count}: expected data with classes, of which a canary gets any")
    rng = generator(settings.seed, CANARY_STREAM)
    noise = rng.standard_normal((count, *data.input_shape)) * float(data.x_test.std()) + float(data.x_test.mean())
    labels = rng.integers(0, data.classes, count)
    seed = derive_secret(settings.seed, CANARY_STREAM, 1)
    return CanaryExamples.drawn(noise.astype(np.float32), labels, clients=settings.clients, seed=seed)


def canaries_of(settings: RunSettings) -> Canaries:
    """Return a run's canary clients. What they send is as long as updates may be."""
    noisy = settings.defence in NOISY and settings.defence_strength and settings.defence_clip
    clip = settings.defence_clip if noisy else settings.central_clip
    return Canaries(count=settings.canaries, seed=derive_secret(settings.seed, CANARY_STREAM), clip=clip)


def move_by_canary(settings: RunSettings, number: int, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return what the canary of a number sends in place of what it received."""
    canaries = canaries_of(settings)
    return move_arrays(arrays, canaries.seed, number, canaries.clip or 0.0)
