import copy
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.learning import LocalSGD, build_model, full_gradient, train_local
from fedattack.learning.soft_losses import soft_targets
from fedattack.threats.inversion.gradient_inversion import (
    ONE_GRADIENT,
    ClientModel,
    ReplyBatch,
    Search,
    draw_counts,
    rungs,
    total_variation,
)
from fedattack.threats.inversion.options import Order
from fedattack.threats.labels.rules import restore_labels
from tests.threats.inversion.inverted import invert
from tests.worlds.inversion import digits

X, Y = digits()
# The searches that need no table; test_table_rows.py has the other.
FREE = ("cos", "l2")


def network(hidden=32, **options):
    return build_model("mlp", input_shape=(1, 8, 8), classes=10, hidden=hidden, seed=1, **options)


def state(model):
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def replay(model, training, x, y, **options):
    client = ClientModel(model, "cross-entropy", training, **options)
    moved = client.movement(*client.split(state(model)), torch.from_numpy(x), soft_targets("cross-entropy", y, 10))
    return {name: value.detach().numpy() for name, value in moved.items()}


def gradients(model, rows):
    return [full_gradient(model, X[own], Y[own], seed=0).arrays for own in rows]


@pytest.mark.parametrize(
    "training",
    [
        LocalSGD(epochs=1, batch_size=0, lr=0.1),
        LocalSGD(epochs=4, batch_size=0, lr=0.1),
        LocalSGD(epochs=3, batch_size=0, lr=0.05, momentum=0.9, weight_decay=0.01),
    ],
)
def test_the_unrolled_steps_are_those_of_the_client(training):
    model = network()
    before = state(model)
    moved = replay(model, training, X[:3], Y[:3])
    train_local(model, X[:3], Y[:3], seed=0, **vars(training))
    for name, after in state(model).items():
        np.testing.assert_allclose(training.lr * moved[name], before[name] - after, atol=1e-6)


def test_mini_batches_are_taken_in_the_records_order():
    """Two steps of one record each are two trainings of one record, one after the other."""
    model, lr = network(), 0.1
    before = state(model)
    moved = replay(model, LocalSGD(epochs=1, batch_size=1, lr=lr), X[:2], Y[:2])
    for row in (0, 1):
        train_local(model, X[row : row + 1], Y[row : row + 1], epochs=1, batch_size=0, lr=lr, seed=0)
    for name, after in state(model).items():
        np.testing.assert_allclose(lr * moved[name], before[name] - after, atol=1e-6)


def test_a_step_of_fedsgd_is_the_gradient():
    model = network()
    (gradient,) = gradients(model, [np.arange(4)])
    moved = replay(model, ONE_GRADIENT, X[:4], Y[:4])
    for name, array in gradient.items():
        np.testing.assert_allclose(moved[name], array, atol=1e-6)


def test_batch_norm_takes_the_batch_as_in_training_and_the_model_stays_as_it_was():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    with torch.no_grad():
        model[1].running_mean.fill_(2.0)
    before, training = state(model), LocalSGD(epochs=2, batch_size=0, lr=0.1)
    moved, frozen = (replay(model, training, X[:4], Y[:4], running_statistics=how) for how in (False, True))
    for name, array in before.items():
        np.testing.assert_array_equal(model.state_dict()[name].numpy(), array)
    train_local(model, X[:4], Y[:4], seed=0, **vars(training))
    after = state(model)
    assert moved.keys() == {name for name, _ in model.named_parameters()}
    for name, array in moved.items():
        np.testing.assert_allclose(0.1 * array, before[name] - after[name], atol=1e-5)
    assert np.abs(moved["0.weight"] - frozen["0.weight"]).max() > 1e-2


def test_total_variation_is_the_mean_difference_of_neighbours():
    image = torch.tensor([[0.0, 1.0], [3.0, 1.0]]).reshape(1, 1, 2, 2)
    assert total_variation(image).item() == pytest.approx((3 + 0) / 2 + (1 + 2) / 2)
    assert total_variation(torch.ones(2, 3, 4, 4)).item() == 0
    assert total_variation(torch.rand(3, 7)).item() == 0
    assert total_variation(torch.rand(1, 1, 1, 1)).item() == 0


@pytest.mark.parametrize(("method", "iterations", "known"), [("cos", 300, True), ("l2", 150, True), ("l2", 300, False)])
def test_a_single_record_is_found_and_with_its_label(method, iterations, known):
    model = network(hidden=64)
    (gradient,) = gradients(model, [[3]])
    batch = ReplyBatch(state(model), gradient, 1, restore_labels(model, gradient, 1) if known else None)
    client = ClientModel(model, "cross-entropy", ONE_GRADIENT)
    (found,) = invert(client, [batch], (1, 8, 8), Search(method, iterations))
    assert found.y.tolist() == [Y[3]]
    assert np.abs(found.x - X[3]).mean() < 0.05


