"""The replay of the true records, and what it names where it does not give what the client sent."""

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.learning import LocalSGD, build_model, full_gradient, train_local
from fedattack.threats.inversion.gradient_inversion import ONE_GRADIENT
from fedattack.threats.inversion.preflight import UNEXPLAINED, preflight
from tests.worlds.inversion import digits

X, Y = (part[:6] for part in digits())
LOW, HIGH = (edge.reshape(1, 1, 1, 1) for edge in (digits()[0].min(), digits()[0].max()))
ONE_STEP = LocalSGD(epochs=1, batch_size=0, lr=0.1)


def network(dropout=0.0):
    return build_model("mlp", input_shape=(1, 8, 8), classes=10, hidden=32, seed=1, dropout=dropout)


def state(model):
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def trained(model, training, x=X):
    """Return the movement of a client that really trains so, in units of the learning rate."""
    before = state(model)
    train_local(model, x, Y, seed=3, **vars(training))
    after = state(model)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in before.items()})
    return {name: (before[name] - after[name]) / training.lr for name, _ in model.named_parameters()}


def check(model, sent, believed=ONE_STEP, x=X):
    return preflight(model, "cross-entropy", believed, state(model), sent, x, Y, low=LOW, high=HIGH)


@pytest.mark.parametrize("training", [ONE_STEP, LocalSGD(epochs=3, batch_size=0, lr=0.05, momentum=0.9)])
def test_a_right_model_of_the_client_fits(training):
    model = network()
    found = check(model, trained(model, training), training)
    assert found.fits
    assert found.residual < 1e-4
    assert found.cosine == pytest.approx(1)
    assert found.causes == ()


def test_a_gradient_fits():
    model = network()
    gradient = full_gradient(model, X, Y, weight_decay=0.0, seed=0).arrays
    assert check(model, gradient, ONE_GRADIENT).residual < 1e-5


@pytest.mark.parametrize(
    ("really", "believed", "cause"),
    [
        (LocalSGD(3, 0, 0.5), LocalSGD(1, 0, 0.5), "local steps: 3 epochs and not 1"),
        (LocalSGD(1, 0, 0.5), LocalSGD(5, 0, 0.5), "local steps: 1 epochs and not 5"),
        (LocalSGD(5, 0, 0.5, momentum=0.9), LocalSGD(5, 0, 0.5), "optimiser: momentum 0.9 and not 0"),
        (LocalSGD(1, 0, 0.1), LocalSGD(1, 0, 0.1, weight_decay=1.0), "optimiser: no weight decay"),
        (LocalSGD(1, 0, 0.1), LocalSGD(1, 2, 0.1), "local steps: mini-batches of 6 and not 2"),
    ],
)
def test_other_training_is_named(really, believed, cause):
    model = network()
    found = check(model, trained(model, really), believed)
    assert not found.fits
    assert cause in found.causes


def test_another_learning_rate_is_named():
    model = network()
    sent = {name: 3 * array for name, array in trained(model, ONE_STEP).items()}
    found = check(model, sent)
    assert found.residual == pytest.approx(2 / 3, rel=1e-3)
    assert found.causes == ("learning rate or number of examples: the direction is right and the length is not",)


def test_adam_is_named():
    model = network()
    sent = {name: np.sign(array) for name, array in trained(model, ONE_STEP).items()}
    assert check(model, sent).causes == ("optimiser: steps of one length for all parameters, as Adam's first",)


@pytest.mark.parametrize(("scale", "shift", "words"), [(1, 0, "inputs in 0 … 1"), (2, -1, "inputs in −1 … 1")])
def test_another_normalisation_is_named(scale, shift, words):
    model = network()
    sent = trained(model, ONE_STEP, x=(scale * (X - LOW) / (HIGH - LOW) + shift).astype(np.float32))
    assert check(model, sent).causes == (f"normalisation: {words}",)


def test_batch_norm_in_evaluation_mode_is_named():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)).eval()
    with torch.no_grad():
        model[1].running_mean.fill_(1.0)
    nn.functional.cross_entropy(model(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
    sent = {name: value.grad.numpy().copy() for name, value in model.named_parameters()}
    assert check(model, sent).causes == ("batch norm: in evaluation mode, with running statistics",)
    model.train()
    assert check(model, trained(model, ONE_STEP)).fits


def test_dropout_is_named():
    model = network(dropout=0.5)
    found = check(model, trained(model, ONE_STEP))
    assert not found.fits
    assert found.causes == ("dropout: its masks are not known to the attacker",)


def test_the_order_of_mini_batches_is_named():
    model, training = network(), LocalSGD(epochs=1, batch_size=1, lr=0.5)
    assert check(model, trained(model, training), training).causes == (
        "local steps: the order of the mini-batches is not known to the attacker",
    )


def test_noise_is_none_of_the_usual_causes():
    model, draw = network(), np.random.default_rng(0)
    sent = {name: array + draw.normal(size=array.shape) for name, array in trained(model, ONE_STEP).items()}
    assert check(model, sent).causes == (UNEXPLAINED,)
