"""The honest-but-curious server: FedAvg to the letter, under an observer."""

from collections.abc import Mapping
from typing import Any

from flwr.serverapp.strategy import FedAvg

from fedattack.observe import ObservedStrategy


def honest_but_curious(
    out: str, *, fraction: float, clients: int, seed: int, facts: Mapping[str, Any]
) -> ObservedStrategy:
    """Build a FedAvg server that records what it sees.

    Parameters
    ----------
    out
        Folder of the record.
    fraction
        Share of the clients that is sampled in each round.
    clients
        How many clients there are; the server waits for all of them before it starts.
    seed, facts
        Kept in the record's manifest.
    """
    inner = FedAvg(
        fraction_train=fraction,
        fraction_evaluate=0.0,
        min_train_nodes=max(1, round(fraction * clients)),
        min_available_nodes=clients,
    )
    return ObservedStrategy(inner, out, seed=seed, facts=facts)
