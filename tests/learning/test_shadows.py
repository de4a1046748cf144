import numpy as np
import pytest
import torch
from torch import nn

from fedattack.base.errors import DataError
from fedattack.learning import LocalSGD, build_model, train_local
from fedattack.learning.losses import mean_loss
from fedattack.learning.shadows import GivenDropout, ShadowModel

SHAPE = (1, 28, 28)
TRAININGS = {
    "one step": LocalSGD(epochs=1, batch_size=10, lr=0.1),
    "steps and a rest": LocalSGD(epochs=1, batch_size=4, lr=0.1),
    "epochs, momentum, decay": LocalSGD(epochs=3, batch_size=4, lr=0.05, momentum=0.9, weight_decay=0.01),
    "all at once": LocalSGD(epochs=2, batch_size=0, lr=0.1),
    "Adam": LocalSGD(epochs=2, batch_size=4, lr=0.002, weight_decay=0.01, optimizer="Adam"),
    "AdamW": LocalSGD(epochs=2, batch_size=4, lr=0.002, weight_decay=0.01, optimizer="AdamW"),
}


@pytest.fixture(scope="module")
def data():
    draw = torch.Generator().manual_seed(0)
    return torch.rand((7, 10, *SHAPE), generator=draw), torch.randint(10, (7, 10), generator=draw)


@pytest.fixture(scope="module")
def shadow(data):
    model = build_model("lenet-mnist", input_shape=SHAPE, classes=10, seed=1)
    return ShadowModel(model, data[0][0, 0].numpy(), mean_loss("cross-entropy"))


@pytest.fixture(scope="module")
def start(shadow):
    model = build_model("lenet-mnist", input_shape=SHAPE, classes=10, seed=2)
    return shadow.flatten(dict(model.named_parameters()))


def plain_loop(shadow, start, x, y, training, generator, maximise=False):
    """Train one client after the other with torch's own optimiser, with the draws that the batched twin makes."""
    steps = list(shadow.schedule(len(x), x.shape[1], training, generator))
    updates = []
    for client in range(len(x)):
        model = shadow.model
        with torch.no_grad():
            for name, value in shadow.unflatten(start).items():
                model.get_parameter(name).copy_(value)
        dropouts = [part for part in model.modules() if isinstance(part, GivenDropout)]
        options = {"momentum": training.momentum} if training.optimizer == "SGD" else {}
        optimizer = getattr(torch.optim, training.optimizer)(
            model.parameters(), lr=training.lr, weight_decay=training.weight_decay, maximize=maximise, **options
        )
        for step in steps:
            for dropout, mask in zip(dropouts, step.masks, strict=True):
                dropout.mask = mask[client]
            rows = step.rows[client]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[client, rows]), y[client, rows]).backward()
            optimizer.step()
        updates.append(shadow.flatten(dict(model.named_parameters())).detach() - start)
        for dropout in dropouts:
            dropout.mask = None
    return torch.stack(updates)


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
@pytest.mark.parametrize("maximise", [False, True])
def test_batched_training_is_the_plain_loop_with_dropout(shadow, start, data, training, maximise):
    got = shadow.updates(start, *data, training, generator=torch.Generator().manual_seed(3), maximise=maximise)
    expected = plain_loop(shadow, start, *data, training, torch.Generator().manual_seed(3), maximise)
    assert torch.linalg.norm(expected, dim=1).min() > 1e-3
    # Single precision, amplified by up to three epochs of ascent with momentum: how much depends on the processor.
    if training.optimizer == "SGD":
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)
        return
    # Adam's steps are of one length: where a gradient is next to 0, rounding decides their sign, and ascent amplifies
    # that. How much is measured: by the same loop from a start that differs in the last digit.
    beside = plain_loop(shadow, start * (1 + 1e-7), *data, training, torch.Generator().manual_seed(3), maximise)
    by_rounding = torch.linalg.norm(beside - expected)
    assert by_rounding < 0.05 * torch.linalg.norm(expected)
    assert torch.linalg.norm(got - expected) < 3 * by_rounding + 1e-3 * torch.linalg.norm(expected)


def test_shadow_clients_train_as_clients_do():
    """Without dropout and in one step nothing is drawn, and the client's own training gives the same update."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(3, 8, 20)).astype(np.float32), draw.integers(4, size=(3, 8))
    model = build_model("mlp", input_shape=(20,), classes=4, seed=5)
    shadow = ShadowModel(model, x[0, 0], mean_loss("cross-entropy"))
    start = shadow.flatten(dict(model.named_parameters())).detach()
    training = LocalSGD(epochs=2, batch_size=0, lr=0.1, momentum=0.5, weight_decay=0.1)
    got = shadow.updates(start, torch.tensor(x), torch.tensor(y), training, generator=torch.Generator())
    for client in range(3):
        other = build_model("mlp", input_shape=(20,), classes=4, seed=5)
        train_local(other, x[client], y[client], seed=1, **vars(training))
        expected = shadow.flatten(dict(other.named_parameters())).detach() - start
        torch.testing.assert_close(got[client], expected, rtol=1e-4, atol=1e-7)


def test_dropout_is_on_and_its_masks_have_the_right_mean(shadow, start, data):
    """Updates of the same records differ, as a client's do, and each mask keeps one in 1/(1 − p)."""
    x, y = data[0][:1].expand(4, -1, *SHAPE), data[1][:1].expand(4, -1)
    updates = shadow.updates(start, x, y, TRAININGS["one step"], generator=torch.Generator().manual_seed(0))
    assert not torch.allclose(updates[0], updates[1], rtol=1e-2)
    masks = next(shadow.schedule(50, 10, TRAININGS["one step"], torch.Generator().manual_seed(0))).masks
    assert [mask.unique().tolist() for mask in masks] == [[0.0, 2.0]] * 2
    assert all(abs(float(mask.mean()) - 1) < 0.02 for mask in masks)


