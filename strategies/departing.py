"""Servers that depart from the protocol in their first rounds: they send a different model, and ignore the replies.

The replies are about the other model. So the model itself stays as it is, and the server continues honestly.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import FitIns, FitRes, Parameters, Scalar, ndarrays_to_parameters
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies.checkpoint import Checkpoint, as_record
from strategies.fedsgd import FedSGD
from strategies.honest_but_curious import SeededFedAvg
from strategies.secure_aggregation import SecureFedAvg

Arrays = Mapping[str, NDArray[Any]]


def departs(number: int, departures: int) -> bool:
    """Say whether the server departs in a round: in the first ``departures`` ones, or in all if that is 0."""
    return not departures or number <= departures


class _Departing(SeededFedAvg):
    """Comes before a strategy, so that all is as there but for the first rounds.

    Parameters
    ----------
    initial
        The model before the first round.
    depart
        Makes what is sent of the model and the number of the round.
    departures
        In how many rounds, from the first; 0 for all.
    options
        Of the strategy.
    """

    def __init__(
        self,
        *args: Any,
        initial: Arrays,
        depart: Callable[[Arrays, int], Arrays],
        departures: int,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._initial = initial
        self._depart = depart
        self._departures = departures

    def resume(self, checkpoint: Checkpoint, grid: Grid) -> ArrayRecord:
        """Go on after a stopped run; while the server departs, its model is the first one."""
        if departs(checkpoint.done, self._departures):
            self._done = checkpoint.done
            return as_record(self._initial)
        return super().resume(checkpoint, grid)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send this round's sample the model, or what is sent in its place."""
        number = server_round + self._done
        if departs(number, self._departures):
            arrays = as_record(self._depart(self._initial, number))
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies, or leave the model as it is."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        if departs(server_round + self._done, self._departures):
            return as_record(self._initial), metrics
        return arrays, metrics


class DepartingFedAvg(_Departing):
    """A FedAvg that departs."""


class DepartingFedSGD(_Departing, FedSGD):
    """A FedSGD that departs."""


class ImprintingSecureFedAvg(SecureFedAvg):
    """A FedAvg over sums that in its first rounds sends each client of the sample a different model.

    Parameters
    ----------
    imprint
        Makes it from the model, the number of the round, the client's index in the sample, and the sample's size.
    departures
        As for the strategies above.
    options
        Arguments of :class:`strategies.secure_aggregation.SecureFedAvg`.
    """

    def __init__(
        self, initial: Arrays, *, imprint: Callable[[Arrays, int, int, int], Arrays], departures: int, **options: Any
    ) -> None:
        super().__init__(initial, **options)
        self._initial = initial
        self._imprint = imprint
        self._departures = departures

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Send this round's sample the model, or each client its own."""
        instructions = super().configure_fit(server_round, parameters, client_manager)
        number, sent = server_round + self._done, []
        if not departs(number, self._departures):
            return instructions
        # The order of the instructions is another one in each round.
        nodes = sorted(proxy.node_id for proxy, _ in instructions)
        for proxy, asked in instructions:
            own = self._imprint(self._initial, number, nodes.index(proxy.node_id), len(nodes))
            arrays = [np.asarray(own[name]) for name in self._initial]
            sent.append((proxy, FitIns(ndarrays_to_parameters(arrays), asked.config)))
        return sent

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Take the aggregate for the next model, or leave the model as it is."""
        if not departs(server_round + self._done, self._departures):
            return super().aggregate_fit(server_round, results, failures)
        return ndarrays_to_parameters([np.asarray(array) for array in self._initial.values()]), {}
