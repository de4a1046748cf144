import pytest
import torch

from fedattack.threats.inversion.distance import half_squared_distance

SHAPES = [(3, 4, 5, 2, 2), (3, 7), (3,), (3, 6, 1)]


def draw(size=1.0):
    torch.manual_seed(0)
    moved, wanted = ([size * torch.randn(shape, dtype=torch.float64) for shape in SHAPES] for _ in range(2))
    return moved, wanted, torch.rand(3, dtype=torch.float64) + 0.5


def join(parts):
    return torch.cat([part.reshape(3, -1) for part in parts], dim=1)


@pytest.mark.parametrize("unit", [True, False])
def test_distances_and_slopes_are_those_of_the_formula(unit):
    moved, wanted, scale = draw()
    for part in moved:
        part.requires_grad_()
    vectors = scale[:, None] * join(moved)
    if unit:
        vectors = vectors / vectors.norm(dim=1, keepdim=True)
    expected = (vectors - join(wanted)).square().sum(1) / 2
    found = half_squared_distance(moved, wanted, scale, unit=unit)
    torch.testing.assert_close(found, expected)
    along = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    slopes = torch.autograd.grad(found @ along, moved)
    for slope, right in zip(slopes, torch.autograd.grad(expected @ along, moved), strict=True):
        torch.testing.assert_close(slope, right)


def test_movements_whose_squares_underflow_are_told_apart():
    moved, wanted, scale = draw()
    small = [(1e-25 * part).float() for part in moved]
    unit = [(part / join(wanted).norm(dim=1).reshape(3, *[1] * (part.ndim - 1))).float() for part in wanted]
    found = half_squared_distance(small, unit, (1e25 * scale).float(), unit=True)
    torch.testing.assert_close(found, half_squared_distance(moved, unit, scale, unit=True).float(), rtol=1e-5, atol=0)
