"""What a tape says of an example is what the loop's own loss says of it alone."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from fedattack.base.errors import DataError
from fedattack.witness.tape import Tape, leaves_for, read_tape

COUNT, SIZE, FEATURES, CLASSES = 12, 4, 6, 3
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(COUNT, FEATURES, generator=GENERATOR)
Z = torch.randn(COUNT, FEATURES, generator=GENERATOR)
Y = torch.randint(CLASSES, (COUNT,), generator=GENERATOR)
V = torch.randn(COUNT, generator=GENERATOR)

Batch = dict[str, Tensor]
Loss = Callable[[Any, Batch], Tensor]


@dataclass
class Toy:
    """A loop that trains ``model`` by ``loss``, and where the parts of an example stand in its step."""

    model: nn.Module
    loss: Loss
    places: dict[str, str]
    data: Batch
    differentiate: Callable[[Tensor], object] = Tensor.backward
    tolerance: float = 1e-5
    together: bool = True
    # A term of the loss that no example decides; its gradient is that of none.
    common: Callable[[nn.Module], Any] = lambda model: 0.0

    def run(self) -> None:
        self.model.train()
        for start in range(0, COUNT, SIZE):
            batch = {name: value[start : start + SIZE] for name, value in self.data.items()}
            self.differentiate(self.loss(self.model, batch))

    def leaves(self) -> dict[str, np.ndarray]:
        return {place: self.data[name].numpy() for place, name in self.places.items()}

    def alone(self, row: int) -> Tensor:
        self.model.eval()
        return self.loss(self.model, {name: value[row : row + 1] for name, value in self.data.items()})


A, B = slice(0, 3), slice(3, 6)


def two_layers(*between: nn.Module, out: int = CLASSES) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(FEATURES, 8), *between, nn.ReLU(), nn.Linear(8, out))


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


CRITERION, WEIGHTED = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))
CLASSIFIED = {"0": "x", "met0": "y"}
LABELLED = {"x": X, "y": Y}


def classifier(loss: Loss = cross_entropy, *between: nn.Module, **options) -> Toy:
    return Toy(two_layers(*between), loss, CLASSIFIED, LABELLED, **options)


def with_statistics() -> Toy:
    toy = classifier(cross_entropy, nn.BatchNorm1d(8))
    with torch.no_grad():
        toy.model(X)
        toy.model[1].running_mean.add_(0.3)
    return toy


def tokens() -> Toy:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    ids = torch.randint(1, 11, (COUNT, 5), generator=torch.Generator().manual_seed(3))
    labels = ids.clone()
    labels[:, 3:] = -100

    def loss(model, batch):
        return F.cross_entropy(model(batch["ids"]).view(-1, 11), batch["labels"].view(-1), ignore_index=-100)

    return Toy(model, loss, {"0": "ids", "met0": "labels"}, {"ids": ids, "labels": labels})


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.kind, self.value = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES), nn.Linear(8, 1)

    def forward(self, x):
        hidden = self.body(x).relu()
        return {"kind": self.kind(hidden), "value": self.value(hidden)[:, 0]}


def two_heads() -> Toy:
    def loss(model, batch):
        out = model(batch["x"])
        return F.cross_entropy(out["kind"], batch["y"]) + 0.5 * F.mse_loss(out["value"], batch["v"])

    return Toy(TwoHeads(), loss, {"0": "x", "met0": "y", "met1": "v"}, {"x": X, "y": Y, "v": V})


def siamese() -> Toy:
    def loss(model, batch):
        near = F.pairwise_distance(model(batch["x"]), model(batch["z"]))
        same = (batch["y"] > 0).float()
        return (same * near**2 + (1 - same) * F.relu(2 - near) ** 2).mean()

    same = (Y > 0).float()
    data = {"x": X, "z": Z, "y": Y, "same": same, "other": 1 - same}
    return Toy(two_layers(), loss, {"0": "x", "call1/0": "z", "met0": "same", "met1": "other"}, data)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(FEATURES, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def recurrent() -> Toy:
    x = torch.randn(COUNT, 7, FEATURES, generator=torch.Generator().manual_seed(4))
    return Toy(Recurrent(), cross_entropy, CLASSIFIED, {"x": x, "y": Y}, together=False)


def nearness(model):
    return 0.05 * sum(((one - torch.full_like(one, 0.1)) ** 2).sum() for one in model.parameters())


def proximal(model, batch):
    return cross_entropy(model, batch) + nearness(model)


def scaled(model, batch):
    """Cosines and a temperature, both computed of parameters outside of the model."""
    classes = F.normalize(model[2].weight[:, :CLASSES])
    return F.cross_entropy(model(batch["x"]) @ classes * model[2].bias[0].exp(), batch["y"])


def mixed(model, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return cross_entropy(model, batch)


def halved() -> Toy:
    def loss(model, batch):
        return F.cross_entropy(model(batch["x"].bfloat16()).float(), batch["y"])

    toy = classifier(loss, tolerance=1e-2)
    toy.model.bfloat16()
    return toy


def all_backward(loss):
    torch.autograd.backward([loss])


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = two_layers(out=8), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False))


TOYS = {
    "classifier": classifier,
    "criterion": lambda: classifier(lambda model, batch: CRITERION(model(batch["x"]), batch["y"])),
    "weights of classes": lambda: classifier(lambda model, batch: WEIGHTED(model(batch["x"]), batch["y"])),
    "autoencoder": lambda: Toy(
        two_layers(out=FEATURES),
        lambda model, batch: F.mse_loss(model(batch["x"]), batch["x"]),
        {"0": "x", "met0": "x"},
        {"x": X},
    ),
    "masked sequence": tokens,
    "two heads": two_heads,
    "siamese": siamese,
    "dropout": lambda: classifier(cross_entropy, nn.Dropout(0.5)),
    "batch norm": with_statistics,
    "LSTM": recurrent,
    "checkpoint": lambda: Toy(Checkpointed(), cross_entropy, CLASSIFIED, LABELLED),
    "proximal term": lambda: classifier(proximal, common=nearness),
    "functions of parameters": lambda: classifier(scaled),
    "accumulated": lambda: classifier(lambda model, batch: cross_entropy(model, batch) / 3),
    "mixed precision": lambda: classifier(mixed, tolerance=1e-2),
    "bfloat16": halved,
    "torch.autograd.backward": lambda: classifier(differentiate=all_backward),
}


@pytest.mark.parametrize("name", TOYS)
def test_losses_and_gradients_are_those_of_an_example_alone(name):
    toy = TOYS[name]()
    tape = read_tape(toy.run)
    leaves = toy.leaves()
    assert {*leaves} == {*tape.rows.dtype.names}
    tape.prepare(leaves)
    expected = [toy.alone(row).item() for row in range(COUNT)]
    np.testing.assert_allclose(tape.losses_of(leaves), expected, rtol=toy.tolerance, atol=toy.tolerance)
    parameters = [*toy.model.parameters()]
    for row in (0, COUNT - 1):
        gradients = torch.autograd.grad(toy.alone(row) - toy.common(toy.model), parameters)
        flat = torch.cat([one.reshape(-1).float() for one in gradients])
        given = tape.gradient_of(leaves, row, parameters)
        np.testing.assert_allclose(given, flat, rtol=toy.tolerance, atol=toy.tolerance)


# PyTorch plays no checkpoint where it differentiates functions, and many gradients of bfloat16 are rounded otherwise.
ALONE = {"checkpoint": "hooks", "bfloat16": "computed together, they differ"}


@pytest.mark.parametrize("name", TOYS)
def test_gradients_of_many_examples_are_those_of_each(name, monkeypatch):
    toy = TOYS[name]()
    tape, leaves = read_tape(toy.run), toy.leaves()
    parameters = [*toy.model.parameters()]
    tape.prepare(leaves)
    alone = [tape.gradient_of(leaves, row, parameters) for row in range(COUNT)]
    np.testing.assert_allclose(joined(tape, leaves, parameters), torch.stack(alone), rtol=1e-5, atol=1e-6)
    assert ALONE.get(name, "") in tape.why_alone
    assert bool(tape.why_alone) == (name in ALONE)
    # Of a part of the parameters, and where few examples fit into memory.
    monkeypatch.setattr("fedattack.witness.tape._FEWEST", 1)
    monkeypatch.setattr("fedattack.witness.tape._TOGETHER", 30_000)
    some = parameters[1:2]
    of_some = [tape.gradient_of(leaves, row, some) for row in range(COUNT)]
    np.testing.assert_allclose(joined(tape, leaves, some), torch.stack(of_some), rtol=1e-5, atol=1e-6)


def joined(tape: Tape, leaves: dict[str, np.ndarray], parameters: list[Tensor]) -> Tensor:
    """All gradients that a tape computes, (examples, numbers)."""
    return torch.cat([torch.cat(block, dim=1) for block in tape.gradients_of(leaves, parameters)])


class Doubled(torch.autograd.Function):
    """A function of the app's own, as they were written before PyTorch could vectorise them."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class OnItsOwn(nn.Module):
    """Multiplies by what it keeps of its weight under another name, which is no parameter of its state."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.kept = [self.layer.weight]

    def forward(self, x):
        return self.layer(x) + x @ self.kept[0].T


class Path(nn.Module):
    """Takes another path with some examples than with others."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.one(x) if x[0, 0] > 0 else self.other(x)