def test_the_same_generator_gives_the_same_updates_and_chunks_do_not_mix_clients(shadow, start, data):
    training = LocalSGD(epochs=1, batch_size=5, lr=0.1)
    one = shadow.updates(start, *data, training, generator=torch.Generator().manual_seed(3))
    two = shadow.updates(start, *data, training, generator=torch.Generator().manual_seed(3))
    assert torch.equal(one, two)
    first = shadow.updates(
        start, data[0][:3], data[1][:3], training, generator=torch.Generator().manual_seed(3), chunk=3
    )
    parts = shadow.updates(start, *data, training, generator=torch.Generator().manual_seed(3), chunk=3)
    torch.testing.assert_close(parts[:3], first)


def test_one_step_is_the_mean_of_record_gradients(data):
    """Without dropout an update of one step is −η times the mean of the records' gradients, to float precision."""
    model = build_model("sia-mlp", input_shape=SHAPE, classes=10, seed=1)
    shadow = ShadowModel(model, data[0][0, 0].numpy(), mean_loss("cross-entropy"))
    start = shadow.flatten(dict(model.named_parameters())).detach()
    generator = torch.Generator()
    gradients = shadow.record_gradients(start, data[0].flatten(0, 1), data[1].flatten(), generator=generator, chunk=9)
    training = LocalSGD(epochs=1, batch_size=10, lr=0.3)
    updates = shadow.updates(start, *data, training, generator=generator)
    torch.testing.assert_close(updates, -0.3 * gradients.view(7, 10, -1).mean(dim=1), rtol=1e-3, atol=1e-7)
    mean = shadow.mean_gradient(start, data[0][0], data[1][0], generator=generator)
    torch.testing.assert_close(mean, gradients[:10].mean(dim=0), rtol=1e-3, atol=1e-7)


def test_record_gradients_are_autograds_under_their_masks(shadow, start, data):
    x, y = data[0][0], data[1][0]
    got = shadow.record_gradients(start, x, y, generator=torch.Generator().manual_seed(8))
    masks = shadow.draw_masks((len(y), 1), torch.Generator().manual_seed(8))
    dropouts = [part for part in shadow.model.modules() if isinstance(part, GivenDropout)]
    with torch.no_grad():
        for name, value in shadow.unflatten(start).items():
            shadow.model.get_parameter(name).copy_(value)
    for record in range(len(y)):
        for dropout, mask in zip(dropouts, masks, strict=True):
            dropout.mask = mask[record]
        loss = nn.functional.cross_entropy(shadow.model(x[record : record + 1]), y[record : record + 1])
        expected = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(shadow.model.parameters()))])
        torch.testing.assert_close(got[record], expected, rtol=1e-4, atol=1e-7)
    for dropout in dropouts:
        dropout.mask = None


def test_batch_norm_uses_the_batch_and_is_not_separable():
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    shadow = ShadowModel(model, np.zeros(5, dtype=np.float32), mean_loss("cross-entropy"))
    assert not shadow.separable
    assert isinstance(model[1].running_mean, torch.Tensor), "the caller's model keeps its statistics"
    x, y = torch.rand((2, 6, 5)), torch.randint(3, (2, 6))
    start = shadow.flatten(dict(model.named_parameters())).detach()
    training = LocalSGD(epochs=1, batch_size=0, lr=0.1)
    got = shadow.updates(start, x, y, training, generator=torch.Generator())
    train_local(model, x[1], y[1], seed=0, **vars(training))
    torch.testing.assert_close(
        got[1], shadow.flatten(dict(model.named_parameters())).detach() - start, rtol=1e-3, atol=1e-6
    )


def test_dropout_that_is_met_twice_still_drops():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.drop = nn.Linear(5, 5), nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(self.layer(self.drop(x)))

    shadow = ShadowModel(Twice(), np.ones(5, dtype=np.float32), mean_loss("cross-entropy"))
    assert shadow.random
    x, y = torch.ones((2, 6, 5)), torch.zeros((2, 6), dtype=torch.int64)
    start = torch.linspace(-1, 1, shadow.size)
    updates = shadow.updates(start, x, y, LocalSGD(epochs=1, batch_size=0, lr=0.1), generator=torch.Generator())
    assert not torch.allclose(updates[0], updates[1])


def test_clients_without_records_are_refused(shadow, start):
    with pytest.raises(DataError, match="at least one example"):
        shadow.updates(
            start, torch.zeros((2, 0, *SHAPE)), torch.zeros((2, 0)), TRAININGS["one step"], generator=torch.Generator()
        )


class Scaled(nn.Module):
    """A model with a single number among its parameters."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.scale * self.linear(x)


def test_a_parameter_may_be_a_single_number():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn((2, 4, 3), generator=draw), torch.randint(2, (2, 4), generator=draw)
    shadow = ShadowModel(Scaled(), x[0, 0].numpy(), mean_loss("cross-entropy"))
    start = shadow.flatten(dict(Scaled().named_parameters()))
    gradients = shadow.record_gradients(start, x[0], y[0], generator=draw)
    updates = shadow.updates(start, x, y, LocalSGD(epochs=1, batch_size=0, lr=0.1), generator=draw)
    torch.testing.assert_close(updates[0], -0.1 * gradients.mean(dim=0))
