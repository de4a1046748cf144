"""The FedSGD server: it steps the model along the clients' average gradient."""

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedattack.learning import gradient_step
from strategies.checkpoint import as_record
from strategies.honest_but_curious import Sampling, SeededFedAvg


class FedSGD(SeededFedAvg):
    """Steps θ ← θ − η · Σ n_k g_k / Σ n_k over the received gradients (McMahan et al. 2017; Hu et al. 2023).

    A reply has one array for each of the model's, with its name and shape. Without replies the model stays.

    Parameters
    ----------
    sampling
        Which clients take part in a round.
    lr
        Learning rate η.
    """

    def __init__(self, sampling: Sampling, *, lr: float) -> None:
        super().__init__(sampling)
        self._lr = lr
        self._model = ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to this round's sample, and keep it for the step."""
        self._model = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the gradients, weighted by examples, and step the model."""
        gradient, metrics = super().aggregate_train(server_round, replies)
        if gradient is None:
            return None, metrics
        stepped = gradient_step(_arrays_of(self._model), _arrays_of(gradient), self._lr)
        return as_record(stepped), metrics


def _arrays_of(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    return {name: array.numpy() for name, array in record.items()}
