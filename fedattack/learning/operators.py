"""The operators of PyTorch that a described program may be made of.

Each computes tensors from tensors, and the shapes of its results follow from shapes and arguments alone. None reads a
file, looks at memory beside its tensors, leaves memory as it was found, or calls back into Python. What could do such
is not listed: ``from_file``, ``as_strided``, ``set_``, ``resize_``, ``embedding_bag``, operators of other namespaces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_OF_EACH_NUMBER = """
abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu
clamp clamp_max clamp_min cos cosh div elu eq erf erfc exp exp2 expm1 floor floor_divide fmod frac ge gelu gt hardshrink
hardsigmoid hardswish hardtanh isfinite isinf isnan le leaky_relu lerp log log10 log1p log2 log_sigmoid logaddexp
logical_and logical_not logical_or logical_xor logit lt masked_fill maximum minimum mish mul nan_to_num ne neg pow prelu
reciprocal relu relu6 remainder round rsqrt rsub selu sigmoid sign silu sin sinh softplus softshrink sqrt square sub tan
tanh threshold true_divide trunc type_as where
"""

_OF_SEVERAL_NUMBERS = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
all amax amin any argmax argmin argsort avg_pool1d avg_pool2d avg_pool3d cosine_similarity count_nonzero cummax cumprod
cumsum glu linalg_vector_norm log_softmax logsumexp max max_pool1d max_pool2d max_pool2d_with_indices max_pool3d mean
min norm prod softmax sort std std_mean sum topk var var_mean
"""

_OF_SHAPES = """
alias broadcast_to cat chunk clone concat constant_pad_nd contiguous detach diagonal expand expand_as flatten flip
gather index index_select lift_fresh_copy mT matrix_H movedim narrow numpy_T pad permute pixel_shuffle pixel_unshuffle
reflection_pad1d reflection_pad2d repeat replication_pad1d replication_pad2d reshape reshape_as roll select slice split
split_with_sizes squeeze stack swapaxes t take_along_dim tile transpose tril triu unbind unflatten unfold unsqueeze view
view_as
"""

_OF_LAYERS = """
addmm alpha_dropout baddbmm batch_norm bmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d
conv_transpose3d dot dropout einsum embedding feature_alpha_dropout feature_dropout group_norm instance_norm
layer_norm linear matmul mm mv one_hot outer rms_norm scaled_dot_product_attention upsample_bilinear2d upsample_linear1d
upsample_nearest1d upsample_nearest2d
"""

_OF_LOSSES = """
binary_cross_entropy binary_cross_entropy_with_logits cross_entropy_loss huber_loss kl_div l1_loss mse_loss nll_loss
nll_loss_nd smooth_l1_loss
"""

_MAKING = """
arange bernoulli empty empty_like full full_like new_empty new_full new_ones new_zeros ones ones_like rand rand_like
randn randn_like scalar_tensor zeros zeros_like
"""

_IN_PLACE = """
add_ bernoulli_ clamp_ copy_ detach_ div_ dropout_ elu_ exp_ feature_dropout_ fill_ hardsigmoid_ hardswish_ hardtanh_
leaky_relu_ masked_fill_ mish_ mul_ neg_ normal_ pow_ relu6_ relu_ sigmoid_ silu_ sqrt_ squeeze_ sub_ tanh_ uniform_
unsqueeze_ zero_
"""

MAKING = frozenset({"arange", "empty", "full", "ones", "rand", "randn", "scalar_tensor", "zeros"})
"""Operators that make a tensor of no other, on a device of their own."""

LEFT_OUT = frozenset({"device", "layout", "memory_format", "pin_memory", "non_blocking", "copy", "generator"})
"""Arguments of operators that say where and how to compute, and not what. A program has none of them."""

_TAKEN = ("Tensor", "Optional[Tensor]", "List[Tensor]", "List[Optional[Tensor]]")
_RETURNED = ("Tensor", "List[Tensor]")


def _found() -> dict[str, Callable[..., Any]]:
    """Look up each form of the operators that takes and returns tensors."""
    found: dict[str, Callable[..., Any]] = {}
    for names in (_OF_EACH_NUMBER, _OF_SEVERAL_NUMBERS, _OF_SHAPES, _OF_LAYERS, _OF_LOSSES, _MAKING, _IN_PLACE):
        for name in names.split():
            packet = getattr(torch.ops.aten, name, None)
            for form in packet.overloads() if packet is not None else ():
                operator = getattr(packet, form)
                if _is_plain(name, operator._schema):
                    found[f"{name}.{form}"] = operator
    # A tensor that nobody has filled would show what was in memory before.
    for name, filled in (("empty.memory_format", "zeros"), ("empty_like.default", "zeros_like")):
        found[name] = found[f"{filled}.default"]
    found["new_empty.default"] = found["new_zeros.default"]
    # It reads the bits of numbers as others.
    del found["view.dtype"]
    # The same numbers, also of a tensor whose numbers lie in another order, such as channels last.
    found["view.default"] = found["reshape.default"]
    return found


def _is_plain(name: str, schema: Any) -> bool:
    """Say whether a form takes and returns tensors, and writes into the first at most, if its name says so."""
    taken, returned = schema.arguments, schema.returns
    for index, argument in enumerate(taken):
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written and not (name.endswith("_") and index == 0):
            return False
    makes = name in MAKING or any(str(argument.type) in _TAKEN for argument in taken)
    by_name = any("Dimname" in str(argument.type) for argument in taken)
    return makes and not by_name and all(str(value.type) in _RETURNED for value in returned)


OPERATORS: Mapping[str, Callable[..., Any]] = _found()
"""By name and form, such as ``add.Tensor``."""