class Written(nn.Module):
    """Writes into a tensor that is there before."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        out = torch.zeros(len(x), CLASSES)
        out[:, :] = self.layer(x)
        return out


class DoublesItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return Doubled.apply(self.layer(x))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (DoublesItself, "setup_context"),
        (Path, "data-dependent control flow"),
        (Written, "inplace"),
        (OnItsOwn, "computed together, they differ"),
    ],
)
def test_what_pytorch_cannot_compute_together_is_computed_one_by_one_and_said(make, why):
    torch.manual_seed(2)
    toy = Toy(make(), cross_entropy, CLASSIFIED, LABELLED)
    tape, leaves = read_tape(toy.run), toy.leaves()
    parameters = [*toy.model.parameters()]
    tape.prepare(leaves, adds_up=True)
    expected = [tape.gradient_of(leaves, row, parameters) for row in range(COUNT)]
    assert torch.equal(joined(tape, leaves, parameters), torch.stack(expected))
    assert why in tape.why_alone


def test_what_fails_later_goes_on_one_by_one(monkeypatch):
    toy = classifier()
    tape, leaves = read_tape(toy.run), toy.leaves()
    parameters = [*toy.model.parameters()]
    tape.prepare(leaves)
    compute = tape._gradients_together

    def fail_after_first_block(leaves, rows, parameters):
        if rows[0] >= SIZE:
            raise ValueError("no more")
        return compute(leaves, rows, parameters)

    monkeypatch.setattr(tape, "_gradients_together", fail_after_first_block)
    monkeypatch.setattr(tape, "_is_same_together", lambda *_: True)
    monkeypatch.setattr("fedattack.witness.tape._CHUNK", SIZE)
    monkeypatch.setattr("fedattack.witness.tape._FEWEST", 1)
    expected = [tape.gradient_of(leaves, row, parameters) for row in range(COUNT)]
    np.testing.assert_allclose(joined(tape, leaves, parameters), torch.stack(expected), rtol=1e-5, atol=1e-7)
    assert tape.why_alone == "ValueError: no more"


def test_gradients_that_no_memory_holds_together_are_computed_one_by_one(monkeypatch):
    toy = classifier()
    tape, leaves = read_tape(toy.run), toy.leaves()
    parameters = [*toy.model.parameters()]
    tape.prepare(leaves)
    monkeypatch.setattr("fedattack.witness.tape._TOGETHER", 0)
    blocks = [*tape.gradients_of(leaves, parameters)]
    assert [len(block[0]) for block in blocks] == [1] * COUNT
    assert [piece.shape[1] for piece in blocks[0]] == [parameter.numel() for parameter in parameters]
    assert tape.why_alone == ""


def test_of_an_output_that_is_squeezed_there_are_gradients_of_one_example_too():
    """As MOON's models do: of a batch of one PyTorch computes a loss, and no gradient."""
    toy = classifier(lambda model, batch: F.cross_entropy(model(batch["x"]).squeeze(), batch["y"]))
    tape, leaves, parameters = read_tape(toy.run), toy.leaves(), [*toy.model.parameters()]
    tape.prepare(leaves)
    assert (tape.copies, tape.copies_learned) == (1, SIZE)
    gradients = torch.autograd.grad(F.cross_entropy(toy.model(X[:1]), Y[:1]), parameters)
    flat = torch.cat([one.reshape(-1) for one in gradients])
    np.testing.assert_allclose(tape.gradient_of(leaves, 0, parameters), flat, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["classifier", "two heads", "LSTM", "dropout"])
