"""A canary: a client without examples that sends a random direction, to measure a run's ε."""

import numpy as np
from flwr.app import RecordDict
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from simulations.canaries import move_by_canary
from simulations.privacy import is_private
from simulations.study import Study


class CanaryClient(NumPyClient):
    """Sends the received model, moved by the clipping norm in its own direction (Andrew et al. 2024, Section 4).

    Parameters
    ----------
    study, state
        As for :class:`clients.fedavg.FedAvgClient`.
    client
        Index of its partition, after those of all clients.
    """

    def __init__(self, study: Study, client: int, state: RecordDict | None = None) -> None:
        self._study = study
        self._client = client

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Return the moved arrays, with the example count of a usual client and a loss of 0."""
        received = {str(place): array for place, array in enumerate(parameters)}
        number = self._client - self._study.settings.clients
        sent = move_by_canary(self._study.settings, number, received)
        metrics: dict[str, Scalar] = {} if is_private(self._study.settings) else {"train-loss": 0.0}
        count = max(1, round(float(np.mean(self._study.sizes))))
        return list(sent.values()), count, metrics
