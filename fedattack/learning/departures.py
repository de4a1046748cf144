"""Models that a server sends when it departs from the protocol, made of the model that it would have sent."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.base.errors import ConfigError, FedAttackError
from fedattack.learning.stated import LocalSGD
from fedattack.learning.training import train_local

Arrays = Mapping[str, NDArray[Any]]

FAR = float(2**30)
"""A bias that no step of training moves: in single precision its nearest neighbour is 64 away."""

# A bias above all outputs: of examples of such classes nothing comes back, to the last digit.
_OUT_OF_REACH = 1000.0

# How much each neuron of a client passes on behind a sum: as far as Flower's SecAgg+ clips by default.
_PULL = 8.0

# The share of the features' mean variance that is added to each to find directions of canaries.
_RIDGE = 0.01

# Times that each of a server's examples stands for others near it.
_BLURS = 64

# Drawn examples on which a model that must not learn is tried.
_DRAWN = 8


def unlearning_model(
    model: nn.Module, input_shape: tuple[int, ...], classes: int, training: LocalSGD, loss: str
) -> Arrays:
    """Return weights with which training changes nothing, whatever the examples (Pasquini et al. 2022, Section 4).

    All weights are 0, so that no gradient reaches a weight. The bias of the last layer is large and the same for all
    classes: its gradient is lost in the rounding. Where a hidden layer would pass something on, its bias is far below
    zero.

    Parameters
    ----------
    model
        The model that the server would have sent; it is not changed.
    input_shape, classes, training, loss
        On drawn examples of that shape it is tried, trained so, whether it stays as it is.

    Raises
    ------
    ConfigError
        If training changes it all the same, as with weight decay, a regression, or a layer that makes something of 0.
    """
    state = {name: value.detach().cpu().numpy() for name, value in model.state_dict().items()}
    biases = [name for name, value in model.named_parameters() if value.ndim == 1]
    draw = np.random.default_rng(0)
    x = draw.normal(size=(_DRAWN, *input_shape)).astype(np.float32)
    y: NDArray[Any] = draw.integers(classes, size=_DRAWN)
    if loss != "cross-entropy":
        y = draw.normal(size=_DRAWN).astype(np.float32)

    # It is tried, not derived: optimizers, losses and layers are the clients' own.
    def stays(weights: Arrays) -> bool:
        """Say whether local training leaves these weights as they are, bit for bit."""
        tried = copy.deepcopy(model)
        try:
            tried.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})
            train_local(tried, x, y, **training.keywords(), loss=loss, seed=0)
        except FedAttackError:
            return False
        return all(np.array_equal(weights[name], value.numpy()) for name, value in tried.state_dict().items())

    for hidden in (0.0, -FAR):
        weights = {name: np.zeros_like(array) for name, array in state.items()}
        for name in biases:
            weights[name] = np.full_like(state[name], FAR if name == biases[-1] else hidden)
        if biases and stays(weights):
            return weights
    raise ConfigError(
        "server = 'inconsistent' needs a model that can be sent so that it does not learn, and this one learns in any "
        "case; expected a classifier with a bias in its last layer, without normalisation, trained by SGD without "
        "weight decay"
    )


def copy_arrays(model: Arrays) -> dict[str, NDArray[Any]]:
    """Return copies that may be written to."""
    return {name: np.array(array) for name, array in model.items()}


@dataclass(frozen=True)
class FirstLayers:
    """Names of the arrays with which a model takes its input: a fully connected layer, ReLU, and another such layer.

    Attributes
    ----------
    weight, bias
        Of the first layer.
    following
        The weight of the layer after it.
    """

    weight: str
    bias: str
    following: str

    def copy(self, model: Arrays) -> tuple[dict[str, NDArray[Any]], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return a copy of a model, and of its arrays weight, bias and following, which may be written to."""
        sent = copy_arrays(model)
        return sent, sent[self.weight], sent[self.bias], sent[self.following]


@dataclass(frozen=True)
class Imprint:
    """Makes weights of a first layer whose neurons each tell a few examples (Fowl et al. 2022, Robbing the Fed).

    All neurons look in one direction, a new one in each round, and begin at another place each. They pull at the same
    outputs, so that neighbours differ by the examples between their places alone. Behind a sum each client is sent
    neurons of its own, and all others are dead, as the kernels of LOKI (Zhao et al. 2024).

    Attributes
    ----------
    layers
        Where the input enters.
    examples
        (n, inputs): the server's own, that say how far examples lie apart in a direction.
    seed
        Decides the directions.
    """

    layers: FirstLayers
    examples: NDArray[np.float32]
    seed: int

    def __call__(self, model: Arrays, number: int, part: int = 0, parts: int = 1) -> dict[str, NDArray[Any]]:
        """Return the weights of a round, in which a part of the neurons is alive."""
        sent, weight, bias, following = self.layers.copy(model)
        draw = np.random.default_rng((self.seed, number))
        rows = np.array_split(np.arange(len(bias)), parts)[part]
        # With ReLU(⟨d, x⟩ − s_i) neuron i is alive for examples that lie beyond s_i. All pull at the same outputs, so
        # the gradients of neurons i and i + 1 differ by the examples between s_i and s_(i + 1) alone.
        direction = draw.normal(size=weight.shape[1])
        places = self.examples.astype(np.float64) @ direction
        # Few examples say little of where the next ones lie: their places are blurred, by Silverman's rule.
        width = 0.9 * places.std() * len(places) ** -0.2
        places = (places + width * draw.normal(size=(_BLURS, len(places)))).reshape(-1)
        # The first neuron is alive for everybody.
        least = places.min() - 3 * max(float(places.std()), 1e-6)
        # Quantiles: as many examples between two neighbours as between any two others.
        starts = np.concatenate([[least], np.quantile(places, np.arange(1, len(rows)) / len(rows))])
        pull = _write_following(following, draw, parts)
        # Outputs of hardly any size leave every class as likely as any other, so that each example pulls.
        scale = 1 / (pull * len(rows) * float(np.ptp(places) + places.std()))
        # A neuron without weights and with a bias below 0 is dead for every example.
        weight[:], bias[:] = 0, -scale
        weight[rows], bias[rows] = scale * direction, -scale * starts
        return sent


