"""The FedAvg client: local SGD on its own records, and nothing that knows of attacks."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from flwr.app import RecordDict
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar
from torch import nn

from fedattack.defences import hand_over
from fedattack.learning import LocalTraining, pick_device, train_local, train_private
from simulations.privacy import noise_of
from simulations.study import Study

# The property by which a client says which partition it holds.
CLIENT_PROPERTY = "client"


class FedAvgClient(NumPyClient):
    """Trains the received model on the client's records and returns it (McMahan et al. 2017).

    Parameters
    ----------
    study
        Data and model of the run.
    client
        Index of this client's partition.
    config
        Run config: ``local-epochs``, ``batch-size``, ``lr``, ``momentum``, ``weight-decay``, ``device``, and for DP-SGD
        ``dp-noise`` or ``dp-epsilon``, ``dp-clip``, ``dp-delta``, ``rounds``.
    state
        What Flower keeps for this client from round to round; this client keeps nothing.
    """

    def __init__(self, study: Study, client: int, config: Mapping[str, Any], state: RecordDict | None = None) -> None:
        self._study = study
        self._client = client
        self._config = config
        self._state = RecordDict() if state is None else state
        self._x, self._y = study.records_of(client)
        self._model = study.build_model()
        self._noise = noise_of(config, len(self._y))

    def get_properties(self, config: dict[str, Scalar]) -> dict[str, Scalar]:
        """Say which partition this client holds, so that a simulation can put its nodes into a repeatable order."""
        return {CLIENT_PROPERTY: str(self._client)}

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train for ``local-epochs`` from ``parameters``; arrays are the state dict's, in its order."""
        load_arrays(self._model, parameters)
        hand_over(self._model, self._x, self._y)
        training = self._train(int(config["server-round"]))
        return dump_arrays(self._model), len(self._y), self._told(training.loss)

    def _told(self, loss: float) -> dict[str, Scalar]:
        """Say what goes along in plaintext: not the loss under DP-SGD, because it is computed without noise."""
        return {} if self._noise else {"train-loss": loss}

    def _train(self, server_round: int, **options: Any) -> LocalTraining:
        train: Callable[..., LocalTraining] = train_local
        if self._noise:
            train = partial(train_private, noise=self._noise, clip=float(self._config["dp-clip"]))
        return train(
            self._model,
            self._x,
            self._y,
            epochs=int(self._config["local-epochs"]),
            batch_size=int(self._config["batch-size"]),
            lr=float(self._config["lr"]),
            momentum=float(self._config["momentum"]),
            weight_decay=float(self._config["weight-decay"]),
            seed=self._study.client_seed(self._client, server_round),
            device=pick_device(str(self._config["device"])),
            loss=self._study.loss,
            **options,
        )


def load_arrays(model: nn.Module, arrays: NDArrays) -> None:
    """Put ``arrays`` into the model's state dict, in its order."""
    state = model.state_dict()
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in zip(state, arrays, strict=True)})


def dump_arrays(model: nn.Module) -> NDArrays:
    """Return the model's state dict as arrays, in its order."""
    return [value.detach().cpu().numpy() for value in model.state_dict().values()]
