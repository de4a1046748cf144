"""Soteria against an oracle that takes one record and one entry at a time by finite differences."""

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.base.errors import ConfigError, DataError, ModelError
from fedattack.defences import DEFENCES, Batch
from fedattack.defences.soteria import defended_layer, representation_measure
from fedattack.learning import build_model
from tests.refusals import refused

RNG = np.random.default_rng(0)
CLASSES = 4


def small() -> nn.Module:
    """Smooth, so that finite differences are exact enough, and without entries that are dead."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 6), nn.Dropout(0.5), nn.Linear(6, 4))


def batch(model: nn.Module, shape=(1, 4, 4), records: int = 5) -> Batch:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(records, *shape)).astype(np.float32)
    return Batch(x, draw.integers(CLASSES, size=records), model)


def update_of(model: nn.Module) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(2)
    return {name: draw.normal(size=value.shape).astype(np.float32) for name, value in model.named_parameters()}


def make(share: float, layer: str = ""):
    return DEFENCES["soteria"]({"defence-strength": share, "soteria-layer": layer})


def slow_measure(model: nn.Module, before: int, x: np.ndarray) -> np.ndarray:
    """Mean of |r_i| / ‖∂r_i/∂x‖ by central differences in double precision."""
    import copy

    extractor = copy.deepcopy(model)[:before].double().eval()
    ratios = []
    for record in torch.from_numpy(x).double():
        r = extractor(record[None])[0]
        slopes = torch.zeros(len(r), record.numel(), dtype=torch.float64)
        for place in range(record.numel()):
            step = torch.zeros(record.numel(), dtype=torch.float64)
            step[place] = 1e-5
            step = step.reshape(record.shape)
            ends = extractor(torch.stack([record + step, record - step]))
            slopes[:, place] = (ends[0] - ends[1]) / 2e-5
        ratios.append([abs(value.item()) / slope.norm().item() for value, slope in zip(r, slopes, strict=True)])
    return np.mean(ratios, axis=0)


@pytest.mark.parametrize(("layer", "before"), [("3", 3), ("5", 5)])
def test_the_measure_is_that_of_a_slow_oracle(layer, before):
    model = small()
    handed = batch(model)
    got = representation_measure(model, dict(model.named_modules())[layer], handed.x)
    np.testing.assert_allclose(got, slow_measure(model, before, handed.x), rtol=1e-4)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_the_columns_of_the_largest_are_masked_and_nothing_else(share):
    model = small()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    handed, given = batch(model), update_of(model)
    before = {name: array.copy() for name, array in given.items()}
    got = make(share).apply(given, RNG, handed)
    order = np.argsort(-slow_measure(model, 3, handed.x))
    pruned = order[: round(share * 8)]
    for name, array in given.items():
        expected = array.copy()
        if name == "3.weight":
            expected[:, pruned] = 0
        np.testing.assert_array_equal(got[name], expected)
        np.testing.assert_array_equal(array, before[name])
    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_masked_gradient_is_that_of_the_pruned_representation():
    """Of the defended layer: ∂ℓ/∂W = δ rᵀ with zeros in r (Sun et al. 2021, Section 5), where δ is kept."""
    model = small().eval()
    handed = batch(model, records=1)
    logits = model(torch.from_numpy(handed.x))
    nn.functional.cross_entropy(logits, torch.from_numpy(handed.y)).backward()
    given = {name: parameter.grad.numpy().copy() for name, parameter in model.named_parameters()}
    got = make(0.5).apply(given, RNG, handed)["3.weight"]
    r = model[:3](torch.from_numpy(handed.x))[0].detach().numpy()
    pruned = np.argsort(-slow_measure(model, 3, handed.x))[:4]
    r[pruned] = 0
    np.testing.assert_allclose(got, np.outer(given["3.bias"], r), atol=1e-6)


def test_a_dead_entry_is_the_last_to_be_pruned():
    """With a rectifier it is 0 and depends on nothing: 0 / 0 says that it tells nothing."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].bias[2] = -100.0
    measure = representation_measure(model, model[3], batch(model).x)
    assert measure[2] == 0
    assert np.isfinite(measure).all()
    assert (np.delete(measure, 2) > 0).any()


@pytest.mark.parametrize(
    ("name", "shape", "layer"),
    [("lenet-mnist", (1, 28, 28), "fc1"), ("sia-cnn", (3, 16, 16), "fc1"), ("sia-mlp", (64,), "fc2")],
)
def test_the_defended_layer_is_the_first_behind_another(name, shape, layer):
    model = build_model(name, input_shape=shape, classes=CLASSES, seed=0)
    assert defended_layer(model)[0] == layer
    got = make(0.5).apply(update_of(model), RNG, batch(model, shape, 2))
    width = got[f"{layer}.weight"].shape[1]
    assert (got[f"{layer}.weight"] == 0).all(axis=0).sum() == round(width / 2)


def test_more_records_than_are_taken_at_a_time_give_the_mean_of_all():
    model = small()
    handed = batch(model, records=150)
    layer = model[3]
    whole = representation_measure(model, layer, handed.x)
    parts = [representation_measure(model, layer, handed.x[start : start + 50]) for start in (0, 50, 100)]
    np.testing.assert_allclose(whole, np.mean(parts, axis=0), rtol=1e-6)


def test_what_cannot_be_defended_is_refused_in_one_line():
    linear = build_model("linear", input_shape=(16,), classes=CLASSES)
    model = small()
    for error, message, call in (
        (ModelError, "no fully connected layer behind another", lambda: make(0.5).apply({}, RNG, batch(linear))),
        (
            ModelError,
            "soteria-layer = '0': expected a fully connected layer of the model, got a Conv2d; it has: 3, 5",
            lambda: make(0.5, "0").apply({}, RNG, batch(model)),
        ),
        (ModelError, "got none of that name", lambda: make(0.5, "fc9").apply({}, RNG, batch(model))),
        (ModelError, "the update has no array 3.weight", lambda: make(0.5).apply({}, RNG, batch(model))),
        (DataError, "needs the batch and the model", lambda: make(0.5).apply(update_of(model), RNG)),
        (ConfigError, "defence-strength = 1.1", lambda: make(1.1)),
    ):
        with refused(error, message):
            call()