def _write_following(following: NDArray[Any], draw: np.random.Generator, parts: int) -> float:
    """Let all neurons pull at the same outputs, one half up and one half down; returns how far.

    SecAgg+ rounds what it sums: the further an example pulls, the less of it is lost.
    """
    pull = _PULL if parts > 1 else 1.0
    sides = np.where(np.arange(len(following)) % 2, 1.0, -1.0)
    following[:] = pull * draw.permutation(sides)[:, None]
    return pull


@dataclass(frozen=True)
class CanaryWeights:
    """Makes weights of a first layer of which each neuron is alive for one target alone.

    These are the gradient canaries of Pasquini et al. 2022, Section 5: whether a neuron moves tells whether its target
    was in the batch. A round asks about as many targets as there are neurons, and the next one about the next ones.
    Behind a sum one client of the sample, another one in each round, has all neurons, and those of the others are dead.

    Attributes
    ----------
    layers
        Where the input enters.
    targets
        (n, inputs): the examples that are asked about.
    examples
        (m, inputs): the server's own, for which no neuron is to be alive.
    seed
        Decides at which outputs neurons pull.
    """

    layers: FirstLayers
    targets: NDArray[np.float32]
    examples: NDArray[np.float32]
    seed: int

    def __call__(self, model: Arrays, number: int, part: int = 0, parts: int = 1) -> dict[str, NDArray[Any]]:
        """Return the weights of a round."""
        sent, weight, bias, following = self.layers.copy(model)
        draw = np.random.default_rng((self.seed, number))
        turn, asked = divmod(number - 1, parts)
        pull = _write_following(following, draw, parts)
        scale = 1 / (pull * len(bias))
        weight[:], bias[:] = 0, -scale
        if part == asked:
            places = (turn * len(bias) + np.arange(min(len(bias), len(self.targets)))) % len(self.targets)
            directions, starts = self._find_halves(places)
            weight[: len(places)], bias[: len(places)] = scale * directions, -scale * starts
        return sent

    def _find_halves(self, places: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the directions (n, inputs) in which targets lie further out than others, and from where on."""
        others = np.concatenate([self.targets, self.examples]).astype(np.float64)
        centre, covariance = others.mean(axis=0), np.cov(others, rowvar=False)
        # Where features hardly vary, a little of their common variance keeps directions finite.
        ridge = _RIDGE * np.trace(covariance) / len(covariance)
        asked = self.targets[places].astype(np.float64)
        # Fisher's discriminant: Σ⁻¹(target − mean) is the direction in which the target lies furthest out, measured by
        # how far others scatter.
        directions = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), (asked - centre).T).T
        directions /= np.linalg.norm(directions, axis=1, keepdims=True) + 1e-12
        own = (asked * directions).sum(axis=1)
        reached = others @ directions.T
        # A target is there twice where it is one of the others, too.
        reached[(others[:, None] == asked).all(axis=2)] = -np.inf
        # Half way between the target and the next one.
        return directions, own - np.maximum(own - reached.max(axis=0), 1e-3) / 2


@dataclass(frozen=True)
class Fishing:
    """Makes weights of a last layer that bring one class out of a batch (Wen et al. 2022, Section 4.1).

    All classes but one have the same large bias and no weights. The layers before the last learn nothing from examples
    of these, and examples of the one class pull as if each were alone.

    Attributes
    ----------
    weight, bias
        Names of the last layer's arrays.
    first
        The class of the first round; each further round has the next one.
    """

    weight: str
    bias: str
    first: int

    def __call__(self, model: Arrays, number: int, part: int = 0, parts: int = 1) -> dict[str, NDArray[Any]]:
        """Return the weights of a round; all clients get the same."""
        del part, parts
        sent = copy_arrays(model)
        weight, bias = sent[self.weight], sent[self.bias]
        chosen = (self.first + number - 1) % len(bias)
        kept = weight[chosen].copy()
        # Softmax then gives the other classes all of the probability, in equal shares. An example of one of these has a
        # gradient by its own and the others' biases alone, and weights of 0 pass nothing of it back.
        weight[:], bias[:] = 0, _OUT_OF_REACH
        weight[chosen], bias[chosen] = kept, 0
        return sent
