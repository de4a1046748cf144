"""Updates of a made-up model in which an attribute is planted."""

import numpy as np
from numpy.typing import NDArray

VALUES = 3


def planted_updates(
    clients: int, *, seed: int, signal: float = 3.0
) -> tuple[list[dict[str, NDArray[np.float32]]], NDArray[np.int64]]:
    """Draw updates of 65 entries around 1e-3; for each value, 12 of them are larger."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(VALUES, size=clients)
    updates = []
    for label in labels:
        weights, bias = rng.normal(size=(20, 3)), rng.normal(size=5)
        weights[4 * label : 4 * label + 4] += signal / 2
        updates.append({"w": (weights * 1e-3).astype(np.float32), "b": (bias * 1e-3).astype(np.float32)})
    return updates, labels
