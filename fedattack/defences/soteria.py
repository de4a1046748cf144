"""Soteria (Sun et al. 2021): the gradient of one fully connected layer, without the most revealing columns.

The representation r of an example x is what enters the defended layer. Its entries with the largest |r_i| / ‖∂r_i/∂x‖
are pruned, which for that layer's gradient ∂ℓ/∂W = Σ δ rᵀ means columns of zeros; the other layers stay (RecUP-FL's
paper, Cui et al. 2023, Section 3.1: "a mask only to the update of the defend layer").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError, ModelError
from fedattack.base.machine import MEMORY
from fedattack.base.settings import SettingsModel, setting
from fedattack.defences.base import Batch, DefenceKind, Settings, Update, as_float32, number, text

if TYPE_CHECKING:
    from torch import Tensor, nn

_RECORDS = 64
"""Examples whose representation is differentiated at a time, at most."""

# What the layers put out for an example, and its slopes, are kept about so often.
_COPIES = 4


@dataclass(frozen=True)
class Soteria:
    """Masks the defended layer's weight update.

    For several examples the measure |r_i| / ‖∂r_i/∂x‖ is averaged over them, with 0 for a dead entry (0 / 0). After
    several local steps the mask, computed at the received model, is applied to the update as a whole.

    Parameters
    ----------
    share
        Share of the representation's entries that are pruned, in [0, 1]; round(share · l) of l entries.
    layer
        Name of the defended layer among the model's modules; empty for the first fully connected layer that does not
        see the examples themselves.
    memory
        Bytes that the outputs of the model's layers may take; with less, it takes fewer examples at a time.
    """

    share: float
    layer: str = ""
    memory: float = MEMORY
    name = "soteria"
    needs_batch = True

    def apply(
        self, update: Update, rng: np.random.Generator, batch: Batch | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Return the masked update; nothing is random.

        Raises
        ------
        DataError
            If there is no batch.
        ModelError
            If the model has no such layer, or the update has no array for its weight.
        """
        masked = as_float32(update)
        if not self.share:
            return masked
        if batch is None:
            raise DataError(
                "defence soteria needs the batch and the model; call fedattack.defences.hand_over(model, x, y) in the "
                "client's training code, before it trains"
            )
        name, layer = defended_layer(batch.model, self.layer)
        weight = f"{name}.weight"
        if weight not in masked or masked[weight].shape != tuple(layer.weight.shape):
            raise ModelError(
                f"defence soteria: the update has no array {weight} of shape {tuple(layer.weight.shape)}; it has "
                f"{', '.join(masked)}; hand over the model whose parameters are sent"
            )
        measure = representation_measure(batch.model, layer, batch.x, memory=self.memory)
        # round: a share of 0.005 of 100 entries prunes none.
        pruned = round(self.share * len(measure))
        # The sort is stable: among equals those of the lowest index are pruned.
        largest = np.argsort(-measure, kind="stable")[:pruned]
        # The whole column of the weight: the inputs that are pruned.
        masked[weight][:, largest] = 0
        return masked


def defended_layer(model: nn.Module, name: str = "") -> tuple[str, nn.Linear]:
    """Find the layer that Soteria defends.

    Parameters
    ----------
    model
        A model whose modules are registered in the order in which it uses them.
    name
        Name of the layer; empty for the first fully connected one with a layer of parameters before it.

    Raises
    ------
    ModelError
        If there is none, or the named layer is not fully connected.
    """
    # Clients with other defences may lack torch.
    from torch import nn

    modules: Mapping[str, nn.Module] = dict(model.named_modules())
    if name:
        layer = modules.get(name)
        if not isinstance(layer, nn.Linear):
            got = "none of that name" if layer is None else f"a {type(layer).__name__}"
            candidates = [key for key, module in modules.items() if isinstance(module, nn.Linear)]
            raise ModelError(
                f"soteria-layer = {name!r}: expected a fully connected layer of the model, got {got}; it has: "
                f"{', '.join(candidates) or 'none'}"
            )
        return name, layer
    behind_another = False
    for key, module in modules.items():
        # Containers have no parameters of their own.
        if not list(module.parameters(recurse=False)):
            continue
        if behind_another and isinstance(module, nn.Linear):
            return key, module
        behind_another = True
    raise ModelError(
        "defence soteria: the model has no fully connected layer behind another layer, whose representation could be "
        "pruned; take another model or another defence"
    )


