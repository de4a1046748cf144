import numpy as np
import pytest
import torch

from fedattack.threats.property.sketch import Sketch

SIZES = {"large": 50_003, "small": 7}


def vectors(count):
    return torch.from_numpy(np.random.default_rng(0).normal(size=(count, 50_010)).astype(np.float32))


def sketched(numbers, seed=0):
    return Sketch(SIZES, numbers, seed)


@pytest.mark.parametrize("numbers", [1, 7, 100, 300])
def test_a_sketch_is_signed_sums_of_entries_that_stand_apart(numbers):
    """Entry by entry: each is added to one sum of its array, or subtracted."""
    sketch = Sketch({"a": 200, "none": 0, "b": 30}, numbers, seed=3)
    found = sketch.of(torch.eye(230)).numpy()
    for name, first, column in (("a", 0, 0), ("b", 200, sketch.widths["a"])):
        for index in range(sketch.sizes[name]):
            row = found[first + index]
            assert np.flatnonzero(row).tolist() == [column + index % sketch.widths[name]]
            assert abs(row.sum()) == 1


def test_signs_are_drawn_by_seed_and_name_and_stay_what_they_are():
    def signs(seed, name):
        return Sketch({name: 200}, 200, seed).of(torch.ones(1, 200))[0].numpy() > 0

    assert np.packbits(signs(1, "a"), bitorder="little")[:4].tobytes().hex() == "094e8db5"
    drawn = [signs(seed, name) for seed in (1, 2) for name in "ab"]
    for index, one in enumerate(drawn):
        for other in drawn[:index]:
            assert 60 < (one != other).sum() < 140


def test_small_arrays_are_kept_whole_and_large_ones_share_the_rest():
    sizes = {"large": 10_000, "bias": 10, "middle": 300, "empty": 0}
    sketch = Sketch(sizes, 1000, seed=0)
    assert sketch.widths == {"large": 689, "bias": 10, "middle": 300, "empty": 0}
    assert Sketch(sizes, 20_000, 0).widths == sizes
    assert Sketch(sizes, 1, 0).widths == {"large": 1, "bias": 1, "middle": 1, "empty": 0}


def test_products_of_sketches_are_those_of_the_vectors_but_for_little():
    a, b = vectors(2)
    b = b + 0.5 * a
    exact = float(a @ b)
    found = []
    for seed in range(50):
        one, other = sketched(2_008, seed).of(torch.stack([a, b]))
        found.append(float(one @ other))
    deviation = float(a.norm() * b.norm()) / np.sqrt(2_001)
    assert abs(np.mean(found) - exact) < 3 * deviation / np.sqrt(50)
    assert 0.5 * deviation < np.std(found) < 2 * deviation


def test_weights_of_sketches_are_weights_of_vectors():
    x, draw = vectors(3), np.random.default_rng(1)
    sketch = sketched(308)
    weights = draw.normal(size=(2, sketch.width)).astype(np.float32)
    expected = sketch.of(x).numpy() @ weights.T
    np.testing.assert_allclose(x.numpy() @ sketch.back(weights).T, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(x.numpy() @ sketch.back(weights[0]), expected[:, 0], rtol=1e-3, atol=1e-3)


def test_a_sketch_as_wide_as_the_vectors_loses_nothing():
    x = vectors(2)
    sketch = sketched(60_000)
    assert sketch.width == sketch.size
    np.testing.assert_allclose(sketch.of(x) @ sketch.of(x).T, x @ x.T, rtol=1e-5, atol=1e-2)
