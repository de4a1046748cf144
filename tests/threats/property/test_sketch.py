import numpy as np
import torch

from fedattack.threats.property.sketch import Sketch


def vectors(count: int, size: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(count, size)).astype(np.float32))


def test_products_of_sketches_are_those_of_the_vectors_but_for_little():
    a, b = vectors(2, 50_003)
    b = b + 0.5 * a
    exact = float(a @ b)
    found = []
    for seed in range(50):
        one, other = Sketch(50_003, 2_001, seed=seed).of(torch.stack([a, b]))
        found.append(float(one @ other))
    deviation = float(a.norm() * b.norm()) / np.sqrt(2_001)
    assert abs(np.mean(found) - exact) < 3 * deviation / np.sqrt(50)
    assert 0.5 * deviation < np.std(found) < 2 * deviation


def test_weights_of_sketches_are_weights_of_vectors():
    x, draw = vectors(3, 1_000), np.random.default_rng(1)
    sketch = Sketch(1_000, 301, seed=5)
    weights = draw.normal(size=(2, 301)).astype(np.float32)
    expected = sketch.of(x).numpy() @ weights.T
    np.testing.assert_allclose(x.numpy() @ sketch.back(weights).T, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(x.numpy() @ sketch.back(weights[0]), expected[:, 0], rtol=1e-4, atol=1e-4)


def test_a_sketch_as_wide_as_the_vectors_loses_nothing():
    x = vectors(2, 100)
    sketch = Sketch(100, 500, seed=0)
    assert sketch.width == 100
    np.testing.assert_allclose(sketch.of(x) @ sketch.of(x).T, x @ x.T, rtol=1e-5)
