"""Gradients of single examples, held against one backward pass an example."""

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.learning import build_model
from fedattack.learning.losses import mean_loss
from fedattack.threats.membership.measures import ExampleGradients, difference

COUNT = 7


def perceptron():
    return build_model("mlp", input_shape=(5,), classes=3, hidden=4, seed=0)


def normalised():
    """A model with buffers, and with dropout that must not be drawn."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    model[1].running_mean += 0.3
    model[1].running_var *= 2.0
    return model


def regression():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))


WORLDS = [(perceptron, "cross-entropy"), (normalised, "cross-entropy"), (regression, "mse")]


def world(make, loss):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(COUNT, 5)).astype(np.float32)
    y = draw.normal(size=COUNT).astype(np.float32) if loss == "mse" else np.arange(COUNT) % 3
    model = make()
    state = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    names = [name for name, _ in model.named_parameters()]
    updates = [{name: draw.normal(size=state[name].shape).astype(np.float32) for name in names} for _ in range(4)]
    return model, state, updates, x, y


def by_hand(model, loss, x, y):
    """One backward pass for each example."""
    model = model.eval()
    rows = []
    for position in range(len(x)):
        model.zero_grad()
        outputs = model(torch.from_numpy(x[position : position + 1]))
        mean_loss(loss)(outputs, torch.as_tensor(y[position : position + 1])).backward()
        rows.append(torch.cat([value.grad.flatten() for value in model.parameters()]).double().numpy())
    return np.stack(rows)


@pytest.mark.parametrize(("make", "loss"), WORLDS)
@pytest.mark.parametrize("bound", [1, 400, 2**28])
def test_gradients_norms_and_products_are_those_of_one_backward_pass_an_example(make, loss, bound):
    """However few bytes are held: with a bound of 1 it is one example and one update at a time."""
    model, state, updates, x, y = world(make, loss)
    expected = by_hand(make(), loss, x, y)
    # The model itself is elsewhere; the state decides.
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    model.train()
    gradients = ExampleGradients(model, loss, x, y, bound=bound)
    found = np.empty_like(expected)
    most = 0
    for rows, part in gradients.at(state):
        assert [*part] == gradients.names
        found[rows] = torch.cat([*part.values()], dim=1).detach().numpy()
        most = max(most, rows.stop - rows.start)
    assert most == (1 if bound == 1 else most)
    assert most >= (COUNT if bound == 2**28 else 1)
    close = {"rtol": 1e-4, "atol": 1e-6}
    np.testing.assert_allclose(found, expected, **close)
    norms = np.linalg.norm(expected, axis=1)
    np.testing.assert_allclose(gradients.norms(state), norms, **close)
    products, again = gradients.along(state, updates)
    directions = [np.concatenate([update[name].ravel() for name in gradients.names]) for update in updates]
    np.testing.assert_allclose(products, -expected @ np.stack(directions, axis=1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(again, norms, **close)
    assert all(module.training for module in model.modules()), "the model's mode is put back"


def test_an_update_is_what_was_sent_less_what_was_received():
    received = {"w": np.array([1.0, 2.0], dtype=np.float16), "steps": np.array(3)}
    sent = {"w": np.array([1.5, 0.0], dtype=np.float32), "steps": np.array(9)}
    update = difference(sent, received, ["w"])
    assert list(update) == ["w"]
    assert update["w"].dtype == np.float32
    np.testing.assert_array_equal(update["w"], [0.5, -2.0])
