import numpy as np
import pytest
import torch

from fedattack.attacks import ModelKnowledge
from fedattack.attacks.sketch import Sketch, SketchedRows
from fedattack.learning.losses import mean_loss
from fedattack.learning.rows import GradientRows, LayerModel
from fedattack.learning.shadows import ShadowModel
from fedattack.record.sketch import SketchPlan

SIZES = {"large": 50_003, "small": 7}


def vectors(count):
    return torch.from_numpy(np.random.default_rng(0).normal(size=(count, 50_010)).astype(np.float32))


def sketched(numbers, seed=0):
    return Sketch(SketchPlan(SIZES, numbers, seed), tuple(SIZES))


def test_sketches_are_those_that_recorders_keep():
    sketch, x = sketched(2_008), vectors(1)
    large, small = x[0].numpy()[:50_003].reshape(-1, 1), x[0].numpy()[50_003:]
    kept = sketch.plan.sketch({"large": large, "small": small}, {"large": 0 * large, "small": 0 * small})
    np.testing.assert_allclose(sketch.of(x)[0], np.concatenate([*kept.values()]), rtol=1e-4, atol=1e-5)


def test_an_update_is_sketched_by_name_as_recorders_do():
    sketch = sketched(2_008)
    update = {"one": vectors(1)[0].numpy()[:50_003].reshape(-1, 1), "other": np.arange(7, dtype=np.float32)}
    on_disk = dict(zip(SIZES, update.values(), strict=True))
    kept = sketch.plan.sketch(on_disk, {name: 0 * array for name, array in on_disk.items()})
    found = sketch.of_update(update)
    assert [*found] == ["one", "other"]
    for own, expected in zip(found.values(), kept.values(), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("room", [0, 130 * 4 * 2_000, 1e9])
def test_sketches_of_gradients_are_the_same_a_few_at_a_time(room):
    """Whether none, some or all are kept."""
    known = ModelKnowledge(spec="lenet-mnist", input_shape=(1, 28, 28), classes=10)
    draw = np.random.default_rng(2)
    x = torch.from_numpy(draw.normal(size=(140, 1, 28, 28)).astype(np.float32))
    y = torch.from_numpy(draw.integers(10, size=140))
    shadow = ShadowModel(known.build(), x[0].numpy(), mean_loss(known.loss))
    start = 0.1 * torch.from_numpy(draw.normal(size=shadow.size).astype(np.float32))
    expected = shadow.record_gradients(start, x, y, generator=torch.Generator().manual_seed(1))
    sketch = Sketch(SketchPlan(shadow.sizes, 2_000, 3), shadow.names)

    def masks():
        return torch.Generator().manual_seed(1)

    model = LayerModel(shadow, start, x[:3], y[:3])
    gradients = GradientRows(model, start, x, y, masks, room=0, scratch=1e9)
    rows = SketchedRows(gradients, sketch, room=room, scratch=2 * 50 * 4 * sketch.width)
    for _ in range(3):
        passed = list(rows.blocks())
        assert [where for where, _ in passed] == [slice(0, 50), slice(50, 100), slice(100, 128), slice(128, 140)]
        found = torch.cat([block.matrix for _, block in passed])
        np.testing.assert_allclose(found, sketch.of(expected), rtol=1e-3, atol=1e-5)
    # What is kept is one piece of memory, however many blocks it is of.
    places = {block.matrix.untyped_storage().data_ptr() for where, block in passed if 4 * 2_000 * where.stop <= room}
    assert len(places) == min(room, 1)
