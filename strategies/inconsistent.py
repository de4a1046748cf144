"""The inconsistent server, an active one: it reduces the sum of secure aggregation to one client's update.

All clients but one receive a model that training does not change, so the server knows what they add to the sum
(Pasquini, Francati and Ateniese 2022, Section 4). A round takes several exchanges: one for each victim, and one for all
other clients. The server averages what came, so the model is the same as without the attack.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flwr.common import FitIns, FitRes, Parameters, Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from fedattack.record.singled import Weighing
from strategies.honest_but_curious import Sampling, nodes_at
from strategies.secure_aggregation import SecureFedAvg


def plan_exchanges(sampling: Sampling, victims: int, rounds: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield the exchanges of a run: the round, positions of clients that are sent the model, and of the others.

    In each exchange of a round as many clients take part as with an honest server.
    """
    for number in range(1, rounds + 1):
        places = sampling.draw(range(sampling.clients), number)
        groups = [[place] for place in places if place < victims]
        rest = [place for place in places if place >= victims]
        for group in [*groups, rest] if rest else groups:
            yield number, group, [place for place in places if place not in group]


class InconsistentFedAvg(SecureFedAvg):
    """A FedAvg over sums that sends all but one victim a model that does not learn.

    Parameters
    ----------
    unlearning
        The arrays of that model, by name.
    victims
        Number of clients that are singled out, counted from the first in the Grid's order.
    weighing
        How SecAgg+ weighs and rounds what it sums.
    options
        Arguments of :class:`strategies.secure_aggregation.SecureFedAvg`.
    """

    def __init__(
        self,
        initial: Mapping[str, NDArray[Any]],
        *,
        unlearning: Mapping[str, NDArray[Any]],
        victims: int,
        weighing: Weighing,
        sampling: Sampling,
        rounds: int,
        **options: Any,
    ) -> None:
        super().__init__(initial, sampling=sampling, rounds=rounds, **options)
        self._unlearning = [unlearning[name] for name in initial]
        self._exchanges = list(plan_exchanges(sampling, victims, rounds))
        self._weighing = weighing
        self._model: list[NDArray[Any]] = list(initial.values())
        self._asked: set[str] = set()
        self._total = 0.0
        self._sum: list[NDArray[Any]] = []

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Send the model to some of this round's sample, and to all others the one that does not learn."""
        number, asked, others = self._exchanges[server_round - 1]
        proxies, config = client_manager.all(), self._config | {"server-round": number}
        nodes = {str(node) for node in nodes_at(self._grid, asked)}
        if not self._total:
            self._sum = [np.zeros(array.shape) for array in self._model]
        self._asked = nodes
        # The recorder takes the first model for the common one.
        instructions = [(proxies[node], FitIns(parameters, config)) for node in sorted(nodes)]
        same = FitIns(ndarrays_to_parameters(self._unlearning), config)
        return instructions + [(proxies[str(node)], same) for node in nodes_at(self._grid, others)]

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Keep what the clients with the model added to the sum; after the round's last exchange, average it."""
        counts = {str(proxy.node_id): result.num_examples for proxy, result in results}
        asked = [count for node, count in counts.items() if node in self._asked]
        if asked:
            weight = sum(map(self._weighing.weight, asked))
            rest = [count for node, count in counts.items() if node not in self._asked]
            for place, mean in enumerate(parameters_to_ndarrays(results[0][1].parameters)):
                known = [(self._unlearning[place], count) for count in rest]
                self._sum[place] += weight * self._weighing.subtract(mean, known, asked)
            self._total += weight
        is_last = server_round == len(self._exchanges) or (
            self._exchanges[server_round][0] != self._exchanges[server_round - 1][0]
        )
        if is_last and self._total:
            pairs = zip(self._sum, self._dtypes, strict=True)
            self._model = [(total / self._total).astype(dtype) for total, dtype in pairs]
            self._total = 0.0
        return ndarrays_to_parameters(self._model), {}

    @property
    def exchanges(self) -> int:
        """Number of exchanges in the run."""
        return len(self._exchanges)
