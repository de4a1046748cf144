"""The FedMD server: it averages predictions on public records into a consensus."""

import logging
from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from strategies.honest_but_curious import Sampling, SeededFedAvg

log = logging.getLogger("fedattack")

PREDICTIONS = "predictions"
"""Name of the one array that goes to and fro."""


class FedMD(SeededFedAvg):
    """Averages the clients' predictions with equal weights (Li & Wang 2019; Hu et al. 2023, Algorithm 3, line 17).

    It leaves predictions out of the consensus that have a different shape or are not finite. Without usable ones the
    consensus stays.

    Parameters
    ----------
    sampling
        Which clients take part in a round.
    shape
        (public records, classes).
    """

    def __init__(self, sampling: Sampling, *, shape: tuple[int, int]) -> None:
        super().__init__(sampling)
        self._shape = shape

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the usable predictions."""
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