def test_many_examples_are_played_at_once_where_pytorch_can(name):
    toy = TOYS[name]()
    tape = read_tape(toy.run)
    tape.prepare(toy.leaves())
    assert (tape.copies, tape.together) == (1, toy.together)


def test_a_loop_that_asks_for_gradients_without_backward_is_read():
    toy = classifier()
    toy.differentiate = lambda loss: torch.autograd.grad(loss, [*toy.model.parameters()])
    tape = read_tape(toy.run)
    tape.prepare(toy.leaves())
    expected = [toy.alone(row).item() for row in range(COUNT)]
    np.testing.assert_allclose(tape.losses_of(toy.leaves()), expected, rtol=1e-5)


def test_the_batches_of_a_loader_are_steps():
    model = two_layers()

    def run():
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=SIZE):
            CRITERION(model(x), y).backward()

    tape = read_tape(run)
    leaves = {"0": X.numpy(), "met0": Y.numpy()}
    tape.prepare(leaves)
    expected = F.cross_entropy(model(X), Y, reduction="none").detach().numpy()
    np.testing.assert_allclose(tape.losses_of(leaves), expected, rtol=1e-5)
    assert tape.rows["0"].tolist() == X[:SIZE].tolist()
    assert tape.rows["met0"].tolist() == Y[:SIZE].tolist()


