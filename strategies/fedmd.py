"""The FedMD server: it averages predictions on public records into a consensus, under an observer."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fedattack.observe import ObservedStrategy
from strategies.honest_but_curious import SeededFedAvg

log = logging.getLogger("fedattack")

PREDICTIONS = "predictions"
"""Name of the one array that goes to and fro."""


class FedMD(SeededFedAvg):
    """Averages the clients' predictions, each client alike (Li & Wang 2019; Hu et al. 2023, Algorithm 3, line 17).

    Predictions of another shape, or that are not finite, are left out of the consensus, which they would spoil for all.
    Without usable ones the consensus stays.

    Parameters
    ----------
    fraction, clients, seed
        As for :class:`strategies.honest_but_curious.SeededFedAvg`: with the same ones both sample the same clients.
    shape
        (public records, classes).
    """

    def __init__(self, *, fraction: float, clients: int, seed: int, shape: tuple[int, int]) -> None:
        super().__init__(fraction=fraction, clients=clients, seed=seed)
        self._shape = shape

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average what can be used."""
        total: NDArray[np.float64] = np.zeros(self._shape)
        count = 0
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                log.warning("round %s: node %s failed", server_round, node)
                continue
            arrays = [array.numpy() for record in reply.content.array_records.values() for array in record.values()]
            if [array.shape for array in arrays] != [self._shape] or arrays[0].dtype.kind != "f":
                log.warning("round %s, node %s left out: no predictions of shape %s", server_round, node, self._shape)
            elif not np.isfinite(arrays[0]).all():
                log.warning("round %s, node %s left out: its predictions are not finite", server_round, node)
            else:
                total += arrays[0]
                count += 1
        if not count:
            return None, None
        return ArrayRecord({PREDICTIONS: Array((total / count).astype(np.float32))}), None


def observed_fedmd(
    out: str, *, fraction: float, clients: int, seed: int, shape: tuple[int, int], facts: Mapping[str, Any]
) -> ObservedStrategy:
    """Build a FedMD server that records what it sees.

    Parameters
    ----------
    out
        Folder of the record.
    fraction, clients, seed, shape
        See :class:`FedMD`; the seed is kept in the record's manifest.
    facts
        Kept in the record's manifest.
    """
    inner = FedMD(fraction=fraction, clients=clients, seed=seed, shape=shape)
    # The observer fills in strftime directives; this path is meant as it stands. It is told the array's name because a
    # reply of the first round, whose message has no array to take a name from, brings none.
    return ObservedStrategy(
        inner, out.replace("%", "%%"), names=[PREDICTIONS], protocol="fedmd", seed=seed, facts=facts
    )
