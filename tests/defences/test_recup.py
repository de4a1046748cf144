from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.base.errors import ConfigError, DataError, ModelError
from fedattack.defences.recup import MOMENTUM, VARIANTS, RecUP, bounds, make
from fedattack.defences.zoo import Zoo, save_zoo, train_zoo
from fedattack.learning.pooled_updates import Fit
from tests.defences.updates import VALUES, planted_updates
from tests.refusals import refused

NAMES = ("red", "green", "blue")


def made(attribute: str, seed: int, models: int = 6) -> Zoo:
    updates, labels = planted_updates(300, seed=0)
    if attribute != "colour":
        labels = np.array([int(update["b"][0] > 0) for update in updates])
    return train_zoo(
        updates,
        labels,
        attribute=attribute,
        values=NAMES if attribute == "colour" else ("thin", "thick"),
        seed=seed,
        models=models,
        widths=(8, 16),
        features=20,
        fit=Fit(epochs=10),
    )


@pytest.fixture(scope="module")
def colour():
    return made("colour", 3)


@pytest.fixture(scope="module")
def thickness():
    return made("thickness", 4)


class Slow:
    """RecUP-FL step by step, as its equations are written: whole arrays, PyTorch's gradients, float64."""

    def __init__(self, zoo: Zoo, value: int, draws: list[list[int]]) -> None:
        self.zoo, self.value, self.draws = zoo, value, draws

    def gradient(self, update: dict[str, torch.Tensor], model: int) -> dict[str, torch.Tensor]:
        leaves = {name: array.clone().requires_grad_() for name, array in update.items()}
        pooled = []
        for leaf in leaves.values():
            pooled += [part.max() for part in leaf.reshape(-1).split(self.zoo.pooling.width)]
        value = torch.stack(pooled)
        layers = self.zoo.networks[model].layers
        for index, (weights, bias) in enumerate(layers):
            value = torch.from_numpy(weights).double() @ value + torch.from_numpy(bias).double()
            value = torch.relu(value) if index < len(layers) - 1 else value
        nn.functional.cross_entropy(value[None], torch.tensor([self.value])).backward()
        return {name: leaf.grad for name, leaf in leaves.items()}

    def stepped(self, update, model, size):
        gradient = self.gradient(update, model)
        return {name: array + size * gradient[name].sign() for name, array in update.items()}

    def recup(self, g, budget):
        alpha = beta = budget / len(self.draws)
        start = g
        for chosen in self.draws:
            ahead = g
            for model in chosen[:-1]:  # eq. 5
                ahead = self.stepped(ahead, model, alpha)
            gradient = self.gradient(ahead, chosen[-1])  # eq. 6
            moved = {name: array + beta * gradient[name].sign() for name, array in g.items()}  # eqs. 7 and 8
            g = {name: start[name] + (array - start[name]).clamp(-budget, budget) for name, array in moved.items()}
        return g

    def one_step(self, g, budget):
        return self.stepped(g, self.draws[0][0], budget)

    def average(self, g, budget):
        steps = [self.stepped(g, model, budget) for model in self.draws[0]]
        return {name: torch.stack([step[name] for step in steps]).mean(dim=0) for name in g}

    def iterative(self, g, budget):
        for model in self.draws[0]:
            g = self.stepped(g, model, budget / len(self.draws[0]))
        return g

    def momentum(self, g, budget):
        gathered = {name: torch.zeros_like(array) for name, array in g.items()}
        for model in self.draws[0]:
            gradient = self.gradient(g, model)
            norm = sum(array.abs().sum() for array in gradient.values()) or 1.0  # no unit may be active
            gathered = {name: MOMENTUM * gathered[name] + gradient[name] / norm for name in g}
            g = {name: array + budget / len(self.draws[0]) * gathered[name].sign() for name, array in g.items()}
        return g


