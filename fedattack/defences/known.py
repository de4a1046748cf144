"""The clients' defence in the hands of an attacker who knows of it and applies it to updates of its own making."""

import copy
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedattack.base.errors import ConfigError
from fedattack.defences import DP_SGD, defence_of
from fedattack.defences.base import Batch, Settings, Update, as_float32
from fedattack.learning import LocalSGD, train_private

Defend = Callable[..., Mapping[str, NDArray[np.float32]]]


def known_defence(settings: Settings) -> Defend:
    """Make a function (update, rng, model, x, y) → what a defended client sends in place of the update.

    Parameters
    ----------
    settings
        See :data:`fedattack.defences.SETTINGS`. For ``dp-sgd``, which changes the training, also ``noise``, its noise
        multiplier, ``dp-clip``, ``training``, the keywords of :class:`fedattack.learning.LocalSGD`, and ``loss``.

    Raises
    ------
    ConfigError
        If the defence is unknown, or one of its settings is out of its range.
    """
    if settings["defence"] == DP_SGD:
        return _train_privately(settings)
    defence = defence_of(settings)

    def defend(
        update: Update, *, rng: np.random.Generator, model: nn.Module, x: NDArray[np.float32], y: NDArray[np.int64]
    ) -> Mapping[str, NDArray[np.float32]]:
        if defence is None:
            return as_float32(update)
        return defence.apply(update, rng, Batch(x, y, model))

    return defend


def _train_privately(settings: Settings) -> Defend:
    training = LocalSGD(**settings["training"])
    if training.optimizer != "SGD":
        raise ConfigError(f"defence {DP_SGD}: expected clients that train by SGD, got {training.optimizer}")

    def defend(
        update: Update, *, rng: np.random.Generator, model: nn.Module, x: NDArray[np.float32], y: NDArray[np.int64]
    ) -> Mapping[str, NDArray[np.float32]]:
        trained = copy.deepcopy(model)
        train_private(
            trained,
            x,
            y,
            **training.keywords(),
            loss=settings["loss"],
            noise=float(settings["noise"]),
            clip=float(settings["dp-clip"]),
            seed=int(rng.integers(2**31)),
        )
        before, after = model.state_dict(), trained.state_dict()
        # As sent − received, by the trained parameters alone.
        return {name: (after[name] - before[name]).numpy() for name in update}

    return defend