class Detector(nn.Module):
    """Takes images and boxes in lists, as torchvision's, and returns losses itself in training alone."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, images, targets=None):
        guesses = [self.body(image.mean((1, 2))) for image in images]
        if not self.training:
            return [{"boxes": guess[None]} for guess in guesses]
        losses = [((guess - one["boxes"]) ** 2).mean() for guess, one in zip(guesses, targets, strict=True)]
        kinds = [guess[one["labels"]].sum() for guess, one in zip(guesses, targets, strict=True)]
        return {"boxes": torch.stack(losses).mean(), "kinds": torch.stack(kinds).mean()}


def test_a_detector_with_ragged_boxes_whose_losses_are_inside_of_the_model():
    torch.manual_seed(5)
    model = Detector()
    images = [torch.randn(4, 5, 5) for _ in range(SIZE)]
    targets = []
    for boxes in (1, 3, 2, 5):
        targets.append({"boxes": torch.rand(boxes, 4), "labels": torch.randint(4, (boxes,))})

    def run():
        losses = model(images, targets)
        sum(losses.values()).backward()

    tape = read_tape(run)
    leaves = {name: tape.rows[name] for name in tape.rows.dtype.names}
    tape.prepare(leaves)
    expected = []
    for image, target in zip(images, targets, strict=True):
        expected.append(sum(model([image], [target]).values()).item())
    np.testing.assert_allclose(tape.losses_of(leaves), expected, rtol=1e-5)


def test_statistics_that_nobody_sends_are_those_of_the_examples():
    toy = classifier(cross_entropy, nn.BatchNorm1d(8))
    tape = read_tape(toy.run)
    tape.prepare(toy.leaves())
    tape.estimate_statistics(toy.leaves(), [toy.model[1]])
    hidden = toy.model[0](X).detach()
    assert toy.model[1].running_mean.numpy() == pytest.approx(hidden.mean(0).numpy(), abs=1e-5)
    assert (toy.model[1].momentum, toy.model[1].training) == (0.1, False)
    expected = [toy.alone(row).item() for row in range(COUNT)]
    np.testing.assert_allclose(tape.losses_of(toy.leaves()), expected, rtol=1e-5)


def test_how_the_loop_made_its_weights_is_no_part_of_a_step():
    made = []

    def run():
        model = nn.Linear(FEATURES, CLASSES)
        nn.init.xavier_uniform_(model.weight)
        model.load_state_dict({"weight": torch.ones(CLASSES, FEATURES), "bias": torch.arange(3.0)})
        model.bias.data.mul_(2)
        made.append(model)
        F.cross_entropy(model(X), Y).backward()

    tape = prepared(run)
    assert made[0].weight.tolist() == [[1.0] * FEATURES] * CLASSES
    assert made[0].bias.tolist() == [0.0, 2.0, 4.0]
    expected = F.cross_entropy(made[0](X), Y, reduction="none").detach().numpy()
    np.testing.assert_allclose(tape.losses_of({"0": X.numpy(), "met0": Y.numpy()}), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["classifier", "functions of parameters"])
def test_weights_may_be_put_into_the_models(name):
    toy = TOYS[name]()
    tape = read_tape(toy.run)
    tape.prepare(toy.leaves())
    before = tape.losses_of(toy.leaves())
    assert [name for name, _ in tape.state()] == [*toy.model.state_dict()]
    with torch.no_grad():
        for _, place in tape.state():
            place.mul_(2)
    after = tape.losses_of(toy.leaves())
    assert not np.allclose(before, after)
    np.testing.assert_allclose(after, [toy.alone(row).item() for row in range(COUNT)], rtol=1e-5)


def test_a_term_that_no_example_decides_stays_as_it_was_read():
    toy = TOYS["proximal term"]()
    tape = read_tape(toy.run)
    tape.prepare(toy.leaves())
    before = nearness(toy.model).item()
    with torch.no_grad():
        for _, place in tape.state():
            place.mul_(2)
    expected = [(toy.alone(row) - nearness(toy.model)).item() + before for row in range(COUNT)]
    np.testing.assert_allclose(tape.losses_of(toy.leaves()), expected, rtol=1e-5)


def prepared(run: Callable[[], object], leaves: dict[str, np.ndarray] | None = None) -> Tape:
    tape = read_tape(run)
    tape.prepare(leaves or {name: tape.rows[name] for name in tape.rows.dtype.names})
    return tape


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x, edges):
        return torch.zeros(len(x), CLASSES).index_add(0, edges[1], self.layer(x)[edges[0]])


def test_nodes_of_a_graph_are_refused():
    edges = torch.stack([torch.arange(COUNT), (torch.arange(COUNT) + 5) % COUNT])
    with pytest.raises(DataError, match="depends on the other rows, as for the nodes of a graph"):
        prepared(lambda: F.cross_entropy(Graph()(X, edges), Y).backward())
    # Where some nodes alone have labels.
    with pytest.raises(DataError, match="rows are not examples"):
        prepared(lambda: F.cross_entropy(Graph()(X, edges)[:7], Y[:7]).backward())


class TimeMajor(Recurrent):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 8)

    def forward(self, x):
        return self.head(self.lstm(x)[0][-1])


@pytest.mark.parametrize("batch", [5, 7, 8, 12, 24])
def test_sequences_whose_first_axis_is_time_are_refused(batch):
    x, y = torch.randn(12, batch, FEATURES), torch.randint(CLASSES, (batch,))
    with pytest.raises(DataError, match=r"rows are not examples|depends on the other rows"):
        prepared(lambda: F.cross_entropy(TimeMajor()(x), y).backward())


def contrast(model, batch):
    """NT-Xent of two views: each has to find its twin among all others."""
    views = F.normalize(torch.cat([model(batch["x"]), model(batch["z"])]), dim=1)
    alike = (views @ views.T / 0.2).masked_fill(torch.eye(len(views), dtype=torch.bool), -1e9)
    return F.cross_entropy(alike, torch.arange(len(views)).roll(len(batch["x"])))


def pair(model, batch):
    """As CLIP does: the rows of one half are the classes of the other."""
    one, other = F.normalize(model(batch["x"]), dim=1), F.normalize(model(batch["z"]), dim=1)
    return F.cross_entropy(one @ other.T / 0.1, torch.arange(len(one)))


def triplets(model, batch):
    out = model(batch["x"])
    apart, same = torch.cdist(out, out), batch["y"][:, None] == batch["y"]
    return F.relu((apart * same).amax(1) - (apart + 1e3 * same).amin(1) + 1).mean()


def ranks(model, batch):
    out = model(batch["x"])[:, 0]
    before = (batch["v"][:, None] > batch["v"]).float()
    return (F.relu(1 - out[:, None] + out) * before).sum() / before.sum().clamp(min=1)


def at_risk(model, batch):
    """Cox's partial likelihood: each is held against those who are still at risk."""
    out = model(batch["x"])[:, 0]
    risk = torch.where(batch["v"][:, None] <= batch["v"], out, -1e9).logsumexp(1)
    return (risk - out).mean()


