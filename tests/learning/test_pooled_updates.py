from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.base.errors import ConfigError, DataError, ModelError
from fedattack.learning.pooled_updates import Fit, Network, Pooling, standardisation, train_network


def update(rng, **shapes):
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_each_windows_largest_entry_is_a_feature_and_no_window_reaches_over_two_parameters():
    values = {"w": np.array([[1, 5, 2], [-3, -4, -2]], dtype=np.float32), "b": np.array([7, -9], dtype=np.float32)}
    pooling = Pooling((("w", (2, 3)), ("b", (2,))), width=4)
    assert pooling.pool([values, values]).tolist() == [[5, -2, 7]] * 2
    assert pooling.features == 3


@pytest.mark.parametrize("features", [3, 7, 50, 1000])
def test_pooling_takes_the_least_width_that_leaves_no_more_features(features):
    values = update(np.random.default_rng(0), a=(7, 5), b=(3,), c=(11, 2, 2))
    pooling = Pooling.of(values, features=features)
    assert pooling.features <= features
    narrower = pooling.width - 1
    assert narrower == 0 or sum(-(-size // narrower) for size in (35, 3, 44)) > features
    slow = [
        max(flat[at : at + pooling.width])
        for flat in (array.ravel().tolist() for array in values.values())
        for at in range(0, len(flat), pooling.width)
    ]
    assert pooling.pool([values])[0].tolist() == slow


def test_windows_can_be_put_back():
    values = update(np.random.default_rng(0), a=(7, 5), b=(), c=(11,))
    pooling = Pooling.of(values, features=6)
    back = pooling.unlaid(pooling.windows(values))
    assert list(back) == list(values)
    for name, array in values.items():
        np.testing.assert_array_equal(back[name], array)


def test_pooling_refuses_other_parameters_and_what_is_not_finite():
    values = update(np.random.default_rng(0), a=(4, 5), b=(5,))
    pooling = Pooling.of(values, features=6)
    for other in ({"a": values["a"]}, values | {"b": np.zeros(4)}, values | {"c": np.zeros(1)}):
        with pytest.raises(ModelError, match=r"expected .*\(1 differ\)"):
            pooling.pool([other])
    with pytest.raises(DataError, match="NaN or infinity"):
        pooling.pool([values | {"b": np.full(5, np.nan, dtype=np.float32)}])
    with pytest.raises(ConfigError, match="1 to 1 parameters"):
        Pooling.of(values, features=1)


def test_ascent_points_where_the_cross_entropy_grows():
    """PyTorch's gradient, in float64, is the oracle; the direction may be longer, but only by one positive factor."""
    rng = np.random.default_rng(1)
    sizes = (9, 16, 12, 4)
    layers = tuple(
        (rng.normal(size=(after, before)).astype(np.float32), rng.normal(size=after).astype(np.float32))
        for before, after in pairwise(sizes)
    )
    network = Network(layers)
    for value in range(4):
        features = rng.normal(size=9).astype(np.float32) / 10
        x = torch.tensor(features, dtype=torch.float64, requires_grad=True)
        hidden = x
        for weights, bias in layers[:-1]:
            hidden = torch.relu(torch.tensor(weights).double() @ hidden + torch.tensor(bias).double())
        logits = torch.tensor(layers[-1][0]).double() @ hidden + torch.tensor(layers[-1][1]).double()
        nn.functional.cross_entropy(logits[None], torch.tensor([value])).backward()
        np.testing.assert_allclose(network.logits(features), logits.detach(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(network.beliefs(features), logits.detach().softmax(0), rtol=1e-3, atol=1e-6)
        ratio = network.ascent(features, value) / x.grad.numpy()
        assert ratio.min() > 0
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-3)


def test_ascent_is_not_lost_where_the_network_is_sure():
    """The gradient itself is 0 in float32 there, and RecUP-FL would then change nothing."""
    network = Network(((np.array([[300.0, -200.0], [-300.0, 100.0]], dtype=np.float32), np.zeros(2, np.float32)),))
    features = np.array([1.0, 0.0], dtype=np.float32)
    x = torch.tensor(features, requires_grad=True)
    nn.functional.cross_entropy(torch.tensor(network.layers[0][0]) @ x, torch.tensor(0)).backward()
    assert x.grad.tolist() == [0, 0]
    assert np.sign(network.ascent(features, 0)).tolist() == [-1, 1]


def test_training_finds_a_planted_signal_on_the_raw_features():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=400)
    features = rng.normal(size=(400, 12)) * 1e-4 + 0.01
    features[np.arange(400), labels] += 4e-4
    features[:, 11] = 5.0  # says nothing, and is far larger than what does
    features = features.astype(np.float32)
    how = {"values": 3, "hidden": (16, 8), "fit": Fit(epochs=20)}
    before = torch.get_rng_state()
    network = train_network(features[:300], labels[:300], seed=1, **how)
    assert torch.equal(before, torch.get_rng_state())
    assert network.hidden == (16, 8)
    assert (network.logits(features[300:]).argmax(axis=1) == labels[300:]).mean() > 0.9
    again = train_network(features[:300], labels[:300], seed=1, **how)
    np.testing.assert_array_equal(network.layers[1][0], again.layers[1][0])
    other = train_network(features[:300], labels[:300], seed=2, **how)
    assert (network.layers[1][0] != other.layers[1][0]).any()


def test_features_that_hardly_vary_are_not_blown_up():
    features = np.zeros((50, 3), dtype=np.float32)
    features[:, 0] = np.linspace(0, 1, 50)
    features[:, 1] = 1e-6 * (np.arange(50) % 2)
    deviation = standardisation(features)[1]
    assert deviation[1] == deviation[2] > 1e-3
    assert standardisation(np.ones((4, 2), dtype=np.float32))[1].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (np.zeros(9, int), "expected 10 whole numbers"),
        (np.arange(10), "expected 10 whole numbers in 0 … 1.*0 … 9"),
        (np.full(10, 0.5), "whole numbers"),
        (np.zeros(10, int), "at least two values"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, match):
    with pytest.raises(DataError, match=match):
        train_network(np.zeros((10, 3), np.float32), labels, values=2, hidden=[4], seed=0)


def test_training_that_cannot_be_is_refused():
    for wrong in ({"epochs": 0}, {"lr": 0}, {"momentum": 1}, {"batch_size": 0}):
        with pytest.raises(ConfigError, match="training on pooled updates"):
            Fit(**wrong)
    with pytest.raises(ConfigError, match="hidden widths"):
        train_network(np.zeros((4, 3), np.float32), np.arange(4) % 2, values=2, hidden=[0], seed=0)
