"""Canary examples of a run: noise with labels by chance, dealt to clients in turn, each by a coin."""

from __future__ import annotations

import numpy as np

from fedattack.claims.canaries import Examples
from fedattack.data import Dataset
from fedattack.errors import ConfigError
from simulations.run_settings import StudySettings
from simulations.seeds import CANARY_STREAM, derive_seed, generator


def draw_examples(data: Dataset, settings: StudySettings) -> Examples:
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
    seed = derive_seed(settings.seed, CANARY_STREAM, 1)
    return Examples.drawn(noise.astype(np.float32), labels, clients=settings.clients, seed=seed)
