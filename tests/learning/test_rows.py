"""Products with gradients that are never written out, against those with the matrix itself."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedattack.learning import gradient_rows
from fedattack.learning.gradient_rows import GradientRows
from fedattack.learning.layer_model import LayerModel
from fedattack.learning.layer_products import Layer, lay_out_windows
from fedattack.learning.losses import mean_loss
from fedattack.learning.models import build_model
from fedattack.learning.rows import Centred, Whole, group_means
from fedattack.learning.shadows import ShadowModel

COUNT = 150
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


class Sequence(nn.Module):
    """Uses linear layers at several positions, and parameters that belong to no layer that is taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(3, 4))
        self.mix = nn.Linear(4, 5)
        self.norm = nn.LayerNorm(5)
        self.out = nn.Linear(15, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        value = torch.tanh(self.mix(x.view(-1, 3, 4) + self.place))
        return self.out(self.norm(value).flatten(1))


class Twice(nn.Module):
    """Uses one layer twice, and the weight of another outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(12, 12)
        self.tied = nn.Linear(12, 12)
        self.out = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        value = torch.relu(self.twice(torch.relu(self.twice(x))))
        return self.out(torch.tanh(self.tied(value)) @ self.tied.weight)


class Drawing(nn.Module):
    """Draws its own dropout, which cannot be given to it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 30)
        self.drop = nn.Dropout1d(0.4)
        self.out = nn.Linear(30, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(torch.relu(self.inner(x))[..., None])[..., 0])


class Mixing(nn.Module):
    """Takes the batch's mean off each example, as no layer that PyTorch calls batch norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)
        self.out = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        value = self.inner(x)
        return self.out(torch.tanh(value - 0.5 * value.mean(dim=0)))


class Viewing(nn.Module):
    """Calls view on what a convolution gives, which cannot be laid out otherwise then."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(1, 3, 3)
        self.out = nn.Linear(3 * 6 * 6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.inner(x)).view(-1, 3 * 6 * 6))