def correlation(model, batch):
    out, wanted = model(batch["x"])[:, 0], batch["v"]
    out, wanted = out - out.mean(), wanted - wanted.mean()
    return 1 - (out * wanted).sum() / (out.norm() * wanted.norm())


def decorrelation(model, batch):
    """Of Barlow Twins: the views are divided by what they vary over the batch."""
    one, other = model(batch["x"]), model(batch["z"])
    one, other = (one - one.mean(0)) / one.std(0), (other - other.mean(0)) / other.std(0)
    return ((one.T @ other / len(one) - torch.eye(CLASSES)) ** 2).sum()


OF_BATCHES = [contrast, pair, triplets, ranks, at_risk, correlation, decorrelation]
EVERYTHING = {"x": X, "z": X + 0.2 * Z, "y": Y, "v": V}


@pytest.mark.parametrize("loss", OF_BATCHES, ids=lambda loss: loss.__name__)
def test_a_loss_that_compares_the_examples_of_a_batch_is_refused(loss):
    with pytest.raises(DataError, match="depends on the other examples of its batch, as in contrastive"):
        prepared(Toy(two_layers(), loss, {}, EVERYTHING).run)


def test_statistics_of_the_batch_that_no_evaluation_knows_are_refused():
    toy = classifier(cross_entropy, nn.BatchNorm1d(8, track_running_stats=False))
    with pytest.raises(DataError, match=r"depends on the other"):
        prepared(toy.run)


