"""Membership by gradient canaries: an active server's neurons that a single example moves."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.base import Attack, Seen
from fedattack.attacks.first_layer import FirstLayer, find_first_layer, find_own_neurons
from fedattack.attacks.local_models import readable
from fedattack.attacks.matching import check_model
from fedattack.base.errors import NeedsError
from fedattack.record import Observation, Round
from fedattack.record.format import Arrays
from fedattack.record.means import mean_of
from fedattack.threats.membership.membership import LikelyMembers
from fedattack.threats.membership.options import CanaryMembershipOptions

Floats = NDArray[np.float64]


class CanaryMembership(Attack):
    """Whether the neurons moved that are alive for one target alone, as the weights say that a client was sent.

    The scores are how far such a neuron's bias moved, as a part of the largest move of that client's biases; NaN where
    no neuron asked a client about a target.
    """

    options = CanaryMembershipOptions()
    found = LikelyMembers
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture",
        "the examples; it asks for each client whether it trained on them",
    )

    def attack(self, seen: Seen) -> LikelyMembers:
        """Read the biases of each round."""
        record, targets = seen.record, seen.targets
        check_model(seen.model.build(), record)
        layer = find_first_layer(seen.model)
        x = targets.x.reshape(len(targets), -1).astype(np.float64)
        columns = {node: column for column, node in enumerate(record.nodes)}
        per_round, rounds = [], []
        for done, round_ in enumerate(record, start=1):
            scores = np.full((len(x), len(columns)), np.nan)
            for node, start, moved in _read_biases(round_, layer):
                _score(x, start, moved, scores[:, columns[node]])
            if not np.isnan(scores).all():
                per_round.append(scores)
                rounds.append(round_.number)
            seen.progress(done, len(record))
        if not rounds:
            raise NeedsError(
                f"attack {self.name} needs neurons that only one target moves, and {record.path} holds none"
            )
        stacked = np.stack(per_round)
        # The largest that is known.
        highest = np.fmax.reduce(stacked)
        return LikelyMembers.of(targets, {"canary": highest}, stacked, clients=record.nodes, rounds=rounds)


def _read_biases(round_: Round, layer: FirstLayer) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield of each client the first layer that it was sent, (neurons, inputs + 1), and how its biases moved.

    A sum tells only neurons that are alive in one client alone; all others count as dead. Replies that lack the
    layer, or hold it in another shape, are left out.
    """
    sent: list[tuple[Observation, Floats]] = []
    for seen in round_.observations:
        start = _join(seen.received, layer) if seen.status == "ok" else None
        if start is not None:
            sent.append((seen, start))
    if round_.aggregate is not None:
        total = _join(round_.aggregate, layer)
        if sent and total is not None:
            yield from _tell_apart(sent, total[:, -1])
        return
    for seen, start in sent:
        replied = _join(seen.arrays, layer)
        if replied is not None:
            yield seen.node, start, replied[:, -1] - (0 if round_.protocol == "fedsgd" else start[:, -1])


def _tell_apart(sent: Sequence[tuple[Observation, Floats]], biases: Floats) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield the same of clients that were sent different layers, of whose biases the mean is given."""
    counts = [seen.count for seen, _ in sent]
    if None in counts:
        return
    starts = [start for _, start in sent]
    before = mean_of([{"bias": start[:, -1]} for start in starts], [count or 0 for count in counts], "message")
    moved = biases - before["bias"]
    for (seen, start), rows in zip(sent, find_own_neurons(starts), strict=True):
        if rows.any():
            yield seen.node, np.where(rows[:, None], start, 0.0), np.where(rows, moved, 0.0)


def _join(arrays: Arrays | None, layer: FirstLayer) -> Floats | None:
    """Return weights and bias of the first layer as one matrix (neurons, inputs + 1), if they are there."""
    read = readable(arrays)
    if read is None or not layer.fits(read):
        return None
    joined = layer.join(read)
    return joined if np.isfinite(joined).all() else None


def _score(x: Floats, start: Floats, moved: Floats, scores: Floats) -> None:
    """Write for each target (n, inputs) that neurons ask about how far these moved."""
    is_alive = x @ start[:, :-1].T + start[:, -1] > 0
    lone = is_alive & (is_alive.sum(axis=0) == 1)
    asked = lone.any(axis=1)
    moves = np.abs(moved) / max(float(np.abs(moved).max()), 1e-300)
    scores[asked] = np.where(lone[asked], moves, 0.0).max(axis=1)
