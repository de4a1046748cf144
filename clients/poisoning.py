"""Clients that poison the model, as in the PROLIN paper (Kerkouche et al. 2023): two of its three properties.

The third, membership, needs no special client: the study puts the target record among a client's training examples, and
an honest client trains on it as on any other.
"""

from typing import Any

import numpy as np
from flwr.common import NDArray, NDArrays, Scalar

from clients.fedavg import FedAvgClient
from fedattack.learning import LocalTraining


class InvertingClient(FedAvgClient):
    """Trains honestly to an update Δ and sends w − Δ instead of w + Δ; buffers and counters stay as trained."""

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train as an honest client does, and invert the update."""
        trained, count, metrics = super().fit(parameters, config)
        learned = {name for name, _ in self._model.named_parameters()}
        sent = []
        for name, before, after in zip(self._model.state_dict(), parameters, trained, strict=True):
            sent.append(_invert(before, after) if name in learned else after)
        return sent, count, metrics


def _invert(before: NDArray, after: NDArray) -> NDArray:
    """Return w − Δ, in double precision and rounded once: −Δ, and not −Δ with the rounding of two steps."""
    return (2 * before.astype(np.float64) - after.astype(np.float64)).astype(after.dtype)


class AscendingClient(FedAvgClient):
    """Climbs the loss of its own examples instead of descending it."""

    def _train(self, server_round: int, **options: Any) -> LocalTraining:
        return super()._train(server_round, maximise=True, **options)