class Folding(nn.Module):
    """Puts the parts of all examples on one axis for a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 5)
        self.out = nn.Linear(15, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inner(x.reshape(-1, 4))).reshape(-1, 15))


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, (3, 5), dilation=2, bias=False),
        nn.Dropout(0.2),
        nn.Sigmoid(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(54, 8),
        nn.ReLU(inplace=True),
        nn.Linear(8, 4),
    )


def _strided() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, dilation=2, bias=False),
        nn.GroupNorm(2, 6),
        nn.Conv2d(6, 6, 3, groups=2, padding="same"),
        nn.Flatten(),
        nn.Linear(6 * 6 * 10, 4),
    )


MODELS = {
    "linear": ((12,), lambda: nn.Linear(12, 4)),
    "network": ((12,), lambda: nn.Sequential(nn.Linear(12, 40), nn.Dropout(0.5), nn.ReLU(), nn.Linear(40, 4))),
    "lenet": ((1, 28, 28), lambda: build_model("lenet-mnist", input_shape=(1, 28, 28), classes=4, seed=0)),
    "convolutions": ((2, 20, 28), _convolutions),
    "mixing": ((12,), Mixing),
    "viewing": ((1, 8, 8), Viewing),
    "folding": ((12,), Folding),
    "strided": ((1, 20, 28), _strided),
    "sequence": ((12,), Sequence),
    "twice": ((12,), Twice),
    "drawing": ((12,), Drawing),
}


def made(name: str) -> tuple[ShadowModel, Tensor, Tensor, Tensor]:
    shape, build = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = build()
        x, y = torch.randn(COUNT, *shape), torch.randint(4, (COUNT,))
        start = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
    return ShadowModel(model, x[0].numpy(), mean_loss("cross-entropy")), start, x, y


def masks() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def taken_together(rows) -> Tensor:
    """Return the matrix, from its products with all directions."""
    size = rows.model.shadow.size
    return torch.cat([block.project(torch.eye(size)) for _, block in rows.blocks()], dim=1).T


TRIED = 3
TOGETHER = ("network", "lenet", "convolutions", "viewing")
"""Models of which one usual pass gives what comes back to each example."""


@pytest.mark.parametrize("tried", [1, TRIED], ids=["a pass each", "one pass"])
@pytest.mark.parametrize("scratch", [1, 1e9], ids=["one at a time", "many"])
@pytest.mark.parametrize("room", [0, 1.2e6, 1e9], ids=["nothing kept", "some kept", "all kept"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "drawing"])
@pytest.mark.slow
def test_products_are_those_of_the_matrix(name, room, scratch, tried):
    shadow, start, x, y = made(name)
    matrix = shadow.record_gradients(start, x, y, generator=masks())
    model = LayerModel(shadow, start, x[:tried], y[:tried])
    assert model.together == (tried == TRIED and name in TOGETHER)
    rows = GradientRows(model, start, x, y, masks, room=room, scratch=scratch)
    draw = torch.Generator().manual_seed(2)
    directions, weights = torch.randn(3, shadow.size, generator=draw), torch.randn(2, COUNT, generator=draw)
    for _ in range(2):  # what is kept from the first time must be the same the second time
        seen = torch.zeros(COUNT)
        projected, summed, single = torch.empty(3, COUNT), torch.zeros(2, shadow.size), torch.zeros(shadow.size)
        squares = torch.zeros(shadow.size)
        for where, block in rows.blocks():
            seen[where] += 1
            projected[:, where] = block.project(directions)
            block.accumulate(summed, weights[:, where])
            block.accumulate(single, weights[0, where])
            block.accumulate_squares(squares, weights[1, where].abs())
        assert (seen == 1).all()
        for found, expected in (
            (projected, directions @ matrix.T),
            (summed, weights @ matrix),
            (single, weights[0] @ matrix),
            (squares, weights[1].abs() @ matrix.square()),
        ):
            torch.testing.assert_close(found / expected.norm(), expected / expected.norm(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "layers"), [("strided", ["0", "2", "6"]), ("sequence", ["mix", "out"]), ("twice", []), ("linear", [])]
)
def test_layers_that_a_pass_uses_once_are_taken_apart(name, layers):
    shadow, start, x, y = made(name)
    assert [layer.name for layer in LayerModel(shadow, start, x[:TRIED], y[:TRIED]).layers] == layers


def test_what_draws_its_own_dropout_draws_the_same_in_each_pass():
    shadow, start, x, y = made("drawing")
    rows = GradientRows(LayerModel(shadow, start, x[:1], y[:1]), start, x, y, masks, room=0, scratch=1e5)
    torch.testing.assert_close(taken_together(rows), taken_together(rows))


def test_no_more_is_kept_than_there_is_room_for():
    shadow, start, x, y = made("lenet")
    model = LayerModel(shadow, start, x[:1], y[:1])
    for room in (0.0, 5e5, 2e6):
        rows = GradientRows(model, start, x, y, masks, room=room, scratch=4e6)
        for _ in rows.blocks():
            pass
        kept = sum(block.bytes for blocks, _ in rows._kept.values() for _, block in blocks)
        assert kept <= room
    rows = GradientRows(model, start, x, y, masks, room=1e9, scratch=4e6)
    assert len(list(rows.blocks())) > 1
    # all are kept, and put together
    assert len(list(rows.blocks())) == len(rows._merged) == 1
    assert not rows._kept


@pytest.mark.parametrize("name", ["network", "lenet", "convolutions"])
def test_rows_that_are_computed_in_one_go_are_the_same(name, monkeypatch):
    shadow, start, x, y = made(name)
    model = LayerModel(shadow, start, x[:3], y[:3])
    apart = taken_together(GradientRows(model, start, x, y, masks, room=1e9, scratch=1e9))
    monkeypatch.setitem(gradient_rows._COMPUTED, "cpu", 4096)
    rows = GradientRows(model, start, x, y, masks, room=1e9, scratch=1e9)
    assert rows.chunk > COUNT
    torch.testing.assert_close(taken_together(rows), apart, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kernel", [(3, 3), (5, 2)])
@pytest.mark.parametrize("sizes", [{}, {"stride": (2, 3), "padding": (2, 1)}, {"dilation": (2, 3), "padding": (0, 1)}])
def test_windows_are_laid_out_as_unfold_does(kernel, sizes):
    module, images = nn.Conv2d(3, 4, kernel, **sizes), torch.randn(5, 3, 12, 11)
    expected = nn.functional.unfold(images, kernel, **sizes).mT
    torch.testing.assert_close(lay_out_windows(images, module), expected, rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [{}, {"padding": (2, 1)}, {"stride": 2}, {"dilation": (1, 2), "padding": (0, 1)}])
def test_a_convolution_is_multiplied_without_its_windows(sizes):
    torch.manual_seed(0)
    module, images = nn.Conv2d(3, 4, (5, 2), **sizes).double(), torch.randn(6, 1, 3, 12, 11, dtype=torch.float64)
    windows = nn.functional.unfold(images[:, 0], (5, 2), **sizes).mT
    deltas = torch.randn(6, windows.shape[1], 4, dtype=torch.float64)
    shape = module(images[:1, 0]).shape
    layer = Layer("conv", slice(0, 120), slice(120, 124), 4, 30, shape, numbers=0, module=module)
    # As within a matrix that has columns of other parameters, too.
    gradients = torch.zeros(6, 130, dtype=torch.float64)[:, 5:125].unflatten(1, (4, 30))
    layer.write_gradients(images, deltas, gradients)
    torch.testing.assert_close(gradients, deltas.mT @ windows)
    weights = torch.randn(2, 4, 30, dtype=torch.float64)
    torch.testing.assert_close(layer.moved_by(weights, images), windows @ weights[:, None].mT)


def test_rows_less_the_mean_of_their_group():
    draw = torch.Generator().manual_seed(0)
    matrix, group = torch.randn(20, 7, generator=draw) + 2, torch.arange(20) % 3
    means = group_means(Whole(matrix), group, 3, 7)
    expected = matrix - means[group]
    np.testing.assert_allclose(means[1], matrix[1::3].mean(dim=0), rtol=1e-5)
    directions, weights = torch.randn(2, 7, generator=draw), torch.randn(2, 20, generator=draw)
    ((where, block),) = Centred(Whole(matrix), means, group).blocks()
    assert (where.start, where.stop) == (0, 20)
    torch.testing.assert_close(block.project(directions), directions @ expected.T, **CLOSE)
    summed, squares = torch.ones(2, 7), torch.ones(7)
    block.accumulate(summed, weights)
    block.accumulate_squares(squares, weights[0].abs())
    torch.testing.assert_close(summed, 1 + weights @ expected, **CLOSE)
    torch.testing.assert_close(squares, 1 + weights[0].abs() @ expected.square(), **CLOSE)
