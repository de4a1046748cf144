"""numpyexample: a softmax regression in NumPy alone."""

import numpy as np

FEATURES, CLASSES = 64, 10


def load_data(partition_id: int):
    """A few examples only, more at later sites."""
    draw = np.random.default_rng((11, partition_id))
    size = 20 + 8 * partition_id
    return draw.normal(size=(size, FEATURES)).astype(np.float32), draw.integers(CLASSES, size=size)


def initial_model() -> dict[str, np.ndarray]:
    """Begin with zeros, under the names of a linear layer."""
    return {
        "weight": np.zeros((CLASSES, FEATURES), dtype=np.float32),
        "bias": np.zeros(CLASSES, dtype=np.float32),
    }


def train(model: dict[str, np.ndarray], x, y, lr: float, epochs: int) -> dict[str, np.ndarray]:
    """Train by gradient descent on all examples."""
    weight, bias = model["weight"].copy(), model["bias"].copy()
    for _ in range(epochs):
        outputs = x @ weight.T + bias
        odds = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        error = odds / odds.sum(axis=1, keepdims=True)
        error[np.arange(len(y)), y] -= 1
        weight -= np.float32(lr / len(y)) * (error.T @ x)
        bias -= np.float32(lr / len(y)) * error.sum(axis=0)
    return {"weight": weight, "bias": bias}