@pytest.mark.slow
def test_a_record_is_found_behind_several_local_steps():
    training = LocalSGD(epochs=5, batch_size=0, lr=0.3, momentum=0.5)
    model = network(hidden=64)
    before = state(model)
    train_local(model, X[3:4], Y[3:4], seed=0, **vars(training))
    moved = {name: (before[name] - after) / np.float32(training.lr) for name, after in state(model).items()}
    batch = ReplyBatch(before, moved, 1, restore_labels(model, moved, 1))
    errors = [
        np.abs(invert(ClientModel(model, "cross-entropy", how), [batch], (1, 8, 8), Search("cos", 300))[0].x - X[3])
        for how in (training, ONE_GRADIENT)
    ]
    assert errors[0].mean() < 1e-3
    assert errors[1].mean() > 5e-3, "a single gradient is not what the client sent"


@pytest.mark.slow
def test_the_target_of_a_regression_is_found():
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    x, y = np.random.default_rng(0).normal(size=(1, 6)).astype(np.float32), np.array([0.7], dtype=np.float32)
    gradient = full_gradient(model, x, y, loss="mse", seed=0).arrays
    batch = ReplyBatch(state(model), gradient, 1)
    (found,) = invert(ClientModel(model, "mse", ONE_GRADIENT), [batch], (6,), Search("l2", 500, restarts=3))
    np.testing.assert_allclose(found.x, x, atol=0.02)
    np.testing.assert_allclose(found.y, y[:, None], atol=0.02)


def test_batches_searched_together_are_found_as_alone():
    """Batches of different sizes, in groups by size and memory, and each with its own random start."""
    model, rows = network(), [[0], [1, 2], [3]]
    batches = [
        ReplyBatch(state(model), gradient, len(own), np.sort(Y[own]))
        for own, gradient in zip(rows, gradients(model, rows), strict=True)
    ]
    client, how = ClientModel(model, "cross-entropy", ONE_GRADIENT), Search("cos", 20, restarts=2)
    together = invert(client, batches, (1, 8, 8), how, seed=4)
    apart = invert(client, batches, (1, 8, 8), how, seed=4, memory=1)
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_allclose(one.objectives, other.objectives, atol=1e-4)
        np.testing.assert_allclose(one.x, other.x, atol=1e-3)
        assert len(set(one.objectives)) == 2, "restarts differ"
    assert [item.x.shape for item in together] == [(1, 1, 8, 8), (2, 1, 8, 8), (1, 1, 8, 8)]


