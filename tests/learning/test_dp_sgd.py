import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from fedattack.base.errors import ConfigError, DataError, ModelError
from fedattack.learning import build_model, dp_sgd, private_gradient, train_local, train_private

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3)).astype(np.float32)
Y = np.arange(30) % 4
OPTIONS = {"epochs": 2, "batch_size": 6, "lr": 0.1, "noise": 1.0, "clip": 0.5, "seed": 0}
NO_CLIP = 1e6


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))


def values(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def joined(gradient: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([part.ravel() for part in gradient.values()])


def record_gradients(model: nn.Module, x, y) -> torch.Tensor:
    """Slow and obvious: one record at a time."""
    rows = []
    for record, label in zip(torch.tensor(x), torch.tensor(y), strict=True):
        loss = nn.functional.cross_entropy(model(record[None]), label[None])
        rows.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


def clipped_sum(gradients: torch.Tensor, clip: float) -> torch.Tensor:
    return sum((row * min(1.0, clip / float(row.norm())) for row in gradients), torch.zeros(gradients.shape[1]))


@pytest.mark.parametrize("clip", [0.3, 1.5, NO_CLIP])
@pytest.mark.parametrize("chunk", [7, 128])
def test_the_gradient_is_the_mean_of_the_records_clipped_gradients(clip, chunk, monkeypatch):
    monkeypatch.setattr(dp_sgd, "CHUNK", chunk)
    model = network()
    gradients = record_gradients(model, X, Y)
    assert (gradients.norm(dim=1) > 1.5).any()
    assert (gradients.norm(dim=1) < 1.5).any()
    found = private_gradient(model, X, Y, weight_decay=0.1, noise=0.0, clip=clip, seed=0)
    assert list(found) == [name for name, _ in model.named_parameters()]
    expected = clipped_sum(gradients, clip) / len(X) + 0.1 * values(model)
    np.testing.assert_allclose(joined(found), expected, rtol=1e-4, atol=1e-6)


def test_a_frozen_parameter_gets_neither_gradient_nor_noise():
    model = network()
    model[0].bias.requires_grad_(False)
    gradient = private_gradient(model, X, Y, weight_decay=0.1, noise=1.0, clip=1.0, seed=0)
    assert list(gradient) == [name for name, _ in model.named_parameters()]
    assert not gradient["0.bias"].any()
    assert gradient["2.bias"].all()


def spied(model: nn.Module, seen: list[torch.Tensor]) -> nn.Module:
    def note(part: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        # A pass without gradients counts what the layers put out, and trains nothing.
        if torch.is_grad_enabled():
            seen.append(inputs[0].clone())

    model[0].register_forward_pre_hook(note)
    return model


def rows_of(batch: torch.Tensor) -> list[int]:
    return [int(np.flatnonzero((record.numpy() == X).all(axis=1))[0]) for record in batch]


@pytest.mark.parametrize("maximise", [False, True])
def test_training_steps_by_the_clipped_sum_over_the_expected_batch_size(maximise):
    """With momentum and weight decay, on the batches that were drawn, one step after another."""
    seen: list[torch.Tensor] = []
    model, reference = spied(network(), seen), network()
    options = OPTIONS | {"noise": 0.0, "momentum": 0.9, "weight_decay": 0.01, "maximise": maximise}
    done = train_private(model, X, Y, **options)
    assert done.steps == 10
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, maximize=maximise)
    losses = []
    for batch in seen:
        rows = rows_of(batch)
        losses.append((nn.functional.cross_entropy(reference(batch), torch.tensor(Y[rows])).item(), len(rows)))
        total = clipped_sum(record_gradients(reference, X[rows], Y[rows]), 0.5) / 6
        parts = total.split([parameter.numel() for parameter in reference.parameters()])
        for parameter, part in zip(reference.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
    assert len(seen) == 10  # none of the batches of this seed is empty
    torch.testing.assert_close(values(model), values(reference), rtol=1e-3, atol=1e-5)
    last = losses[5:]
    expected = sum(loss * count for loss, count in last) / sum(count for _, count in last)
    assert done.loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("batch_size", [0, 30, 99])
def test_with_neither_noise_nor_clipping_full_batches_train_as_plain_sgd_does(batch_size):
    model, plain = network(), network()
    options = {"epochs": 3, "batch_size": batch_size, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "seed": 0}
    private = train_private(model, X, Y, noise=0.0, clip=NO_CLIP, **options)
    done = train_local(plain, X, Y, **options)
    assert private.steps == done.steps == 3
    assert private.loss == pytest.approx(done.loss, rel=1e-5)
    torch.testing.assert_close(values(model), values(plain), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_batches_are_drawn_record_by_record_and_may_be_empty():
    sizes, counts = [], np.zeros(30)
    for seed in range(40):
        seen: list[torch.Tensor] = []
        done = train_private(spied(network(), seen), X, Y, **OPTIONS | {"batch_size": 2, "seed": seed})
        assert done.steps == 30
        sizes += [len(batch) for batch in seen] + [0] * (30 - len(seen))
        for batch in seen:
            counts[rows_of(batch)] += 1
    assert 0 in sizes
    # 1200 draws of 30 records at rate 1/15: binomial sizes, and no record favoured.
    expected = stats.binom.pmf(np.arange(6), 30, 1 / 15)
    expected = 1200 * np.append(expected, 1 - expected.sum())
    observed = np.bincount(np.minimum(sizes, 6), minlength=7)
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    assert stats.chisquare(counts).pvalue > 1e-3


def test_an_empty_batch_sends_noise_alone():
    """One record at rate 1/2: half of the steps have nothing but noise, and they move the model too."""
    moves = []
    for seed in range(200):
        model = network()
        done = train_private(
            model, X[:2], Y[:2], **OPTIONS | {"epochs": 1, "batch_size": 1, "seed": seed, "clip": 1e-4}
        )
        moves.append((values(model) - values(network())).abs().max())
        empty = math.isnan(done.loss)
        assert empty or done.loss > 0
        if empty:
            break
    assert empty
    assert min(moves) > 0


@pytest.mark.parametrize(("noise", "clip"), [(1.0, 0.5), (3.0, 2.0)])
def test_noise_has_the_standard_deviation_of_sigma_times_the_clipping_norm(noise, clip):
    model = build_model("mlp", input_shape=(3,), classes=4, hidden=1000, seed=0)
    still = private_gradient(model, X, Y, noise=0.0, clip=clip, seed=1)
    noisy = private_gradient(model, X, Y, noise=noise, clip=clip, seed=1)
    draws = (joined(noisy) - joined(still)) * len(X)
    assert len(draws) == 8004
    assert stats.kstest(draws / (noise * clip), "norm").pvalue > 1e-3
    # Independent from parameter to parameter and from seed to seed.
    assert abs(np.corrcoef(draws[:4000], draws[4000:8000])[0, 1]) < 0.06
    other = private_gradient(model, X, Y, noise=noise, clip=clip, seed=2)
    again = (joined(other) - joined(still)) * len(X)
    assert abs(np.corrcoef(draws, again)[0, 1]) < 0.04


def test_every_step_has_noise_of_its_own():
    """Without learning from records: a clipping norm that leaves nothing of them, and σ that makes up for it."""
    model = build_model("mlp", input_shape=(3,), classes=4, hidden=1000, seed=0)
    before = values(model)
    train_private(model, X, Y, epochs=16, batch_size=0, lr=1.0, noise=1e8, clip=1e-8, seed=0)
    moved = (values(model) - before).numpy() * len(X)
    assert stats.kstest(moved / 4, "norm").pvalue > 1e-3  # the root of 16 steps


def test_the_seed_alone_decides():
    def train(seed: int) -> torch.Tensor:
        model = build_model("mlp", input_shape=(3,), classes=4, hidden=8, seed=0, dropout=0.5)
        train_private(model, X, Y, **OPTIONS | {"seed": seed})
        return values(model)

    before = torch.get_rng_state()
    first, again, other = train(0), train(0), train(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_no_trace_of_opacus_is_left(recwarn):
    x, y = X.copy(), Y.copy()
    x.flags.writeable = y.flags.writeable = False
    model = network()
    model[1].eval()
    names = list(model.state_dict())
    for _ in range(2):  # hooks that were left would be refused the second time
        train_private(model, x, y, **OPTIONS)
        start = values(model).clone()
        private_gradient(model, x, y, noise=1.0, clip=1.0, seed=0)
        assert torch.equal(values(model), start)
    assert list(model.state_dict()) == names
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert not any(hasattr(p, "grad_sample") for p in model.parameters())
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    assert not recwarn.list
    plain, reference = model, network()
    reference.load_state_dict(plain.state_dict())
    for item in (plain, reference):
        train_local(item, X, Y, epochs=1, batch_size=6, lr=0.1, seed=0)
    assert torch.equal(values(plain), values(reference))


@pytest.mark.parametrize("name", ["lenet-mnist", "lenet-cifar", "sia-cnn", "sia-mlp", "mlp"])
def test_every_model_of_the_house_can_be_trained(name):
    model = build_model(name, input_shape=(1, 16, 16), classes=4, seed=0)
    before = values(model)
    done = train_private(model, np.ones((10, 1, 16, 16), dtype=np.float32), Y[:10], **OPTIONS | {"batch_size": 2})
    assert done.steps == 10
    assert torch.isfinite(values(model)).all()
    assert not torch.equal(values(model), before)


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), "DP-SGD cannot train this model: BatchNorm cannot"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)), r"work in place \(1\); set inplace"),
        (Idle(), "parameters unused.weight, unused.bias take no part"),
    ],
)
def test_models_that_do_not_allow_it_are_refused_in_one_line(model, message):
    with pytest.raises(ModelError, match=message) as problem:
        train_private(model, X, Y, **OPTIONS)
    assert "\n" not in str(problem.value)
    assert not any(hasattr(p, "grad_sample") for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": -1.0}, "noise multiplier must be a finite number of at least 0; got -1.0"),
        ({"noise": math.inf}, "got inf"),
        ({"clip": 0.0}, "clipping norm must be a finite number above 0; got 0.0"),
        ({"clip": math.inf}, "got inf"),
        ({"clip": math.nan}, "got nan"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"lr": -1.0}, "lr must be at least 0"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        train_private(network(), X, Y, **OPTIONS | options)


def test_records_without_labels_are_refused():
    with pytest.raises(DataError, match="got 30 and 29"):
        train_private(network(), X, Y[:29], **OPTIONS)
    with pytest.raises(DataError, match="got 0 and 0"):
        private_gradient(network(), X[:0], Y[:0], noise=1.0, clip=1.0, seed=0)
