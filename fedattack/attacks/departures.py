"""What an active server sends in place of the model, made for the clients' architecture."""

from typing import Any

from numpy.typing import NDArray

from fedattack.attacks.first_layer import find_first_layer
from fedattack.attacks.knowledge import ModelKnowledge
from fedattack.base.errors import NeedsError
from fedattack.learning.departures import CanaryWeights, FirstLayers, Fishing, Imprint


def make_imprint(known: ModelKnowledge, x: NDArray[Any], seed: int) -> Imprint:
    """Return what makes an imprinting server's weights, of its own examples (n, …); the seed decides the directions.

    Raises
    ------
    NeedsError
        If the model does not begin with two fully connected layers and a ReLU between them, or the server has fewer
        than two examples of its own.
    """
    if len(x) < 2:
        raise NeedsError(
            "it needs its own examples, to know how far apart examples are: set nulls and auxiliary in a preset; "
            "for an app use --hold-out 0.1, or evaluate in it"
        )
    return Imprint(_find_first_layers(known), x.reshape(len(x), -1), seed)


def make_canaries(known: ModelKnowledge, targets: NDArray[Any], x: NDArray[Any], seed: int) -> CanaryWeights:
    """Return what makes the weights of a server that plants canaries, of targets (n, …) and its own examples (m, …).

    Raises
    ------
    NeedsError
        If the model does not begin with two fully connected layers and a ReLU between them, or there is no target.
    """
    if not len(targets):
        raise NeedsError("it needs target records, to ask about: a preset has nulls")
    return CanaryWeights(_find_first_layers(known), targets.reshape(len(targets), -1), x.reshape(len(x), -1), seed)


def _find_first_layers(known: ModelKnowledge) -> FirstLayers:
    # The order of a state dict is the order in which layers were made, for most models that in which they are called.
    layer, arrays = find_first_layer(known), known.build().state_dict()
    names = list(arrays)
    for name in names[names.index(layer.bias) + 1 :]:
        if arrays[name].ndim == 2 and arrays[name].shape[1] == layer.neurons and layer.is_relu:
            return FirstLayers(layer.weight, layer.bias, name)
    raise NeedsError(f"it needs a ReLU and another fully connected layer after {layer.weight}, such as model=mlp has")


def make_fishing(known: ModelKnowledge, first: int) -> Fishing:
    """Return what makes a fishing server's weights, which ask about the class ``first`` in the first round.

    Raises
    ------
    NeedsError
        If the model is no classifier that ends with a fully connected layer with a bias.
    """
    arrays = known.build().state_dict()
    # The last two arrays are the last layer's, if it has a bias; "" stands in for a model without any.
    *_, weight, bias = ["", *arrays]
    ends_so = bool(weight) and arrays[weight].ndim == 2 and arrays[bias].shape == (known.classes,)
    if known.loss != "cross-entropy" or not ends_so:
        raise NeedsError(
            "it needs a classifier whose last layer is fully connected and has a bias; this model does not end this way"
        )
    return Fishing(weight, bias, first % known.classes)
