"""Statistics of batches that buffers tell, and the search that holds its examples against them."""

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.learning import LocalSGD, build_model, train_local
from fedattack.learning.soft_losses import soft_targets
from fedattack.threats.inversion.batch_norm import MEAN, VARIANCE, distances, read_statistics, step_weights
from fedattack.threats.inversion.gradient_inversion import ClientModel, ReplyBatch, Search
from fedattack.threats.inversion.images import pair_images, squared_error
from tests.threats.inversion.inverted import invert
from tests.worlds.inversion import digits, normed

X, Y = digits()
ONE_STEP = LocalSGD(epochs=1, batch_size=0, lr=0.1)
NAMES = ["1.running_mean", "1.running_var", "5.running_mean", "5.running_var"]


def network(momentum=0.1):
    """A network whose buffers already know of 7 batches."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = normed()
    for layer in (model[1], model[5]):
        layer.momentum = momentum
        layer.running_mean.fill_(0.3)
        layer.running_var.fill_(2.0)
        layer.num_batches_tracked.fill_(7)
    return model


def state(model):
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def trained(model, training, rows):
    """Return the states before and after a client's training; the model stays as it was."""
    before = state(model)
    train_local(model, X[rows], Y[rows], seed=0, **vars(training))
    after = state(model)
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in before.items()})
    return before, after


def sent(model, training, rows):
    """Return what a server knows of a client's batch."""
    before, after = trained(model, training, rows)
    moved = {name: (before[name] - after[name]) / np.float32(training.lr) for name, _ in model.named_parameters()}
    statistics = read_statistics(model, before, after, training.steps(len(rows)))
    return ReplyBatch(before, moved, len(rows), np.sort(Y[rows]), statistics)