def draws(zoo: Zoo, rng: np.random.Generator, iterations: int, models: int) -> list[list[int]]:
    return [rng.choice(len(zoo.networks), size=models, replace=False).tolist() for _ in range(iterations)]


def as_double(update):
    return {name: torch.from_numpy(array).double() for name, array in update.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_perturbation_is_the_one_of_the_equations(colour, variant):
    updates, labels = planted_updates(20, seed=7)
    for index, (update, label) in enumerate(zip(updates, labels.tolist(), strict=True)):
        defence = RecUP([colour], 2e-3, values=[label], variant=variant, iterations=7, models=4)
        slow = Slow(colour, label, draws(colour, np.random.default_rng(index), 7, 4))
        expected = getattr(slow, variant.replace("-", "_"))(as_double(update), 2e-3)
        found = defence.apply(update, np.random.default_rng(index))
        assert any((found[name] != update[name]).any() for name in update)
        for name, array in found.items():
            assert array.dtype == np.float32
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-8)


def test_several_attributes_are_mixed_by_their_weights(colour, thickness):
    """Eq. 9: each attribute's perturbation is found apart, and then they are added up by λ."""
    updates, labels = planted_updates(10, seed=8)
    for index, (update, label) in enumerate(zip(updates, labels.tolist(), strict=True)):
        defence = RecUP([colour, thickness], 2e-3, weights=[0.3, 0.7], values=[label, 1])
        rng = np.random.default_rng(index)
        parts = [
            Slow(zoo, value, draws(zoo, rng, 10, 5)).recup(as_double(update), 2e-3)
            for zoo, value in ((colour, label), (thickness, 1))
        ]
        found = defence.apply(update, np.random.default_rng(index))
        for name, array in found.items():
            own = torch.from_numpy(update[name]).double()
            expected = own + 0.3 * (parts[0][name] - own) + 0.7 * (parts[1][name] - own)
            np.testing.assert_allclose(array, expected, rtol=0, atol=1e-8)


