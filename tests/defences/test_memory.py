"""What defences hold: little beside the update and their result, however large it is; and the same with less."""

import sys
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.defences import Batch
from fedattack.defences import recup as recup_module
from fedattack.defences.applying import defended_arrays
from fedattack.defences.hook import Handed
from fedattack.defences.noise import Noise
from fedattack.defences.recup import VARIANTS, RecUP
from fedattack.defences.soteria import Soteria, representation_measure
from fedattack.defences.sparsify import Sparsify
from fedattack.defences.zoo import Zoo, train_zoo, train_zoo_on_records
from fedattack.grids.tradeoff.cost import measure_peak_memory
from fedattack.learning import LocalSGD
from fedattack.learning.dp_sgd import private_gradient
from fedattack.learning.pooled_updates import Fit, Network, Pooling
from tests.defences.updates import VALUES, planted_updates

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory's high-water mark is Linux's")
BESIDE = 48e6
"""Bytes that a defence may hold beside what grows with the update."""


def large(entries: int = 12_000_000) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    parts = {"w": draw.standard_normal(entries - 7, dtype=np.float32), "b": draw.standard_normal(7, dtype=np.float32)}
    return {name: part * np.float32(1e-3) for name, part in parts.items()}


def zoo_of(update, *, features: int = 64, models: int = 6) -> Zoo:
    draw = np.random.default_rng(1)
    pooling = Pooling.of(update, features=features)
    networks = []
    for _ in range(models):
        layers = []
        for inputs, outputs in ((pooling.features, 8), (8, 8), (8, VALUES)):
            weights = draw.normal(size=(outputs, inputs)).astype(np.float32)
            layers.append((weights, draw.normal(size=outputs).astype(np.float32)))
        networks.append(Network(tuple(layers)))
    return Zoo("colour", ("red", "green", "blue"), pooling, tuple(networks))


@LINUX
@pytest.mark.parametrize("name", ["dp-gaussian", "sparsify", "recup"])
def test_a_defence_holds_its_result_and_little_more(name):
    update = large()
    size = sum(array.nbytes for array in update.values())
    made = {
        "dp-gaussian": lambda: Noise("dp-gaussian", 1e-3, 1.0),
        "sparsify": lambda: Sparsify(0.9),
        "recup": lambda: RecUP([zoo_of(update)], 1e-4, iterations=4),
    }
    defence = made[name]()
    peak = measure_peak_memory(lambda: defence.apply(update, np.random.default_rng(0)))
    assert size < peak < size + BESIDE


@LINUX
def test_what_is_sent_is_made_beside_the_update_and_the_defences_result():
    sent = [*large(4_000_000).values()]
    size = sum(array.nbytes for array in sent)
    received = [np.zeros_like(array) for array in sent]

    def act():
        rng, how = np.random.default_rng(0), Sparsify(0.5)
        return defended_arrays(how, received=received, sent=sent, names=["w", "b"], handed=Handed(False), rng=rng)

    assert measure_peak_memory(act) < 3 * size + BESIDE


@pytest.mark.parametrize("variant", VARIANTS)
def test_recup_finds_in_the_largest_entries_what_it_finds_in_all(variant, monkeypatch):
    """Zeros are many, as in the update of a layer that hardly moves: among equals the first one counts."""
    draw = np.random.default_rng(2)
    update = {"w": draw.normal(size=(50, 40)).astype(np.float32) * 1e-3, "b": np.zeros(300, dtype=np.float32)}
    update["w"][draw.random(update["w"].shape) < 0.6] = 0
    defence = RecUP([zoo_of(update, features=6)], 2e-3, variant=variant, iterations=5, models=4)
    assert defence.zoos[0].pooling.width > 5 * 4
    some = defence.apply(update, np.random.default_rng(3))
    monkeypatch.setattr(recup_module, "_largest", lambda windows, _: np.indices(windows.shape)[1])
    every = defence.apply(update, np.random.default_rng(3))
    assert any((some[name] != update[name]).any() for name in update)
    for name, array in every.items():
        assert array.tobytes() == some[name].tobytes()


