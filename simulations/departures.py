"""What an active server of a run sends in place of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedattack.attacks.first_layer import find_first_layer
from fedattack.base.errors import ConfigError, NeedsError
from fedattack.learning.departures import FirstLayers, Fishing, Imprint, unlearning_model
from simulations.seeds import DEPARTURE_STREAM, derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from simulations.study import Study


def make_unlearning(study: Study) -> Mapping[str, NDArray[Any]]:
    """Return weights with which training changes nothing, which an inconsistent server sends.

    Raises
    ------
    ConfigError
        If the model learns in any case.
    """
    task, training = study.models.task, study.settings.training
    return unlearning_model(study.models.build(), task.input_shape, task.classes, training, study.models.loss)


def make_imprint(study: Study) -> Imprint:
    """Return what makes the weights that an imprinting server sends.

    Raises
    ------
    ConfigError
        If the model does not begin with two fully connected layers, or the server has no examples of its own.
    """
    rows = study.division.auxiliary
    if len(rows) < 2:
        raise ConfigError(
            "server = 'imprint' needs examples of its own, to know how far examples lie apart; set nulls and auxiliary"
        )
    x = study.data.x_train[rows]
    seed = derive_seed(study.settings.seed, DEPARTURE_STREAM)
    return Imprint(_first_layers(study), x.reshape(len(x), -1), seed)


def _first_layers(study: Study) -> FirstLayers:
    try:
        layer = find_first_layer(study.models.known())
    except NeedsError as cause:
        raise ConfigError(f"server = {study.settings.server!r}: {cause}") from None
    arrays = study.models.initial_arrays()
    names = list(arrays)
    for name in names[names.index(layer.bias) + 1 :]:
        if arrays[name].ndim == 2 and arrays[name].shape[1] == layer.neurons and layer.is_relu:
            return FirstLayers(layer.weight, layer.bias, name)
    raise ConfigError(
        f"server = {study.settings.server!r} needs a fully connected layer and a ReLU after {layer.weight}; choose "
        "such a model, as model=mlp"
    )


def make_fishing(study: Study) -> Fishing:
    """Return what makes the weights that a fishing server sends.

    Raises
    ------
    ConfigError
        If the model is no classifier that ends with a fully connected layer with a bias.
    """
    arrays, classes = study.models.initial_arrays(), study.models.task.classes
    *_, weight, bias = ["", *arrays]
    if (
        study.models.loss != "cross-entropy"
        or not weight
        or arrays[weight].ndim != 2
        or arrays[bias].shape != (classes,)
    ):
        raise ConfigError(
            f"server = {study.settings.server!r} needs a classifier whose last layer is fully connected and has a "
            f"bias; {study.models.name} does not end so"
        )
    return Fishing(weight, bias, derive_seed(study.settings.seed, DEPARTURE_STREAM) % classes)


def make_departure(study: Study) -> Callable[[Mapping[str, NDArray[Any]], int], Mapping[str, NDArray[Any]]]:
    """Return what makes of the model and the number of a round what an imprinting or fishing server sends."""
    return make_fishing(study) if study.settings.server == "fishing" else make_imprint(study)


def check_departure(study: Study) -> None:
    """Refuse what the server of a run could not send.

    Raises
    ------
    ConfigError
        If the model, or what the server has, does not allow it.
    """
    if study.settings.server == "inconsistent":
        make_unlearning(study)
    elif study.settings.server in ("imprint", "fishing"):
        make_departure(study)