def test_an_attribute_without_weight_is_not_protected(colour, thickness):
    (update,), _ = planted_updates(1, seed=9)
    both = RecUP([colour, thickness], 1e-3, weights=[1, 0], values=[2, 0]).apply(update, np.random.default_rng(0))
    alone = RecUP([colour], 1e-3, values=[2]).apply(update, np.random.default_rng(0))
    for name in update:
        np.testing.assert_array_equal(both[name], alone[name])


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_entry_is_changed_by_more_than_the_budget(colour, thickness, variant):
    """On 1,000 updates and budgets of many sizes, in float64 and hence in float32, and reached for some."""
    rng = np.random.default_rng(5)
    reached = 0
    for _ in range(1000 // len(VARIANTS)):
        scale, budget = 10 ** rng.uniform(-6, 1), 10 ** rng.uniform(-8, 0)
        update = {
            "w": rng.normal(scale=scale, size=(20, 3)).astype(np.float32),
            "b": rng.normal(scale=scale, size=5).astype(np.float32),
        }
        defence = RecUP([colour, thickness], budget, weights=[0.6, 0.4], variant=variant)
        for name, array in defence.apply(update, rng).items():
            change = np.abs(array.astype(np.float64) - update[name].astype(np.float64))
            assert change.max() <= budget
            assert np.abs(array - update[name]).max() <= np.float32(budget)
            reached += bool(change.max() >= 0.99 * budget)
    assert reached > 10


def test_bounds_are_the_outermost_float32_within_the_budget():
    rng = np.random.default_rng(0)
    values = (rng.normal(size=2000) * 10.0 ** rng.integers(-8, 3, 2000)).astype(np.float32)
    low, high = bounds(values, 3e-4)
    wide = values.astype(np.float64)
    assert (wide - low <= 3e-4).all()
    assert (high - wide <= 3e-4).all()
    assert (wide - np.nextafter(low, np.float32(-np.inf)) > 3e-4).all()
    assert (np.nextafter(high, np.float32(np.inf)) - wide > 3e-4).all()


def test_strength_zero_returns_the_update_bit_for_bit_and_draws_nothing(colour):
    (update,), _ = planted_updates(1, seed=1)
    update["b"][:2] = -0.0, np.nan
    rng, untouched = np.random.default_rng(0), np.random.default_rng(0)
    found = RecUP([colour], 0.0).apply(update, rng)
    assert list(found) == list(update)
    for name, array in found.items():
        assert array.tobytes() == update[name].tobytes()
        assert array is not update[name]
    assert rng.bit_generator.state == untouched.bit_generator.state


def test_the_update_is_left_alone_and_the_same_generator_gives_the_same(colour):
    (update,), _ = planted_updates(1, seed=1)
    before = {name: array.copy() for name, array in update.items()}
    defence = RecUP([colour], 1e-3, models=2)
    first, again, other = (defence.apply(update, np.random.default_rng(seed)) for seed in (0, 0, 1))
    for name, array in update.items():
        np.testing.assert_array_equal(array, before[name])
        np.testing.assert_array_equal(first[name], again[name])
    assert any((first[name] != other[name]).any() for name in update)


def test_entries_that_no_model_looks_at_keep_their_bits(colour):
    """A pooled update depends on one entry of a window at a time: −0.0 far below the maximum stays −0.0."""
    (update,), _ = planted_updates(1, seed=1)
    update["w"] += np.float32(1)
    update["w"][0, 1] = -0.0
    found = RecUP([colour], 1e-3).apply(update, np.random.default_rng(0))
    assert np.signbit(found["w"][0, 1])
    assert found["w"][0, 1] == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_models_outside_of_the_zoo_are_misled_more_than_by_noise_of_the_same_size(colour, variant):
    stranger = made("colour", seed=99, models=1)
    updates, labels = planted_updates(100, seed=20)
    rng = np.random.default_rng(0)
    budget = 2e-3

    def right(sent):
        return (stranger.networks[0].logits(stranger.pooling.pool(sent)).argmax(axis=1) == labels).mean()

    defended = [
        RecUP([colour], budget, values=[label], variant=variant).apply(update, rng)
        for update, label in zip(updates, labels.tolist(), strict=True)
    ]
    noisy = [
        {name: array + np.float32(budget) * rng.choice([-1, 1], array.shape) for name, array in update.items()}
        for update in updates
    ]
    assert right(updates) > 0.85
    assert right(defended) < right(noisy) - 0.3
    assert right(defended) < 1 / VALUES


def test_a_client_that_does_not_say_its_value_gets_the_zoos_own_belief(colour):
    updates, labels = planted_updates(50, seed=21, signal=1.5)
    pooled = colour.pooling.pool(updates)
    beliefs = sum(network.beliefs(pooled) for network in colour.networks).argmax(axis=1)
    assert (beliefs == labels).mean() > 0.5
    assert (beliefs != labels).any(), "the case must tell a belief from the truth"
    for update, belief in zip(updates, beliefs.tolist(), strict=True):
        unsaid = RecUP([colour], 1e-3).apply(update, np.random.default_rng(0))
        said = RecUP([colour], 1e-3, values=[belief]).apply(update, np.random.default_rng(0))
        for name in update:
            np.testing.assert_array_equal(unsaid[name], said[name])


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"budget": -1e-3}, "budget of at least 0"),
        ({"budget": float("nan")}, "budget of at least 0"),
        ({"budget": float("inf")}, "budget of at least 0"),
        ({"weights": [0.5, 0.6]}, r"sum to one.*sum is 1\.1"),
        ({"weights": [-0.5, 1.5]}, "at least 0 that sum to one"),
        ({"weights": [1.0]}, "expected 2 weights, one for each of colour, thickness; got 1"),
        ({"values": [1]}, "expected 2 values"),
        ({"values": [1, 2]}, "value of 'thickness': expected 0 to 1, for thin, thick; got 2"),
        ({"variant": "pgd"}, "unknown variant 'pgd'; expected one of recup"),
        ({"models": 7}, "1 to 6 models"),
        ({"iterations": 0}, "at least 1 iteration"),
        ({"zoos": []}, "expected an attribute"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_line(colour, thickness, wrong, match):
    with refused(ConfigError, match):
        RecUP(**{"zoos": [colour, thickness], "budget": 1e-3} | wrong)


def test_zoos_and_updates_that_do_not_go_together_are_refused(colour, thickness):
    other = replace(thickness, pooling=replace(thickness.pooling, width=2))
    with pytest.raises(ConfigError, match="'colour' and 'thickness' were made for other updates"):
        RecUP([colour, other], 1e-3)
    (update,), _ = planted_updates(1, seed=0)
    for budget in (0.0, 1e-3):
        with pytest.raises(ModelError, match="b has shape none"):
            RecUP([colour], budget).apply({"w": update["w"]}, np.random.default_rng(0))
    update["w"][0, 0] = np.inf
    with pytest.raises(DataError, match="NaN or infinity"):
        RecUP([colour], 1e-3).apply(update, np.random.default_rng(0))


def test_a_runs_settings_make_the_same_defence(colour, thickness, tmp_path):
    for zoo in (colour, thickness):
        save_zoo(zoo, tmp_path / zoo.attribute)
    (update,), _ = planted_updates(1, seed=0)
    settings = {
        "defence-strength": 1e-3,
        "recup-zoo": str(tmp_path),
        "recup-attributes": "colour, thickness",
        "recup-weights": "0.25,0.75",
        "recup-values": "?,thick",
        "recup-variant": "iterative",
        "recup-iterations": 3,
        "recup-models": 2,
    }
    found = make(settings).apply(update, np.random.default_rng(0))
    same = RecUP(
        [colour, thickness], 1e-3, weights=[0.25, 0.75], values=[None, 1], variant="iterative", iterations=3, models=2
    ).apply(update, np.random.default_rng(0))
    for name in update:
        np.testing.assert_array_equal(found[name], same[name])
    short = make({"recup-zoo": str(tmp_path), "recup-attributes": "colour"})
    assert (short.budget, short.variant, short.iterations, short.models) == (0, "recup", 10, 5)


def test_a_zoo_is_read_again_only_when_it_has_changed(colour, tmp_path):
    settings = {"recup-zoo": str(tmp_path), "recup-attributes": "colour"}
    save_zoo(colour, tmp_path / "colour")
    first, again = (make(settings).zoos[0] for _ in range(2))
    assert first is again
    save_zoo(replace(colour, networks=colour.networks[:5]), tmp_path / "colour")
    assert len(make(settings).zoos[0].networks) == 5 < len(first.networks)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"recup-attributes": "age"}, "attribute 'age' has no model zoo in .*; there are colour;"),
        ({"recup-zoo": ""}, "expected recup-zoo"),
        ({"recup-values": "pink"}, "one of red, green, blue, or \\?; got 'pink'"),
        ({"recup-values": "red,red"}, "recup-values: expected 1"),
        ({"recup-weights": "half"}, "recup-weights: expected numbers separated by commas; got 'half'"),
        ({"recup-models": 2.5}, "recup-models = 2.5: expected a whole number"),
        ({"recup-iterations": 0}, "recup-iterations = 0: expected at least 1 "),
        ({"defence-strength": -0.1}, "defence-strength = -0.1: expected at least 0.0 "),
        ({"defence-strength": "much"}, "defence-strength = 'much': expected a number"),
    ],
)
def test_a_runs_settings_that_cannot_be_are_refused(colour, tmp_path, wrong, match):
    save_zoo(colour, tmp_path / "colour")
    with pytest.raises(ConfigError, match=match):
        make({"recup-zoo": str(tmp_path), "recup-attributes": "colour"} | wrong)