def representation_measure(
    model: nn.Module, layer: nn.Linear, x: NDArray[np.floating], *, memory: float = MEMORY
) -> NDArray[np.float64]:
    """Compute the mean over examples of |r_i| / ‖∂r_i/∂x‖₂, with r what enters ``layer``.

    The model runs in evaluation mode, in which examples do not depend on each other, and is left as it was.

    Parameters
    ----------
    model
        Takes examples x.
    layer
        The layer, which the model uses once.
    x
        (n, …): examples of floating-point inputs, at least one.
    memory
        See :class:`Soteria`.

    Returns
    -------
    ndarray
        (l,) float64: infinite for an entry that is not 0 and does not depend on some example.

    Raises
    ------
    ModelError
        If the model does not use the layer once for each example.
    """
    import torch

    from fedattack.learning.torch_utils import activations, in_mode

    device = next(model.parameters()).device
    total = np.zeros(layer.in_features)
    with in_mode(model, training=False), torch.enable_grad():
        of_one = activations(model, torch.as_tensor(x[:1], dtype=torch.float32, device=device))
        # Four bytes a number.
        together = int(min(max(memory // (4 * _COPIES * of_one), 1), _RECORDS))
        for start in range(0, len(x), together):
            records = torch.as_tensor(x[start : start + together], dtype=torch.float32, device=device)
            records = records.clone().requires_grad_()
            representation = _inputs_of(model, layer, records)
            norms = [_gradient_norms(entry, records) for entry in representation.unbind(1)]
            values = representation.detach()
            # In double precision: ∂r_i/∂x may be tiny.
            ratio = values.abs().double() / torch.stack(norms, dim=1)
            # 0/0, where a ReLU is closed, counts as 0: nothing of the example is in such an entry.
            total += torch.where(values == 0, 0.0, ratio).sum(dim=0).cpu().numpy()
    return total / len(x)


def _gradient_norms(entry: Tensor, records: Tensor) -> Tensor:
    """Return ‖∂r_i/∂x‖ for each example; ``entry`` (n,) is r_i of each."""
    from torch import autograd

    # The sum of r_i over examples has the gradients of each: no example's r_i depends on another one.
    (gradient,) = autograd.grad(entry.sum(), records, retain_graph=True)
    norms: Tensor = gradient.flatten(1).double().norm(dim=1)
    return norms


def _inputs_of(model: nn.Module, layer: nn.Linear, records: Tensor) -> Tensor:
    """Return the representation (n, l) of the examples: what enters the layer."""
    captured: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0]))
    try:
        model(records)
    finally:
        hook.remove()
    if len(captured) != 1 or captured[0].shape != (len(records), layer.in_features):
        shapes = ", ".join([str(tuple(tensor.shape)) for tensor in captured]) or "nothing"
        raise ModelError(
            f"defence soteria: expected the defended layer to see ({len(records)}, {layer.in_features}) once; it saw "
            f"{shapes}; name another by soteria-layer"
        )
    return captured[0]


def make(settings: Settings) -> Soteria:
    """Read ``defence-strength``, the share, and ``soteria-layer``."""
    return Soteria(number(settings, "defence-strength", high=1.0), text(settings, "soteria-layer"))


class SoteriaSettings(SettingsModel):
    """Settings of Soteria."""

    soteria_layer: str = setting(
        "",
        "soteria: name of the fully connected layer that is defended; empty for the first that does not see the "
        "examples",
    )


KIND = DefenceKind("soteria", make, SoteriaSettings, strength="share that is pruned, up to 1")