def root(model, batch):
    return F.mse_loss(model(batch["x"])[:, 0], batch["v"]).sqrt()


def dice(model, batch):
    """Of the whole batch, as for segmentation."""
    found, wanted = model(batch["x"]).softmax(1), F.one_hot(batch["y"], CLASSES).float()
    return 1 - 2 * (found * wanted).sum() / (found.sum() + wanted.sum())


def hardest(model, batch):
    losses = F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
    return losses.topk(max(1, len(losses) // 2)).values.mean()


def weighted(model, batch):
    return WEIGHTED(model(batch["x"]), batch["y"])


class Noisy(nn.Module):
    """Draws noise for each row, as variational autoencoders and diffusion do."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(FEATURES, FEATURES)

    def forward(self, x):
        noise = torch.randn_like(x)
        return self.body(x + 3 * noise) - noise


def denoise(model, batch):
    return model(batch["x"]).square().mean()


@pytest.mark.parametrize("loss", [root, dice, hardest, weighted, denoise], ids=lambda loss: loss.__name__)
def test_what_a_batch_is_divided_by_weighed_by_or_shaken_by_leaves_each_example_a_loss(loss):
    model = Noisy() if loss is denoise else two_layers()
    assert prepared(Toy(model, loss, {}, EVERYTHING).run).adds_up


def test_a_small_term_of_the_batch_is_said():
    def loss(model, batch):
        out = model(batch["x"])
        centred = out - out.mean(0)
        return (
            F.cross_entropy(out, batch["y"])
            + 0.6 * (centred.T @ centred / len(out) - torch.eye(CLASSES)).square().sum()
        )

    assert not prepared(Toy(two_layers(), loss, {}, EVERYTHING).run).adds_up
    assert prepared(classifier().run).adds_up


def test_a_loss_that_is_random_under_one_seed_is_refused():
    model = two_layers()

    def run():
        out = model(X) + float(int.from_bytes(os.urandom(2), "big"))
        (out.square().mean(1) * by_chance(Y)).mean().backward()

    by_chance = Chance()
    with pytest.raises(DataError, match="differs from time to time under one seed"):
        prepared(run)


class Chance(nn.Module):
    """Draws from what no seed decides."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, y):
        return self.scale * (y + float(int.from_bytes(os.urandom(2), "big")))


def test_randomness_of_pytorch_is_the_same_for_all_examples():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(FEATURES, CLASSES)

        def forward(self, x):
            return self.layer(x + torch.randn(x.shape[-1]))

    tape = prepared(lambda: F.cross_entropy(Noisy()(X), Y).backward())
    leaves = {"0": X.numpy(), "met0": Y.numpy()}
    assert tape.losses_of(leaves).tolist() == tape.losses_of(leaves).tolist()


def test_a_handler_that_never_calls_backward_is_refused():
    with pytest.raises(DataError, match=r"ended without a step of PyTorch: no call of backward\(\)"):
        read_tape(lambda: F.cross_entropy(two_layers()(X), Y))


@pytest.mark.parametrize("moves", ["optimizer", "by hand", "fails"])
def test_a_step_that_calls_backward_twice_has_both_losses(moves):
    model = two_layers()

    def run():
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=SIZE):
            loss = F.cross_entropy(model(x), y)
            (0.25 * loss).backward(retain_graph=True)
            (0.75 * loss).backward()
            if moves == "optimizer":
                optimizer.step()
            if moves == "fails":
                raise KeyError("what it does afterwards")
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= parameter.grad

    before = [parameter.detach().clone() for parameter in model.parameters()]
    tape = read_tape(run)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
    assert tape.is_whole
    leaves = {"0": X.numpy(), "met0": Y.numpy()}
    tape.prepare(leaves)
    expected = F.cross_entropy(model(X), Y, reduction="none").detach()
    np.testing.assert_allclose(tape.losses_of(leaves), expected, rtol=1e-5)


def test_an_example_stands_in_each_micro_batch_and_has_its_own_loss():
    model = two_layers()
    tape = read_tape(lambda: sum(F.cross_entropy(model(X[rows]), Y[rows]) / 2 for rows in (A, B)).backward())
    leaves = {"0": X.numpy(), "met0": Y.numpy()}
    tape.prepare(leaves)
    expected = F.cross_entropy(model(X), Y, reduction="none").detach()
    np.testing.assert_allclose(tape.losses_of(leaves), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (lambda model, out: F.mse_loss(model(X[B]), out.detach()), "compares its model's outputs of several batches"),
        (lambda model, out: model(X[B]).square().mean(), "takes batches of several forms"),
    ],
)
def test_batches_that_are_no_micro_batches_are_refused(other, line):
    model = two_layers()

    def run():
        out = model(X[A])
        (F.cross_entropy(out, Y[A]) + other(model, out)).backward()

    with pytest.raises(DataError, match=line):
        read_tape(run)