def smooth():
    """A network of sigmoids, and the gradient of one image in 0 … 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(512, 10))
    image = (X[3:4] - X.min()) / np.ptp(X)
    gradient = full_gradient(model, image, Y[3:4], seed=0).arrays
    return ClientModel(model, "cross-entropy", ONE_GRADIENT), ReplyBatch(state(model), gradient, 1, Y[3:4]), image


BOX = np.zeros((1, 1, 1), dtype=np.float32), np.ones((1, 1, 1), dtype=np.float32)


def test_an_image_behind_a_smooth_network_is_found_in_few_steps():
    client, batch, image = smooth()
    (found,) = invert(client, [batch], (1, 8, 8), Search("cos", 150, variation=3.0, box=BOX))
    ratio = -10 * np.log10(np.square(found.x - image).mean())
    assert ratio > 40


@pytest.mark.parametrize("method", FREE)
def test_inputs_stay_in_the_box(method):
    client, batch, image = smooth()
    half = BOX[0], np.full((1, 1, 1), 0.5, dtype=np.float32)
    assert image.max() > 0.5, "the box is too small for the image, so that the search runs into its sides"
    (found,) = invert(client, [batch], (1, 8, 8), Search(method, 30, restarts=2, box=half))
    assert found.x.min() >= 0
    assert found.x.max() == 0.5
    (free,) = invert(client, [batch], (1, 8, 8), Search(method, 30))
    assert free.x.max() > 0.5


@pytest.mark.parametrize("method", FREE)
@pytest.mark.parametrize(("restarts", "iterations"), [(1, 60), (5, 60), (5, 8)])
def test_the_choice_is_that_of_the_least_objective(method, restarts, iterations):
    """The oracle: the objective of what was found, written out in double precision, for small and large distances."""
    client, batch, _ = smooth()
    (found,) = invert(client, [batch], (1, 8, 8), Search(method, iterations, restarts, 0.5, BOX))
    moved = replay(client.model, ONE_GRADIENT, found.x, batch.labels)
    one, other = (np.concatenate([part.ravel() for part in arrays.values()]) for arrays in (moved, batch.movement))
    one, other = one.astype(np.float64), other.astype(np.float64)
    length = np.linalg.norm(other) if method == "l2" else np.linalg.norm(one)
    distance = np.square(one / length - other / np.linalg.norm(other)).sum() / 2
    counted = np.log(distance / 0.006) if distance < 0.006 else distance / 0.006 - 1
    expected = counted + 0.5 * total_variation(torch.from_numpy(found.x)).item()
    assert len(found.objectives) == restarts
    assert found.objectives.min() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("method", FREE)
def test_weights_that_meet_padding_alone_are_left_out_and_what_was_sent_of_them_is_not(method):
    """The last layer sees one pixel. Noise on its outer weights belongs to the distance, though nothing explains it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *[nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(8)],
        *[nn.Conv2d(4, 6, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(6, 10)],
    )
    (gradient,) = gradients(model, [[3]])
    gradient["3.weight"] = gradient["3.weight"] + 0.01 * np.float32(np.random.default_rng(0).normal(size=(6, 4, 3, 3)))
    batch, found = ReplyBatch(state(model), gradient, 1, Y[3:4]), []
    for shape in (None, (1, 8, 8)):
        client = ClientModel(model, "cross-entropy", ONE_GRADIENT, shape=shape)
        found.extend(invert(client, [batch], (1, 8, 8), Search(method, 5, box=BOX)))
    assert sum(value.numel() for value in client.model.parameters()) == 40 + 4 * 6 + 6 + 70
    assert client.left_out(gradient) == pytest.approx(
        np.square(gradient["3.weight"]).sum() - np.square(gradient["3.weight"][:, :, 1, 1]).sum()
    )
    np.testing.assert_allclose(found[1].objectives, found[0].objectives, rtol=1e-5)
    np.testing.assert_allclose(found[1].x, found[0].x, atol=1e-4)
    decayed = ClientModel(model, "cross-entropy", LocalSGD(1, 0, 0.1, weight_decay=0.01), shape=(1, 8, 8))
    assert decayed.left_out(gradient) == 0, "a decay moves all weights"


def test_starts_share_the_evaluations_and_the_worse_half_is_given_up():
    assert rungs(300, 1) == [(1, 300)]
    assert rungs(300, 5) == [(5, 9), (3, 15), (2, 22), (1, 166)]
    for restarts in (1, 2, 3, 8):
        assert sum(alive * steps for alive, steps in rungs(1000, restarts)) == 1000
    assert rungs(2, 3) == [(3, 1), (2, 1), (1, 1)], "every start has a step at least"


@pytest.mark.parametrize(("method", "spare"), [("cos", 0), ("l2", 20)])
def test_movements_are_computed_as_often_as_was_allowed(method, spare, monkeypatch):
    """One start, and so one evaluation at a time; a line search may end later."""
    client, batch, _ = smooth()
    calls, follow = [], client.follow
    monkeypatch.setattr(client, "follow", lambda *given: (calls.append(1), follow(*given))[1])
    invert(client, [batch], (1, 8, 8), Search(method, 25, box=BOX))
    assert 25 <= len(calls) <= 25 + spare


def test_a_start_that_diverges_is_not_chosen():
    """Movements that are no numbers from the second start on, as its examples alone make them."""
    client, batch, _ = smooth()
    starts = np.random.default_rng((0, 0)).normal(size=(2, 1, 1, 8, 8))
    bad = float(np.clip(0.5 + starts[1] / 4, 0, 1).sum())
    follow = client.follow

    def broken(parameters, buffers, x, targets):
        moved, statistics = follow(parameters, buffers, x, targets)
        number = torch.where((x.sum() - bad).abs() < 1e-3, torch.nan, 1.0)
        return {name: value * number for name, value in moved.items()}, statistics

    client.follow = broken
    (found,) = invert(client, [batch], (1, 8, 8), Search("cos", 40, restarts=2, box=BOX))
    assert np.isnan(found.objectives).tolist() == [False, True]
    assert np.isfinite(found.x).all()