@pytest.mark.parametrize("momentum", [0.1, 0.5, 1.0, None])
def test_one_step_tells_mean_and_unbiased_variance_of_the_batch(momentum):
    """The oracle: the layers' inputs, computed by hand."""
    model, rows = network(momentum), np.arange(5)
    found = read_statistics(model, *trained(model, ONE_STEP, rows), steps=1)
    first = model[0](torch.from_numpy(X[rows])).detach().double().numpy().transpose(1, 0, 2, 3).reshape(4, -1)
    ready = (first - first.mean(1, keepdims=True)) / np.sqrt(first.var(1, keepdims=True) + 1e-5)
    flat = np.maximum(ready, 0).reshape(4, 5, 36).transpose(1, 0, 2).reshape(5, 144)
    weight, bias = (part.detach().double().numpy() for part in (model[4].weight, model[4].bias))
    second = (flat @ weight.T + bias).T
    assert [*found] == NAMES
    by_hand = first.mean(1), first.var(1, ddof=1), second.mean(1), second.var(1, ddof=1)
    for name, expected in zip(NAMES, by_hand, strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
@pytest.mark.parametrize("training", [LocalSGD(4, 0, 0.1), LocalSGD(3, 0, 0.05, momentum=0.9, weight_decay=0.01)])
def test_several_steps_tell_what_the_replay_of_the_true_examples_sees(momentum, training):
    model, rows = network(momentum), np.arange(6)
    before, after = trained(model, training, rows)
    client = ClientModel(model, "cross-entropy", training)
    targets = soft_targets("cross-entropy", Y[rows], 10)
    _, replayed = client.follow(*client.split(before), torch.from_numpy(X[rows]), targets)
    found = read_statistics(model, before, after, training.epochs)
    assert [*found] == NAMES
    for name, values in found.items():
        np.testing.assert_allclose(values, replayed[name].detach().numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("momentum", [0.1, 0.7, 1.0])
def test_step_weights_are_those_of_the_running_mean(momentum):
    values, running = np.array([3.0, -1.0, 4.0, 1.5]), 0.0
    for value in values:
        running = (1 - momentum) * running + momentum * value
    assert step_weights(momentum, 4) @ values == pytest.approx(running / (1 - (1 - momentum) ** 4))
    assert step_weights(None, 4) @ values == pytest.approx(values.mean())


def test_layers_that_tell_nothing_are_left_out():
    model, rows = network(), np.arange(4)
    before, after = trained(model, ONE_STEP, rows)
    first, second = NAMES[:2], NAMES[2:]
    frozen = after | {name: before[name] for name in before if name.startswith("1.")}
    assert [*read_statistics(model, before, frozen, steps=1)] == second
    still = after | {name: before[name] for name in first}
    assert [*read_statistics(model, before, still, steps=1)] == second, "the counter alone moved"
    assert read_statistics(model, before, after, steps=2) == {}, "one step was counted, and two were expected"
    for value in (np.nan, np.inf):
        broken = after | {"5.running_var": np.full_like(after["5.running_var"], value)}
        assert [*read_statistics(model, before, broken, steps=1)] == first
    assert [
        *read_statistics(model, before, {name: after[name] for name in after if name != NAMES[3]}, steps=1)
    ] == first
    below = {"1.num_batches_tracked": np.array(-1)}, {"1.num_batches_tracked": np.array(0)}
    assert [*read_statistics(model, before | below[0], after | below[1], steps=1)] == second
    large = {"1.running_mean": np.full_like(after["1.running_mean"], 1e38)}
    assert [*read_statistics(model, before, after | large, steps=1)] == second, "ten times as much is infinite"
    averaged = {"1.num_batches_tracked": np.array(7.6, dtype=np.float32)}
    assert [*read_statistics(model, before | averaged, after, steps=1)] == NAMES, "the client loads 7 of it"
    assert (
        read_statistics(build_model("mlp", input_shape=(1, 8, 8), classes=10, hidden=4, seed=0), {}, {}, steps=1) == {}
    )


def test_distances_are_shares_of_a_layer_s_own_statistics():
    wanted = {f"1.{MEAN}": torch.tensor([[3.0, 4.0]]), f"1.{VARIANCE}": torch.tensor([[1.0, -2.0]])}
    found = {f"1.{MEAN}": torch.tensor([[3.0, 2.0]]), f"1.{VARIANCE}": torch.tensor([[2.0, 0.0]])}
    assert distances(found, wanted).tolist() == pytest.approx([(4 / (25 + 3) + 5 / 5) / 2])
    assert distances(wanted, wanted).tolist() == [0]
    nothing = {name: torch.zeros(1, 2) for name in wanted}
    assert distances(nothing, nothing).tolist() == [0]


def images():
    """A network with batch normalisation of images alone, behind which a search succeeds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(512, 10)),
        )


@pytest.mark.slow
def test_statistics_lead_the_search_to_the_examples():
    model = images()
    client, groups = ClientModel(model, "cross-entropy", ONE_STEP), np.arange(16).reshape(4, 4)
    batches = [sent(model, ONE_STEP, rows) for rows in groups]
    box = np.full((1, 1, 1), X.min()), np.full((1, 1, 1), X.max())
    errors = []
    for weight in (0.0, 1.0):
        search = Search("cos", 80, variation=0.5, box=box, statistics=weight)
        found = invert(client, batches, (1, 8, 8), search, seed=3)
        again = invert(client, batches, (1, 8, 8), search, seed=3)
        for one, other, rows in zip(found, again, groups, strict=True):
            np.testing.assert_array_equal(one.x, other.x)
            errors.append(squared_error(one.x[pair_images(one.x, X[rows])], X[rows]).mean())
    assert np.mean(errors[4:]) < 0.5 * np.mean(errors[:4])


def test_the_objective_counts_the_statistics_by_their_logarithm():
    """The oracle: the buffers after a real training on what was found."""
    model, rows = network(), np.arange(3)
    client = ClientModel(model, "cross-entropy", ONE_STEP)
    batch = sent(model, ONE_STEP, rows)
    (found,) = invert(client, [batch], (1, 8, 8), Search("cos", 30, statistics=0.7))
    moved, statistics = client.follow(
        *client.split(batch.received), torch.from_numpy(found.x), soft_targets("cross-entropy", batch.labels, 10)
    )
    one, other = (
        np.concatenate([np.asarray(part.detach() if torch.is_tensor(part) else part).ravel() for part in arrays])
        for arrays in (moved.values(), batch.movement.values())
    )
    apart = np.square(one / np.linalg.norm(one) - other / np.linalg.norm(other)).sum() / 2
    shares = []
    for prefix in ("1.", "5."):
        mean, variance = batch.statistics[prefix + MEAN], batch.statistics[prefix + VARIANCE]
        wrong = (statistics[prefix + MEAN].numpy() - mean, statistics[prefix + VARIANCE].numpy() - variance)
        shares.append(np.square(wrong[0]).sum() / (np.square(mean).sum() + variance.sum()))
        shares.append(np.square(wrong[1]).sum() / np.square(variance).sum())
    counted = []
    for value in (apart, np.mean(shares)):
        counted.append(np.log(value / 0.006) if value < 0.006 else value / 0.006 - 1)
    assert found.objectives[0] == pytest.approx(counted[0] + 0.7 * counted[1], rel=1e-3)


@pytest.mark.parametrize("method", ["cos", "l2"])
def test_without_weight_or_without_statistics_the_search_is_the_same(method):
    model, rows = network(), np.arange(3)
    client, batch = ClientModel(model, "cross-entropy", ONE_STEP), sent(model, ONE_STEP, rows)
    untold = ReplyBatch(batch.received, batch.movement, 3, batch.labels)
    found = [
        invert(client, batches, (1, 8, 8), Search(method, 20, restarts=2, statistics=weight))[0]
        for batches, weight in (([batch], 0.0), ([untold], 0.0), ([untold], 1.0))
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].x, other.x)
        np.testing.assert_array_equal(found[0].objectives, other.objectives)


def test_batches_with_and_without_statistics_are_searched_each_by_what_is_known():
    model, rows = network(), np.arange(2)
    client, batch = ClientModel(model, "cross-entropy", ONE_STEP), sent(model, ONE_STEP, rows)
    untold = ReplyBatch(batch.received, batch.movement, 2, batch.labels)
    how = Search("cos", 20, statistics=1.0)
    mixed = invert(client, [untold, batch, untold], (1, 8, 8), how)
    (alone,) = invert(client, [untold], (1, 8, 8), how)
    np.testing.assert_allclose(mixed[0].objectives, alone.objectives, atol=1e-2)
    assert np.abs(mixed[1].objectives - mixed[0].objectives) > 0.1