def test_of_losses_with_labels_of_their_own_the_first_is_asked_and_that_is_said():
    model = two_layers()

    def run():
        out = model(X)
        F.cross_entropy(out, Y).backward(retain_graph=True)
        F.cross_entropy(out, Y.flip(0)).backward()

    tape = read_tape(run)
    assert not tape.is_whole
    assert {*tape.rows.dtype.names} == {"0", "met0"}
    leaves = {"0": X.numpy(), "met0": Y.numpy()}
    tape.prepare(leaves)
    expected = F.cross_entropy(model(X), Y, reduction="none").detach()
    np.testing.assert_allclose(tape.losses_of(leaves), expected, rtol=1e-5)


def test_a_metric_after_the_gradient_is_no_part_of_a_step():
    model = two_layers()

    def run():
        out = model(X)
        F.cross_entropy(out, Y).backward()
        return (out.argmax(1) == Y.clone()).sum().item()

    assert {*read_tape(run).rows.dtype.names} == {"0", "met0"}


def test_a_penalty_on_gradients_is_no_loss_of_a_step():
    model = two_layers()

    def run():
        x = X.clone().requires_grad_()
        out = model(x)
        torch.autograd.grad(out.sum(), x, create_graph=True)
        F.cross_entropy(out, Y).backward()

    tape = read_tape(run)
    assert len(tape._losses) == 1


