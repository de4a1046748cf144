import numpy as np
import pytest
import torch
from torch import nn

from fedattack.base.errors import DataError
from fedattack.learning import build_model, train_local
from fedattack.threats.attribute.gradient_membership import (
    gradient_variances,
    infer_membership,
    last_layer,
    last_layer_gradients,
)


def state_of(model):
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def records(count, seed=0, width=6, classes=3):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(count, width)).astype(np.float32), draw.integers(classes, size=count)


@pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
def test_gradients_of_the_last_layer_are_those_of_plain_autograd(loss):
    x, y = records(300)
    model = build_model("mlp", input_shape=(6,), classes=3 if loss == "cross-entropy" else 1, hidden=5, seed=1).double()
    labels = y if loss == "cross-entropy" else x[:, 0]
    found = last_layer_gradients(model, state_of(model), x, labels, loss)
    assert last_layer(model) == ("fc2.weight", "fc2.bias") == tuple(found)
    for row in (0, 255, 256, 299):
        output = model(torch.from_numpy(x[row : row + 1]).double())
        value = (
            nn.functional.cross_entropy(output, torch.tensor([y[row]]))
            if loss == "cross-entropy"
            else (output[0, 0] - float(labels[row])) ** 2
        )
        expected = torch.autograd.grad(value, [model.fc2.weight, model.fc2.bias])
        for part, single in zip(expected, found.values(), strict=True):
            np.testing.assert_allclose(single[row], part.numpy(), rtol=1e-9, atol=1e-12)


def test_variances_are_of_the_entries_of_each_candidates_gradient():
    x, y = records(4)
    model = build_model("mlp", input_shape=(6,), classes=3, hidden=5, seed=1)
    candidates = np.stack([x, x + 1, x - 1])
    variances = gradient_variances(model, state_of(model), candidates, y, "cross-entropy")
    assert variances.shape == (4, 3)
    single = last_layer_gradients(model, state_of(model), candidates[2], y, "cross-entropy")
    entries = np.concatenate([part[1].ravel() for part in single.values()])
    assert variances[1, 2] == pytest.approx(np.var(entries))


def test_two_separate_groups_are_told_apart_whatever_their_order():
    draw = np.random.default_rng(0)
    member = draw.permutation(np.repeat([True, False], [30, 50]))
    variances = np.where(member, 1e-8, 1e-3)[:, None] * np.exp(draw.normal(0, 0.5, size=(80, 2)))
    likely = infer_membership(variances, seed=1)
    np.testing.assert_array_equal(likely > 0.5, member)
    assert likely.tobytes() == infer_membership(variances, seed=1).tobytes()


def test_records_of_an_overfitted_model_are_members_and_others_are_not():
    x, y = records(60, width=20)
    model = build_model("mlp", input_shape=(20,), classes=3, hidden=32, seed=0)
    train_local(model, x[:30], y[:30], epochs=300, batch_size=0, lr=0.5, seed=0)
    variances = gradient_variances(model, state_of(model), x[None], y, "cross-entropy")
    judged = infer_membership(variances) > 0.5
    assert (judged == (np.arange(60) < 30)).mean() > 0.9


def test_records_that_a_model_never_saw_are_not_told_apart():
    x, y = records(200, width=20)
    model = build_model("mlp", input_shape=(20,), classes=3, hidden=32, seed=0)
    variances = gradient_variances(model, state_of(model), x[None], y, "cross-entropy")
    judged = infer_membership(variances) > 0.5
    assert abs((judged == (np.arange(200) < 100)).mean() - 0.5) < 0.11


@pytest.mark.parametrize("scale", [1e-20, 1e6])
def test_the_size_of_gradients_does_not_matter(scale):
    draw = np.random.default_rng(0)
    variances = np.square(np.concatenate([draw.normal(0.01, 0.002, (30, 2)), draw.uniform(0.2, 0.9, (30, 2))]))
    np.testing.assert_array_equal(infer_membership(scale * variances) > 0.5, np.arange(60) < 30)


def test_gradients_of_exactly_zero_are_members():
    variances = np.array([[0.0], [0.0], [0.0], [1.0], [1.1], [0.9]])
    np.testing.assert_array_equal(infer_membership(variances) > 0.5, [True] * 3 + [False] * 3)


@pytest.mark.parametrize("variances", [np.ones((1, 2)), np.array([[1.0], [np.nan], [2.0]])])
def test_too_few_or_broken_variances_are_refused(variances):
    with pytest.raises(DataError, match="at least two examples with finite gradients"):
        infer_membership(variances)
