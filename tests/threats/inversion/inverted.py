"""Invert batches as the attack does, without a record; and scores that are made by hand."""

from collections.abc import Iterable

import numpy as np

from fedattack.attacks import Scores
from fedattack.base.machine import MEMORY
from fedattack.threats.inversion.gradient_inversion import groups_of, invert_group
from fedattack.threats.inversion.inversion import InvertedReply, ReconstructedExamples


def invert(client, batches, shape, how, *, seed=0, memory=MEMORY):
    found = {}
    for group in groups_of(batches, how, client.training, memory, client.device):
        found |= invert_group(client, group, shape, how, seed=seed, memory=memory)
    return [found[number] for number in range(len(batches))]


def make_scores(
    images: np.ndarray, labels: np.ndarray, clients: Iterable[str], *, each: int, rounds: int = 1
) -> Scores:
    """Make scores of so many examples of each client, round by round and client by client."""
    replies = []
    for number in range(1, rounds + 1):
        for client in clients:
            replies.append(InvertedReply(f"node{client}", client, number, records=each, statistics=0))
    found = ReconstructedExamples(
        batches=tuple(replies),
        method="cos",
        iterations=1,
        restarts=1,
        variation=0.0,
        statistics=0.0,
        order="fixed",
        box=None,
        label="rule",
        targets="",
        images=images,
        labels=labels,
        of_batch=np.repeat(np.arange(len(replies)), each),
    )
    return Scores.of("inversion", found)