def test_a_gradient_that_comes_from_no_model_is_none_of_a_step():
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(DataError, match="ended without a step of PyTorch"):
        read_tape(lambda: weight.sum().backward())


def test_complex_input_is_refused():
    class Spectrum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(FEATURES, CLASSES)

        def forward(self, x):
            return self.layer(x.abs())

    with pytest.raises(DataError, match="complex numbers"):
        prepared(lambda: F.cross_entropy(Spectrum()(torch.complex(X, Z)), Y).backward())


def test_what_an_app_raises_comes_through_and_pytorch_is_as_before():
    call, backward = nn.Module.__call__, Tensor.backward

    def run():
        two_layers()(X)
        raise KeyError("settings")

    with pytest.raises(KeyError, match="settings"):
        read_tape(run)
    assert (nn.Module.__call__, Tensor.backward) == (call, backward)
    assert torch.overrides._get_current_function_mode_stack() == []


def test_the_apps_own_modes_work_while_it_is_read():
    def run():
        with torch.device("meta"):
            assert torch.zeros(1).device.type == "meta"
        CRITERION(two_layers()(X), Y).backward()

    prepared(run)
    assert torch.overrides._get_current_function_mode_stack() == []


def test_examples_are_given_by_place_and_labels_where_one_number_is_missing():
    tape = read_tape(classifier().run)
    leaves = leaves_for(tape, X.numpy(), Y.numpy())
    assert {name: array.shape for name, array in leaves.items()} == {"0": (COUNT, FEATURES), "met0": (COUNT,)}
    column = Y[:, None].float()
    regression = read_tape(lambda: F.mse_loss(two_layers(out=1)(X), column).backward())
    np.testing.assert_array_equal(leaves_for(regression, X.numpy(), Y.numpy())["met0"], column)
    two = read_tape(two_heads().run)
    with pytest.raises(DataError, match=r"takes met0, met1, but the examples only hold 0"):
        leaves_for(two, X.numpy(), Y.numpy())