@pytest.mark.parametrize("method", FREE)
def test_the_scale_of_a_movement_does_not_matter_to_the_numbers(method):
    """A converged model's gradient of 1e-20 has squares that single precision cannot hold."""
    model = network()
    (gradient,) = gradients(model, [[3]])
    tiny = {name: array * np.float32(1e-25) for name, array in gradient.items()}
    client = ClientModel(model, "cross-entropy", ONE_GRADIENT)
    (found,) = invert(client, [ReplyBatch(state(model), tiny, 1, Y[3:4])], (1, 8, 8), Search(method, 3))
    assert np.isfinite(found.x).all()


def parts_of(training, examples, seed):
    """Return the parts of the order in which :func:`train_local` takes examples."""
    order = torch.Generator().manual_seed(seed)
    epochs = []
    for _ in range(training.epochs):
        batches = torch.randperm(examples, generator=order).split(training.batch_size)
        epochs.append(torch.stack([torch.eye(examples)[batch].mean(dim=0) for batch in batches]))
    return torch.stack(epochs)


@pytest.mark.parametrize("size", [2, 3])
def test_the_parts_of_the_true_order_give_what_the_client_sent(size):
    """The last mini-batch is shorter where five examples are taken by two or three."""
    model, training = network(), LocalSGD(epochs=3, batch_size=size, lr=0.1, momentum=0.5)
    client, before = ClientModel(model, "cross-entropy", training), state(model)
    targets = soft_targets("cross-entropy", Y[:5], 10)
    moved, _ = client.follow(
        *client.split(before), torch.from_numpy(X[:5]), targets, parts_of(training, examples=5, seed=7)
    )
    train_local(model, X[:5], Y[:5], seed=7, **vars(training))
    for name, after in state(model).items():
        np.testing.assert_allclose(0.1 * moved[name].detach().numpy(), before[name] - after, atol=1e-6)


def test_parts_are_shares_of_examples_and_of_mini_batches():
    sizes = torch.tensor([3, 3, 1])
    parts = draw_counts(torch.randn(4, 2, 3, 7, generator=torch.Generator().manual_seed(0)), sizes)
    torch.testing.assert_close(parts.sum(dim=-1), torch.ones(4, 2, 3))
    torch.testing.assert_close((parts * sizes[:, None]).sum(dim=-2), torch.ones(4, 2, 7), atol=0.02, rtol=0)
    true = torch.eye(3).repeat_interleave(sizes, dim=0).T
    torch.testing.assert_close(draw_counts(50 * true, sizes), true / sizes[:, None])
    torch.testing.assert_close(draw_counts(torch.zeros(3, 7), sizes), torch.full((3, 7), 1 / 7))


def shuffled(seed, training):
    """A network of sigmoids, and what a client of four examples sent that took them in an order of its own."""
    client, _, _ = smooth()
    client = ClientModel(client.model, "cross-entropy", training)
    rows = np.argsort(Y[:4])
    x, y, before = (X[:4][rows] - X.min()) / np.ptp(X), Y[:4][rows], state(client.model)
    model = copy.deepcopy(client.model)
    train_local(model, x, y, seed=seed, **vars(training))
    after = state(model)
    return client, x, ReplyBatch(before, {name: (before[name] - after[name]) / training.lr for name in before}, 4, y)


@pytest.mark.parametrize("method", FREE)
@pytest.mark.slow
def test_an_order_that_is_searched_for_explains_more_than_a_fixed_one(method):
    objectives = []
    for seed in range(4):
        client, _, batch = shuffled(seed, LocalSGD(epochs=2, batch_size=2, lr=0.05))
        for order in get_args(Order):
            how = Search(method, 60, restarts=2, variation=0.0, box=BOX, order=order)
            (found,) = invert(client, [batch], (1, 8, 8), how)
            (again,) = invert(client, [batch], (1, 8, 8), how)
            np.testing.assert_array_equal(found.x, again.x)
            objectives.append(found.objectives.min())
    fixed, searched = objectives[::2], objectives[1::2]
    assert np.mean(searched) < np.mean(fixed) - 0.5


@pytest.mark.parametrize(("size", "records", "can"), [(0, 8, False), (8, 8, False), (2, 8, True), (2, 9, False)])
def test_the_order_of_few_mini_batches_can_be_searched_for(size, records, can):
    assert ClientModel(network(), "cross-entropy", LocalSGD(1, size, 0.1)).can_order(records) is can


@pytest.mark.parametrize("method", FREE)
def test_where_there_is_one_mini_batch_no_order_is_searched_for(method):
    client, batch, _ = smooth()
    fixed, searched = (
        invert(client, [batch], (1, 8, 8), Search(method, 20, restarts=2, box=BOX, order=order))[0]
        for order in get_args(Order)
    )
    np.testing.assert_array_equal(fixed.x, searched.x)
