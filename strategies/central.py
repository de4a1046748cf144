"""The server of central differential privacy: FedAvg with equal weights, inside Flower's own wrapper."""

from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from fedattack.defences.noise import global_draws
from strategies.honest_but_curious import Sampling, SeededFedAvg


@dataclass(frozen=True)
class CentralNoise:
    """How much noise the server adds.

    Attributes
    ----------
    multiplier
        z: the noise has standard deviation z·C, divided by the number of clients in a round.
    clip
        C, the norm to which the whole update is clipped.
    seed
        The noise follows from the seed and the round. It is as secret as the seed, which should have 128 bits.
    """

    multiplier: float
    clip: float
    seed: int


class CentralFedAvg(SeededFedAvg):
    """A FedAvg that clips updates, gives all of them the same weight, and adds noise to their mean.

    Flower's wrapper divides the noise by the number of clients. So one client must not weigh more than another.
    """

    def __init__(self, sampling: Sampling, noise: CentralNoise) -> None:
        super().__init__(sampling)
        self._seed = noise.seed
        mean = FedAvg(fraction_evaluate=0.0)
        self._private = DifferentialPrivacyServerSideFixedClipping(mean, noise.multiplier, noise.clip, sampling.size)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to this round's sample, and keep it for clipping."""
        self._private.current_arrays = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, average and add noise."""
        replies = list(replies)
        for reply in replies:
            if reply.has_content():
                for metrics in reply.content.metric_records.values():
                    metrics[self.weighted_by_key] = 1
        with global_draws((self._seed, server_round + self._done)):
            return self._private.aggregate_train(server_round, replies)