def test_sparsify_takes_the_same_in_parts(monkeypatch):
    update = large(3000)
    whole = Sparsify(0.7).apply(update, np.random.default_rng(0))
    monkeypatch.setattr("fedattack.defences.base.AT_ONCE", 100)
    parts = Sparsify(0.7).apply(update, np.random.default_rng(0))
    magnitudes = np.abs(np.concatenate([*update.values()]))
    least = np.sort(magnitudes)[2100]
    for name, array in update.items():
        np.testing.assert_array_equal(parts[name], whole[name])
        np.testing.assert_array_equal(parts[name], np.where(np.abs(array) >= least, array, 0))


def test_noise_is_drawn_the_same_in_parts(monkeypatch):
    update = large(3000)
    whole = Noise("dp-gaussian", 0.1, 0.02).apply(update, np.random.default_rng(0))
    monkeypatch.setattr("fedattack.defences.base.AT_ONCE", 100)
    parts = Noise("dp-gaussian", 0.1, 0.02).apply(update, np.random.default_rng(0))
    for name, array in whole.items():
        np.testing.assert_allclose(parts[name], array, rtol=1e-6)


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 20), nn.Linear(20, 4))


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(5)
    return draw.normal(size=(count, 1, 8, 8)).astype(np.float32), draw.integers(4, size=count)


@pytest.mark.slow
def test_soteria_finds_the_same_with_less():
    model, (x, y) = small(), examples(30)
    update = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    sizes = []
    model[0].register_forward_hook(lambda layer, inputs, output: sizes.append(len(inputs[0])))
    found = {}
    for memory in (2**31, 20_000):
        rng, batch = np.random.default_rng(0), Batch(x, y, model)
        found[memory] = Soteria(0.5, memory=memory).apply(update, rng, batch)
    assert max(sizes[1:2]) == 30
    assert max(sizes[2:]) < 8
    for name, array in found[2**31].items():
        np.testing.assert_array_equal(found[20_000][name], array)
    np.testing.assert_allclose(
        representation_measure(model, model[3], x), representation_measure(model, model[3], x, memory=1.0), rtol=1e-5
    )


def test_dp_sgd_computes_the_same_with_less():
    x, y = examples(40)
    asked = {"noise": 0.5, "clip": 0.1, "seed": 3}
    model, sizes = small(), []
    whole = private_gradient(model, x, y, **asked)
    model[0].register_forward_hook(lambda layer, inputs, output: sizes.append(len(inputs[0])))
    less = private_gradient(model, x, y, **asked, memory=400_000)
    assert max(sizes) < 20, "a few examples at a time"
    for name, array in whole.items():
        np.testing.assert_allclose(less[name], array, rtol=1e-4, atol=1e-6)


def test_a_zoo_is_trained_of_updates_that_are_let_go():
    updates, labels = planted_updates(40, seed=0)
    alive: set[int] = set()
    most = 0

    def one_by_one():
        nonlocal most
        for number, update in enumerate(updates):
            copied = {name: array.copy() for name, array in update.items()}
            alive.add(number)
            weakref.finalize(copied["w"], alive.discard, number)
            most = max(most, len(alive))
            yield copied

    how = {"attribute": "colour", "values": ("a", "b", "c"), "seed": 0, "models": 1, "widths": (4,), "features": 20}
    found = train_zoo(one_by_one(), labels, **how, fit=Fit(epochs=1))
    assert most <= 3
    at_once = train_zoo(updates, labels, **how, fit=Fit(epochs=1))
    np.testing.assert_array_equal(found.networks[0].layers[0][0], at_once.networks[0].layers[0][0])


def test_a_zoo_of_examples_is_the_same_with_less():
    model, (x, y) = small(), examples(80)
    start = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    zoos = []
    for memory in (2**31, 50_000):
        zoo = train_zoo_on_records(
            *(model, start, x, y, y % 2, LocalSGD(1, 4, 0.1)),
            attribute="parity",
            values=("even", "odd"),
            records=8,
            rounds=2,
            seed=4,
            clients=6,
            models=1,
            widths=(4,),
            fit=Fit(epochs=2),
            memory=memory,
        )
        zoos.append(zoo.networks[0].layers[0][0])
    np.testing.assert_allclose(zoos[1], zoos[0], rtol=1e-2, atol=1e-4)
