"""Scores of source inference that are made by hand."""

import numpy as np

from fedattack.attacks import Scores
from fedattack.threats.source.sia import LikelySources, combine_rounds


def make_scores(losses: np.ndarray, labels: np.ndarray, clients: list[str]) -> Scores:
    """Make scores of losses (rounds, targets, clients), of clients (nodes) with the same prior."""
    count = len(clients)
    found = LikelySources(
        clients=tuple(clients),
        rounds=tuple(range(1, len(losses) + 1)),
        prior="uniform",
        targets="",
        losses=losses,
        combined=combine_rounds(losses),
        log_prior=np.log(np.full(count, 1 / count)),
        decisions=np.zeros(len(labels), dtype=np.int64),
        labels=labels,
    )
    return Scores.of("sia", found)
