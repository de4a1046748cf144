"""Canary examples of a run: test examples with wrong labels, dealt to clients in turn, each by a coin."""

from __future__ import annotations

import numpy as np

from fedattack.claims.canaries import Examples
from fedattack.data import Dataset
from fedattack.errors import ConfigError, DataError
from simulations.run_settings import StudySettings
from simulations.seeds import CANARY_STREAM, derive_seed, generator


def draw_examples(data: Dataset, settings: StudySettings) -> Examples:
    """Draw a run's canary examples, and throw their coins.

    Raises
    ------
    ConfigError
        If the data has no classes.
    DataError
        If there are fewer test examples.
    """
    count = settings.canary_examples
    if data.task != "classification":
        raise ConfigError(f"canary-examples = {count}: expected data with classes, of which a canary gets a wrong one")
    if count > len(data.y_test):
        raise DataError(f"canary-examples = {count}: the data has {len(data.y_test)} test examples; set fewer")
    rng = generator(settings.seed, CANARY_STREAM)
    rows = rng.permutation(len(data.y_test))[:count]
    wrong = (data.y_test[rows] + rng.integers(1, data.classes, count)) % data.classes
    seed = derive_seed(settings.seed, CANARY_STREAM, 1)
    return Examples.drawn(data.x_test[rows], wrong.astype(np.int64), clients=settings.clients, seed=seed)
