"""Batches taken apart: exactly where the neurons tell the examples, and a reason where not."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.learning.departures import Fishing
from fedattack.threats.exact.low_rank import take_apart
from tests.threats.exact.world import digits


def gradient_of(x, y, hidden=200, seed=0, deep=1):
    """Return gradient and weights of the first layer of a new network, (hidden, inputs + 1) each."""
    torch.manual_seed(seed)
    layers = [nn.Flatten(), nn.Linear(x[0].size, hidden), nn.ReLU()]
    for _ in range(deep - 1):
        layers += [nn.Linear(hidden, hidden), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(hidden, 10))
    nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    first = model[1]
    moved = np.column_stack([first.weight.grad.numpy(), first.bias.grad.numpy()]).astype(np.float64)
    start = np.column_stack([first.weight.detach().numpy(), first.bias.detach().numpy()]).astype(np.float64)
    return moved, start


def batch(size, seed=0):
    x, y = digits()
    rows = np.random.default_rng(seed).choice(len(y), size, replace=False)
    return x[rows], y[rows]


def taken(moved, start, size, draws=60_000, steps=1):
    rounding = np.finfo(np.float32).eps * np.abs(moved).max(axis=1)
    return take_apart(moved, start, rounding, size, draws=draws, steps=steps, rng=np.random.default_rng(0))


@pytest.mark.parametrize("size", [1, 2, 5, 10, 20])
def test_batches_are_exact(size):
    x, y = batch(size)
    found = taken(*gradient_of(x, y), size)
    assert (found.why, len(found.examples)) == ("", size)
    apart = np.abs(found.examples[:, None] - x.reshape(size, -1)[None]).max(axis=2)
    assert apart.min(axis=0).max() < 1e-5


def test_of_a_fished_batch_the_examples_of_the_class_are_exact():
    """All others pull at nothing: what their gradients leave below rounding has no rank."""
    x, y = batch(64)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].size, 200), nn.ReLU(), nn.Linear(200, 10))
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    sent = Fishing("3.weight", "3.bias", first=4)(state, 1)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in sent.items()})
    nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    moved = np.column_stack([model[1].weight.grad.numpy(), model[1].bias.grad.numpy()]).astype(np.float64)
    start = np.column_stack([sent["1.weight"], sent["1.bias"]]).astype(np.float64)
    found = taken(moved, start, 64)
    own = x[y == 4].reshape(-1, x[0].size)
    assert len(found.examples) == len(own) > 1
    assert np.abs(found.examples[:, None] - own).max(axis=2).min(axis=0).max() < 1e-5


def test_deep_networks_are_exact_too():
    x, y = batch(12, seed=1)
    found = taken(*gradient_of(x, y, deep=5), 12)
    apart = np.abs(found.examples[:, None] - x.reshape(12, -1)[None]).max(axis=2)
    assert apart.min(axis=0).max() < 1e-5


@pytest.mark.parametrize(
    ("alter", "size", "why"),
    [
        (
            lambda moved: moved + np.random.default_rng(0).normal(scale=1e-3, size=moved.shape),
            8,
            "a rank above 8",
        ),
        (lambda moved: moved.astype(np.float16).astype(np.float64), 8, "a rank above 8|hides"),
        (lambda moved: moved, 65, "it is of more than 64 examples"),
        (lambda moved: moved[:9], 8, "no example explains|columns were found|are too many|hides"),
        (lambda moved: moved, 64, "columns are more than the 32"),
    ],
)
def test_where_a_batch_cannot_be_taken_apart_the_reason_is_named(alter, size, why):
    x, y = batch(size)
    moved, start = gradient_of(x, y)
    changed = alter(moved)
    found = taken(changed, start[: len(changed)], size, draws=4_000)
    assert not len(found.examples)
    assert re.search(why, found.why)


def test_of_other_weights_nothing_is_taken_for_an_example():
    """The null: neurons that another model leaves below zero explain nothing."""
    x, y = batch(6)
    moved, _ = gradient_of(x, y)
    _, start = gradient_of(x, y, seed=1)
    assert not len(taken(moved, start, 6, draws=20_000).examples)
