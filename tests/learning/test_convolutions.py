import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from fedattack.learning.convolutions import SmallConv2d, leave_unreached_out, multiply_few_positions

LAYERS = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": 1, "stride": 2},
    {"kernel_size": (5, 3), "padding": (2, 0), "bias": False},
    {"kernel_size": 3, "padding": 2, "dilation": 2},
    {"kernel_size": 7, "padding": 3, "stride": 3},
    {"kernel_size": 1, "stride": 2},
]


def derivatives(layer, x):
    """Return outputs, the gradient of their squares along weights, and how its length changes with the images."""
    x = x.clone().requires_grad_()
    out = layer(x)
    slopes = torch.autograd.grad(out.square().sum(), [*layer.parameters()], create_graph=True)
    (second,) = torch.autograd.grad(sum(slope.square().sum() for slope in slopes), x)
    return [out, *slopes, second]


@pytest.mark.parametrize("options", LAYERS)
@pytest.mark.parametrize("size", [(3, 3), (4, 3), (9, 11)])
def test_products_are_convolutions_and_so_are_their_derivatives(options, size):
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, **options).double()
    small = copy.deepcopy(layer)
    multiply_few_positions(small)
    assert type(small) is SmallConv2d
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    for one, other in zip(derivatives(layer, x), derivatives(small, x), strict=True):
        torch.testing.assert_close(other, one)


def test_clients_are_multiplied_side_by_side():
    small = SmallConv2d(3, 4, 3, padding=1)
    x, weights = torch.randn(5, 2, 3, 2, 2), torch.randn(5, 4, 3, 3, 3)

    def call(weight, x):
        return functional_call(small, {"weight": weight}, (x,))

    apart = [nn.functional.conv2d(x[row], weights[row], small.bias, padding=1) for row in range(5)]
    torch.testing.assert_close(vmap(call)(weights, x), torch.stack(apart))


@pytest.mark.parametrize("options", LAYERS)
@pytest.mark.parametrize("size", [(1, 1), (2, 1), (2, 2), (3, 5), (8, 8)])
def test_what_is_left_out_has_no_gradient_and_changes_nothing(options, size):
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Conv2d(3, 4, **options))
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    kernel, padding = whole[0].kernel_size, whole[0].padding
    spans = [whole[0].dilation[axis] * (kernel[axis] - 1) + 1 for axis in (0, 1)]
    if any(width + 2 * pad < span for width, pad, span in zip(size, padding, spans, strict=True)):
        pytest.skip("the image is smaller than the kernel")
    cut = copy.deepcopy(whole)
    cuts = leave_unreached_out(cut, (3, *size))
    whole, cut = whole.double(), cut.double()
    torch.testing.assert_close(cut(x), whole(x))
    gradient, left = (torch.autograd.grad(model(x).square().sum(), model[0].weight)[0] for model in (whole, cut))
    expected = torch.zeros_like(gradient)
    expected[cuts.get("0.weight", ...)] = left
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=1e-9)


def test_a_layer_that_sees_one_pixel_keeps_one_weight_of_nine():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(8), nn.Conv2d(4, 5, 3, padding=1))
    assert leave_unreached_out(copy.deepcopy(model), (3, 16, 16)) == {}
    one = slice(1, 2)
    assert leave_unreached_out(model, (3, 8, 8)) == {"2.weight": (slice(None), slice(None), one, one)}
    assert model[2].weight.shape == (5, 4, 1, 1)


def test_weights_that_images_of_two_sizes_share_stay_whole():
    shared, other = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
    assert leave_unreached_out(nn.Sequential(shared, nn.MaxPool2d(4), shared), (3, 4, 4)) == {}
    other.weight = shared.weight
    assert leave_unreached_out(nn.Sequential(shared, nn.MaxPool2d(4), other), (3, 4, 4)) == {}
