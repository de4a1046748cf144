"""Training on examples of more than one array, and their gradients, against plain loops of autograd."""

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.base.errors import ModelError
from fedattack.base.structured import leaves_of, pack, padded_alike
from fedattack.learning import LocalSGD, train_local
from fedattack.learning.attribute_updates import attribute_updates
from fedattack.learning.gradient_rows import GradientRows
from fedattack.learning.inputs import Inputs, examples_of, mean_loss_in, one_after_another
from fedattack.learning.layer_model import LayerModel
from fedattack.learning.losses import OWN, mean_loss
from fedattack.learning.shadows import GivenDropout, ShadowModel
from tests.worlds.texts import CLASSES, Classifier, Looking, OwnLoss, Tied, texts

COUNT = 12
MODELS = {
    "traced": lambda: Classifier(0.5),
    "looks into the mask": lambda: Looking(0.5),
    "sparse gradients": lambda: Looking(0.5, sparse=True),
    "its own loss": OwnLoss,
    "tied": Tied,
}


def made(name: str, seed: int = 0):
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=COUNT)
    x = texts(y, rng)
    if name == "its own loss":
        x = pack({**leaves_of(x), "labels": y})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = MODELS[name]().eval()
    return model, x, y, OWN if name == "its own loss" else "cross-entropy"


def plain_loss(model: nn.Module, x, y) -> torch.Tensor:
    """What a client writes by hand."""
    returned = model(**{name: torch.from_numpy(leaf) for name, leaf in leaves_of(x).items()})
    if "loss" in returned:
        return returned["loss"]
    return nn.functional.cross_entropy(returned["logits"], torch.from_numpy(y))


def plain_gradient(model: nn.Module, x, y) -> torch.Tensor:
    gradients = torch.autograd.grad(plain_loss(model, x, y), [*model.parameters()])
    return torch.cat([gradient.to_dense().reshape(-1) for gradient in gradients])


def shadow_of(model, x, loss) -> tuple[ShadowModel, torch.Tensor]:
    shadow = ShadowModel(model, x[0], mean_loss(loss))
    return shadow, shadow.flatten(dict(model.named_parameters())).detach()


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_examples_are_those_of_a_plain_loop(name):
    model, x, y, loss = made(name)
    shadow, start = shadow_of(model, x, loss)
    assert shadow.one_by_one == (name != "traced")
    found = shadow.record_gradients(
        start, examples_of(x), torch.from_numpy(y), generator=torch.Generator().manual_seed(4), chunk=5
    )
    draws = torch.Generator().manual_seed(4)
    masks = [shadow.draw_masks((len(part), 1), draws) for part in np.split(y, [5, 10])]
    model.train()
    for row in range(COUNT):
        for mask in masks[row // 5]:
            model.drop = GivenDropout(0.5, mask.shape[2:])
            model.drop.mask = mask[row % 5]
        expected = plain_gradient(model, x[row : row + 1], y[row : row + 1])
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "traced"])
@pytest.mark.parametrize("room", [0, 1e9], ids=["nothing kept", "all kept"])
def test_products_with_gradients_are_those_of_a_plain_loop(name, room):
    model, x, y, loss = made(name)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    shadow, start = shadow_of(model, x, loss)
    matrix = torch.stack([plain_gradient(model, x[row : row + 1], y[row : row + 1]) for row in range(COUNT)])
    inputs, labels = examples_of(x), torch.from_numpy(y)
    layers = LayerModel(shadow, start, inputs[:3], labels[:3])
    assert not layers.layers
    rows = GradientRows(layers, start, inputs, labels, torch.Generator, room=room, scratch=1e5)
    directions = torch.randn(3, shadow.size, generator=torch.Generator().manual_seed(2))
    for _ in range(2):
        found = torch.cat([block.project(directions) for _, block in rows.blocks()], dim=1)
        torch.testing.assert_close(found, directions @ matrix.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        shadow.mean_gradient(start, inputs, labels, generator=torch.Generator()),
        matrix.mean(dim=0),
        rtol=1e-4,
        atol=1e-6,
    )


TRAINING = LocalSGD(epochs=3, batch_size=0, lr=0.2, momentum=0.9, weight_decay=0.01)


def plainly_trained(model: nn.Module, x, y, how: LocalSGD) -> torch.Tensor:
    """All examples in each step, by PyTorch's own optimizer."""
    with torch.random.fork_rng(devices=[]):
        local = type(model)()
    local.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(local.parameters(), how.lr, how.momentum, weight_decay=how.weight_decay)
    for _ in range(how.epochs):
        optimizer.zero_grad()
        plain_loss(local, x, y).backward()
        optimizer.step()
    return torch.cat([value.detach().reshape(-1) for value in local.parameters()])


