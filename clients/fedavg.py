"""The FedAvg client: local SGD on its own examples. It knows nothing about attacks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar
from torch import nn

from fedattack.defences import hand_over
from fedattack.learning import LocalTraining, pick_device, train_local, train_private
from simulations.privacy import noise_of
from simulations.study import Study


class FedAvgClient(NumPyClient):
    """Trains the received model on the client's examples and returns it (McMahan et al. 2017).

    Parameters
    ----------
    study
        Settings, data and model of the run.
    client
        Index of this client's partition.
    state
        What Flower keeps for this client between rounds; this client keeps nothing.

    Raises
    ------
    ConfigError
        If the run's privacy budget cannot be met with the examples of this client.
    """

    def __init__(self, study: Study, client: int, state: RecordDict | None = None) -> None:
        self._study = study
        self._settings = study.settings
        self._client = client
        self._state = RecordDict() if state is None else state
        self._x, self._y = study.records_of(client)
        self._model = self._build_model()
        self._noise = noise_of(self._settings, len(self._y))

    def _build_model(self) -> nn.Module:
        return self._study.models.build()

    @property
    def _device(self) -> torch.device:
        return pick_device(self._settings.device, parameters=sum(p.numel() for p in self._model.parameters()))

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train for ``local-epochs`` from ``parameters``; arrays are the state dict's, in its order."""
        load_arrays(self._model, parameters)
        hand_over(self._model, self._x, self._y)
        training = self._train(int(config["server-round"]))
        return dump_arrays(self._model), len(self._y), self._metrics(training.loss)

    def _metrics(self, loss: float) -> dict[str, Scalar]:
        """Say what goes along in plaintext: nothing under DP-SGD, because it is computed without its noise."""
        if self._noise:
            return {}
        metrics: dict[str, Scalar] = {"train-loss": loss}
        if self._settings.statistics:
            metrics |= self._describe_classes()
        return metrics

    def _describe_classes(self) -> dict[str, Scalar]:
        """Return how many examples of each class there are, and the mean of each input over these; 0 where none."""
        settings, classes = self._settings, self._study.models.task.classes
        counts = np.bincount(self._y, minlength=classes)
        counts[counts < settings.statistics_least] = 0
        flat = self._x.reshape(len(self._x), -1).astype(np.float64)
        means = np.zeros((classes, flat.shape[1]))
        for label in np.flatnonzero(counts).tolist():
            means[label] = flat[self._y == label].mean(axis=0)
        described = np.column_stack([counts, means])
        if settings.statistics_noise:
            # The same in each round: means over several draws would tell what a single one hides.
            rng = np.random.default_rng(self._study.noise_seed(self._client, 0))
            described += settings.statistics_noise * rng.normal(size=described.shape)
        found: dict[str, Scalar] = {f"class-{label}-count": float(row[0]) for label, row in enumerate(described)}
        for label, row in enumerate(described):
            found |= {f"class-{label}-mean-{column}": float(value) for column, value in enumerate(row[1:])}
        return found

    def _train(self, server_round: int, **options: Any) -> LocalTraining:
        train: Callable[..., LocalTraining] = train_local
        seed = self._study.client_seed(self._client, server_round)
        if self._noise:
            train = partial(train_private, noise=self._noise, clip=self._settings.dp_clip)
            seed = self._study.noise_seed(self._client, server_round)
        return train(
            self._model,
            self._x,
            self._y,
            **self._settings.training.keywords(),
            seed=seed,
            device=self._device,
            loss=self._study.models.loss,
            **options,
        )


def load_arrays(model: nn.Module, arrays: NDArrays) -> None:
    """Put ``arrays`` into the model's state dict, in its order."""
    tensors = [torch.from_numpy(array.copy()) for array in arrays]
    model.load_state_dict(dict(zip(model.state_dict(), tensors, strict=True)))


def dump_arrays(model: nn.Module) -> NDArrays:
    """Return the model's state dict as arrays, in its order."""
    return [value.detach().cpu().numpy() for value in model.state_dict().values()]
