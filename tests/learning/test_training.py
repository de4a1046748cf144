import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.base.errors import ConfigError, DataError, ModelError
from fedattack.learning import build_model, full_gradient, gradient_step, pick_device, train_local
from fedattack.learning.training import WORTH_GPU

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 3)).astype(np.float32)
Y = np.arange(10) % 4
OPTIONS = {"epochs": 2, "batch_size": 4, "lr": 0.1, "seed": 0}


def linear(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(3, 4)


def values(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def softmax_gradient(weight: np.ndarray, bias: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean cross-entropy of a linear model and its gradient in [weight, bias], one record at a time."""
    loss, gradient = 0.0, np.zeros((4, 4))
    for record, label in zip(x, y, strict=True):
        exponentials = np.exp(weight @ record + bias)
        probabilities = exponentials / exponentials.sum()
        loss -= math.log(probabilities[label]) / len(x)
        gradient += np.outer(probabilities - np.eye(4)[label], np.r_[record, 1]) / len(x)
    return loss, gradient


def test_full_batch_steps_are_gradient_descent_with_momentum_and_weight_decay():
    model = linear()
    joined = np.c_[model.weight.detach().numpy(), model.bias.detach().numpy()].astype(np.float64)
    velocity = np.zeros_like(joined)
    for _ in range(3):
        loss, gradient = softmax_gradient(joined[:, :3], joined[:, 3], X, Y)
        velocity = 0.9 * velocity + gradient + 0.01 * joined
        joined = joined - 0.1 * velocity

    done = train_local(model, X, Y, epochs=3, batch_size=0, lr=0.1, momentum=0.9, weight_decay=0.01, seed=0)
    np.testing.assert_allclose(model.weight.detach(), joined[:, :3], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.bias.detach(), joined[:, 3], rtol=1e-4, atol=1e-5)
    assert done.steps == 3
    assert done.loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "numbers"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9, "weight_decay": 0.01}),
        ("Adam", {}),
        ("Adam", {"weight_decay": 0.01}),
        ("AdamW", {"weight_decay": 0.01}),
    ],
)
@pytest.mark.parametrize("maximise", [False, True])
def test_steps_are_those_of_torchs_optimiser_to_the_bit(optimizer, numbers, maximise):
    """What the loss does not depend on is left alone, by weight decay and momentum, too."""

    class Branched(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused, self.used, self.fixed = linear(1), linear(2), linear(3).requires_grad_(False)

        def forward(self, x):
            return self.used(x) + self.fixed(x)

    ours, plain = Branched(), Branched()
    train_local(ours, X, Y, **OPTIONS, **numbers, optimizer=optimizer, maximise=maximise)
    # AdamW's own weight decay is not 0.
    optimiser = getattr(torch.optim, optimizer)(
        plain.parameters(), lr=0.1, **({"weight_decay": 0.0} | numbers), maximize=maximise
    )
    order = torch.Generator().manual_seed(OPTIONS["seed"])
    for batch in [rows for _ in range(2) for rows in torch.randperm(10, generator=order).split(4)]:
        optimiser.zero_grad()
        nn.functional.cross_entropy(plain(torch.from_numpy(X)[batch]), torch.from_numpy(Y)[batch]).backward()
        optimiser.step()
    assert torch.equal(values(ours), values(plain))
    assert not torch.equal(values(ours), values(Branched()))


@pytest.mark.slow
def test_a_training_does_not_load_torchs_compiler():
    code = (
        "import sys, numpy as np\n"
        "from fedattack.learning import build_model, train_local\n"
        "model = build_model('sia-mlp', input_shape=(3,), classes=4, seed=0)\n"
        "train_local(model, np.ones((10, 3), 'f4'), np.arange(10) % 4, epochs=1, batch_size=4, lr=0.1, seed=0)\n"
        "print(sorted({'torch._dynamo', 'sklearn', 'matplotlib'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_epoch_takes_every_record_once_in_a_new_order_and_keeps_the_short_batch():
    seen: list[list[float]] = []

    class Spy(nn.Linear):
        def forward(self, x):
            seen.append(x[:, 0].tolist())
            return super().forward(x)

    done = train_local(Spy(3, 4), X, Y, **{**OPTIONS, "epochs": 3})
    assert done.steps == 9
    assert [len(batch) for batch in seen] == [4, 4, 2] * 3
    epochs = [[value for batch in seen[i : i + 3] for value in batch] for i in (0, 3, 6)]
    for epoch in epochs:
        assert sorted(epoch) == sorted(X[:, 0].tolist())
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_loss_is_the_mean_over_records_and_not_over_batches():
    x, y = np.zeros((3, 3)), np.array([0, 0, 1])
    model = linear()
    expected = softmax_gradient(model.weight.detach().numpy(), model.bias.detach().numpy(), x, y)[0]
    assert train_local(model, x, y, epochs=1, batch_size=2, lr=0.0, seed=0).loss == pytest.approx(expected, rel=1e-5)


def test_the_seed_alone_decides_order_and_dropout():
    def train(seed: int) -> torch.Tensor:
        model = build_model("lenet-mnist", input_shape=(1, 16, 16), classes=4, seed=0)
        train_local(model, np.ones((10, 1, 16, 16)) * X[:, :1, None, None], Y, **{**OPTIONS, "seed": seed})
        return values(model)

    before = torch.get_rng_state()
    first, again, other = train(0), train(0), train(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("batch_size", [0, 10, 999])
def test_a_batch_of_all_records_or_more_is_one_step_an_epoch(batch_size):
    model, reference = linear(), linear()
    assert train_local(model, X, Y, **{**OPTIONS, "batch_size": batch_size}).steps == 2
    train_local(reference, X, Y, **{**OPTIONS, "batch_size": 10})
    assert torch.equal(values(model), values(reference))


def test_training_leaves_the_callers_data_and_modes_as_they_were(recwarn):
    x, y = X.copy(), Y.copy()
    x.flags.writeable = y.flags.writeable = False
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    model[1].eval()
    train_local(model, x, y, **OPTIONS)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert not recwarn.list


def test_a_diverging_training_returns_its_loss():
    done = train_local(linear(), X * 1e20, Y, **{**OPTIONS, "lr": 1e20})
    assert not math.isfinite(done.loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1; got 0"),
        ({"batch_size": -1}, "batch_size must be at least 0; got -1"),
        ({"lr": -0.1}, "lr must be at least 0; got -0.1"),
        ({"lr": float("nan")}, "lr must be at least 0; got nan"),
        ({"momentum": -1}, "momentum must be at least 0; got -1"),
        ({"weight_decay": -1}, "weight_decay must be at least 0; got -1"),
        ({"optimizer": "adam"}, "optimizer must be one of SGD, Adam, AdamW; got 'adam'"),
        ({"optimizer": "Adam", "momentum": 0.9}, "Adam has no momentum; got 0.9"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        train_local(linear(), X, Y, **{**OPTIONS, **options})


def test_records_without_labels_are_refused():
    with pytest.raises(DataError, match="got 10 and 9"):
        train_local(linear(), X, Y[:9], **OPTIONS)
    with pytest.raises(DataError, match="got 0 and 0"):
        train_local(linear(), X[:0], Y[:0], **OPTIONS)


def test_devices(monkeypatch):
    assert pick_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device() == torch.device("cpu")
    with pytest.raises(ConfigError, match="'cuda' is not available: this machine has 0 usable CUDA devices"):
        pick_device("cuda")
    for unknown in ("gpu", "meta", "", "cuda:x"):
        with pytest.raises(ConfigError, match=f"unknown device '{unknown}'"):
            pick_device(unknown)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device() == torch.device("cuda")
    assert pick_device(parameters=WORTH_GPU) == torch.device("cuda")
    assert pick_device(parameters=WORTH_GPU - 1) == torch.device("cpu")
    assert pick_device("cuda", parameters=1) == torch.device("cuda")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="'cuda:2' is not available: this machine has 2"):
        pick_device("cuda:2")


@pytest.mark.parametrize("chunk", [1, 3, 10, 99])
def test_the_full_gradient_is_the_mean_over_records_one_at_a_time(chunk):
    model = linear()
    before = values(model).clone()
    loss, expected = softmax_gradient(model.weight.detach().numpy(), model.bias.detach().numpy(), X, Y)
    got = full_gradient(model, X, Y, seed=0, chunk=chunk)
    assert list(got.arrays) == ["weight", "bias"]
    np.testing.assert_allclose(got.arrays["weight"], expected[:, :3], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(got.arrays["bias"], expected[:, 3], rtol=1e-5, atol=1e-7)
    assert got.loss == pytest.approx(loss, rel=1e-6)
    assert torch.equal(values(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_a_full_batch_step_moves_along_the_full_gradient_dropout_included(weight_decay):
    """FedSGD is FedAvg with one step over all records; they share the masks that they share the seed of."""
    options = {"weight_decay": weight_decay, "seed": 5}
    x = np.random.default_rng(1).random((12, 1, 28, 28), dtype=np.float32)
    y = np.arange(12) % 10
    model, stepped = (build_model("lenet-mnist", input_shape=(1, 28, 28), classes=10, seed=0) for _ in range(2))
    torch.manual_seed(3)
    random = torch.random.get_rng_state()
    gradient = full_gradient(model, x, y, **options)
    assert torch.equal(torch.random.get_rng_state(), random)
    other = full_gradient(model, x, y, weight_decay=weight_decay, seed=6)
    assert np.abs(other.arrays["fc2.weight"] - gradient.arrays["fc2.weight"]).max() > 1e-3, "dropout is off"
    # One record order for both, in which the masks fall on the records.
    order = torch.randperm(12, generator=torch.Generator().manual_seed(5)).numpy()
    gradient = full_gradient(model, x[order], y[order], **options)
    train_local(stepped, x, y, epochs=1, batch_size=0, lr=0.1, **options)
    before = {name: value.detach().numpy() for name, value in model.named_parameters()}
    for name, array in gradient_step(before, gradient.arrays, 0.1).items():
        np.testing.assert_allclose(array, stepped.state_dict()[name].numpy(), rtol=1e-5, atol=1e-7)


def test_what_the_loss_does_not_depend_on_has_a_gradient_of_zero():
    model = nn.Sequential(linear(), nn.Linear(4, 4))
    model[1].weight.requires_grad_(False)
    model[0].unused = nn.Parameter(torch.ones(2))
    got = full_gradient(model, X, Y, weight_decay=0.5, seed=0).arrays
    assert not got["1.weight"].any()
    assert not got["0.unused"].any()
    assert got["0.weight"].any()


def test_a_gradient_step_is_taken_in_double_precision_and_rounded_once():
    before = {"w": np.array([1.0, 3.0], dtype=np.float32), "h": np.array([0.5], dtype=np.float16)}
    gradient = {"w": np.array([1 / 3, 2.0], dtype=np.float32), "h": np.array([1e-3], dtype=np.float32)}
    after = gradient_step(before, gradient, 0.1)
    assert after["w"][0] == np.float32(1.0 - 0.1 * float(np.float32(1 / 3)))
    assert after["h"].dtype == np.float16
    np.testing.assert_array_equal(before["w"], [1.0, 3.0])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = self.two = nn.Linear(3, 3)

    def forward(self, x):
        return self.two(self.one(x))


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), "1 normalises by the batch"),
        (nn.Sequential(nn.BatchNorm1d(3, affine=False, track_running_stats=False), linear()), "0 normalises"),
        (nn.Sequential(nn.Linear(3, 4), nn.InstanceNorm1d(4, track_running_stats=True)), "1.* is a buffer"),
        (Tied(), "two.weight is a buffer or a tied parameter"),
    ],
)
def test_models_whose_gradient_does_not_say_all_are_refused(model, what):
    with pytest.raises(ModelError, match=what) as caught:
        full_gradient(model, X, Y % 3, seed=0)
    assert "\n" not in str(caught.value)


def test_a_gradient_needs_records():
    with pytest.raises(DataError, match="at least one example"):
        full_gradient(linear(), X[:0], Y[:0], seed=0)
    with pytest.raises(ConfigError, match="weight_decay must be at least 0"):
        full_gradient(linear(), X, Y, weight_decay=-1.0, seed=0)


def test_a_full_batch_step_of_least_squares_is_the_closed_form_and_scalar_targets_are_not_broadcast():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
    start = values(model).numpy().astype(np.float64)
    targets = RNG.normal(size=10)
    design = np.c_[X, np.ones(10)].astype(np.float64)
    error = design @ start - targets
    done = train_local(model, X, targets, epochs=1, batch_size=0, lr=0.1, loss="mse", seed=0)
    np.testing.assert_allclose(values(model), start - 0.1 * 2 / 10 * design.T @ error, rtol=1e-5, atol=1e-6)
    assert done.loss == pytest.approx((error**2).mean(), rel=1e-5)


def test_an_unknown_loss_is_refused():
    with pytest.raises(ModelError, match="unknown loss 'hinge'"):
        train_local(linear(), X, Y, **OPTIONS, loss="hinge")