@pytest.mark.parametrize("name", ["its own loss", "tied"])
def test_training_is_that_of_a_plain_loop(name):
    model, x, y, loss = made(name)
    shadow, start = shadow_of(model, x, loss)
    rows = np.array([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]])
    updates = shadow.updates(
        start, examples_of(x)[torch.as_tensor(rows)], torch.from_numpy(y[rows]), TRAINING, generator=torch.Generator()
    )
    for client, own in enumerate(rows):
        expected = plainly_trained(model, x[own], y[own], TRAINING)
        torch.testing.assert_close(updates[client], expected - start, rtol=1e-3, atol=1e-5)
        local, *_ = made(name)
        done = train_local(local, x[own], y[own], **vars(TRAINING), loss=loss, seed=0)
        assert done.steps == 3
        found = torch.cat([value.detach().reshape(-1) for value in local.parameters()])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_updates_of_one_value_each_are_those_of_training_on_their_examples():
    model, x, y, _ = made("tied")
    start = {name: value.detach().numpy() for name, value in model.named_parameters()}
    codes = np.arange(COUNT) % 2
    made_up = attribute_updates(model, start, x, y, codes, TRAINING, clients=4, records=3, seed=1)
    for update, rows, value in zip(made_up, made_up.rows, made_up.values, strict=True):
        assert {*codes[rows]} == {value}
        expected = plainly_trained(model, x[rows], y[rows], TRAINING)
        found = torch.cat([torch.from_numpy(update[name] + start[name]).reshape(-1) for name in start])
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_a_model_that_draws_its_own_dropout_gives_the_same_updates_for_the_same_generator():
    class Drawing(Looking):
        def forward(self, input_ids, attention_mask):
            value = nn.functional.dropout(self.drop(self.pooled(input_ids, attention_mask)), 0.3)
            return {"logits": self.out(value)}

    _, x, y, _ = made("traced")
    shadow, start = shadow_of(Drawing(0.5), x, "cross-entropy")
    inputs, labels = examples_of(x)[None], torch.from_numpy(y)[None]
    found = []
    for _ in range(2):
        torch.rand(3)
        found.append(shadow.updates(start, inputs, labels, TRAINING, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(*found)


def test_first_axes_of_all_tensors_are_indexed_together():
    _, x, _, _ = made("traced")
    inputs = examples_of(x)
    assert isinstance(inputs, Inputs)
    rows = torch.tensor([[3, 1], [0, 2]])
    for place, leaf in leaves_of(x).items():
        np.testing.assert_array_equal(inputs[rows].leaves[place], leaf[rows.numpy()])
        np.testing.assert_array_equal(
            inputs[:2].repeat_interleave(3, dim=0).leaves[place], np.repeat(leaf[:2], 3, axis=0)
        )
        np.testing.assert_array_equal(
            one_after_another(inputs[:2], inputs[5:]).leaves[place], leaf[[0, 1, *range(5, 12)]]
        )
    assert inputs.shape[:1] == (COUNT,)
    assert inputs.numel() == sum(leaf.size for leaf in leaves_of(x).values())


def test_padding_is_made_alike():
    short = pack({"input_ids": np.array([[5, 6], [7, 0]]), "attention_mask": np.array([[1, 1], [1, 0]])})
    long = pack({"input_ids": np.array([[1, 2, 3]]), "attention_mask": np.array([[1, 1, 1]])})
    one, other = padded_alike(short, long)
    assert one.dtype == other.dtype == long.dtype
    assert one["input_ids"].tolist() == [[5, 6, 0], [7, 0, 0]]
    assert one["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert other.tobytes() == long.tobytes()
    with pytest.raises(ValueError, match="examples of one structure"):
        padded_alike(short, np.zeros((2, 3), np.float32))


def test_a_model_without_the_loss_that_it_is_said_to_have_is_refused():
    outputs, labels = torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ModelError, match="returns no loss of its own; name the loss"):
        mean_loss_in(outputs, labels, mean_loss(OWN))
    assert mean_loss_in((torch.tensor(2.5), outputs), labels, mean_loss(OWN)) == 2.5
    assert mean_loss_in((torch.tensor(2.5), outputs), labels, mean_loss("cross-entropy")) == pytest.approx(np.log(3))
