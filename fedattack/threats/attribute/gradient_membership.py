"""Which candidate examples a client trained on, from the last layer's gradients.

Lyu & Chen 2021, "A novel attribute reconstruction attack in federated learning", Section 3.3. On a model that fits its
training data, a member's gradient has all but vanished, and another example's has not. A mixture of two normal
distributions of the gradients' variances tells the two apart without any example of either.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedattack.base.errors import DataError
from fedattack.learning.soft_losses import soft_loss, soft_targets
from fedattack.learning.torch_utils import in_mode, to_tensor
from fedattack.threats.attribute.gradient_matching import Arrays

_CHUNK = 256
_STARTS = 5


def last_layer(model: nn.Module) -> tuple[str, ...]:
    """Name the parameters of the model's last layer that has any."""
    prefix = list(dict(model.named_parameters()))[-1].rpartition(".")[0]
    return tuple(name for name, _ in model.named_parameters() if name.rpartition(".")[0] == prefix)


def flatten_gradients(gradients: Arrays) -> NDArray[Any]:
    """Return the gradients of all parameters, (n, …) each, as one row for each record."""
    return np.concatenate([gradient.reshape(len(gradient), -1) for gradient in gradients.values()], axis=1)


def last_layer_gradients(
    model: nn.Module, state: Arrays, x: NDArray[np.float32], y: NDArray[np.float64] | NDArray[np.int64], loss: str
) -> dict[str, NDArray[np.float64]]:
    """Return the gradient of each example's loss by the last layer's parameters, in float64 and evaluation mode.

    Parameters
    ----------
    model
        The architecture.
    state
        All parameters and buffers.
    x, y
        Examples (n, d) and labels (n,).
    loss
        As for :func:`fedattack.learning.soft_losses.soft_loss`.

    Returns
    -------
    dict
        (n, …) for each parameter of the last layer.
    """
    names = last_layer(model)
    # Members' gradients come close to zero, and float32's rounding of probabilities near one would drown them.
    values = {name: _in_double(to_tensor(array)) for name, array in state.items()}
    last = {name: values[name] for name in names}
    records = to_tensor(x, dtype=torch.float64)
    measure = soft_loss(loss)

    def loss_of_record(last: dict[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
        return measure(functional_call(model, {**values, **last}, (record[None],)), target[None]).sum()

    gradients_of = vmap(grad(loss_of_record), in_dims=(None, 0, 0), chunk_size=_CHUNK)
    with in_mode(model, training=False):
        with torch.no_grad():
            outputs = functional_call(model, values, (records[:1],)).reshape(1, -1).shape[1]
        targets = _in_double(soft_targets(loss, y, outputs))
        gradients = gradients_of(last, records, targets)
    return {name: gradient.numpy() for name, gradient in gradients.items()}


def _in_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def gradient_variances(
    model: nn.Module,
    state: Arrays,
    candidates: NDArray[np.float32],
    y: NDArray[np.float64] | NDArray[np.int64],
    loss: str,
) -> NDArray[np.float64]:
    """Return the variance of the entries of each candidate's last-layer gradient (Section 3.3).

    Parameters
    ----------
    model, state, y, loss
        As for :func:`last_layer_gradients`; ``state`` is a model that the client sent.
    candidates
        (v, n, d): the examples completed with each value of the unknown attribute.

    Returns
    -------
    ndarray
        (n, v).
    """
    variances = []
    for records in candidates:
        variances.append(flatten_gradients(last_layer_gradients(model, state, records, y, loss)).var(axis=1))
    return np.stack(variances, axis=1)


def infer_membership(variances: NDArray[np.float64], *, seed: int = 0) -> NDArray[np.float64]:
    """Return how likely each example is a member, by a mixture of two normal distributions.

    The mixture is fitted to the mean over the candidates of the variances' square roots. These grow with the error of
    the predicted probabilities: members' lie close to zero and others' spread widely, as the paper describes them. Of
    the variances themselves most are close to zero, and of their logarithms even members' spread widely.

    Parameters
    ----------
    variances
        (n, v) as of :func:`gradient_variances`, of members and others together.
    seed
        Seed of the fit's starts.

    Returns
    -------
    ndarray
        (n,): posterior of the component with the smaller mean.

    Raises
    ------
    DataError
        If there are fewer than two examples, or a variance is not finite.
    """
    if len(variances) < 2 or not np.isfinite(variances).all():
        raise DataError(
            f"membership by a mixture of two components needs at least two examples with finite gradients; got "
            f"{len(variances)}, {int(np.isfinite(variances).all(axis=1).sum())} of them finite"
        )
    # It takes as long to import as torch, and each command imports all attacks.
    from sklearn.mixture import GaussianMixture

    deviations = np.sqrt(variances).mean(axis=1, keepdims=True)
    # The mixture keeps its components' variances above a fixed size.
    deviations /= deviations.max() or 1.0
    mixture = GaussianMixture(2, n_init=_STARTS, random_state=seed).fit(deviations)
    return np.asarray(mixture.predict_proba(deviations)[:, int(mixture.means_[:, 0].argmin())])
