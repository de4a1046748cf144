"""Batches that are hashed together are noted as if each were hashed at once."""

import numpy as np
import pytest

from fedattack.witness import batches
from fedattack.witness.seen_model import SeenModel
from fedattack.witness.watch import CallWatch


def train(model: SeenModel, largest: list[int]) -> None:
    """Train and evaluate on batches of several sizes, shapes and types, in an order that a seed decides."""
    rng = np.random.default_rng(3)
    pool = rng.normal(size=(300, 4)).astype(np.float32)
    for number in range(400):
        rows = pool[rng.integers(0, 300, size=rng.integers(1, 9))]
        if number % 11 == 0:
            rows = rows.astype(np.float64)
        if number % 53 == 0:
            rows = rows.reshape(-1, 2, 2)
        trains = bool(rng.random() < 0.7)
        begun = model.start(rows, trains=trains)
        begun.labels = [int(value) for value in rng.integers(0, 3, size=len(rows))] if rng.random() < 0.8 else None
        begun.differentiated = trains and bool(rng.random() < 0.9)
        if rng.random() < 0.1:
            model.discard()
        if rng.random() < 0.3:
            model.step()
        largest.append(sum(len(raw) for _, raw in model.batches._small._waiting) + len(model.batches._decided))
    model.end(without_steps=False)


@pytest.mark.parametrize("keep", [10, 1000])
@pytest.mark.parametrize("passes", [4, 1024])
def test_batches_that_are_hashed_together_count_as_if_each_were_hashed_alone(keep, passes, monkeypatch):
    monkeypatch.setattr(batches, "_PENDING", passes)
    found = []
    for small in (0, 2**16):
        monkeypatch.setattr(batches, "_SMALL", small)
        model, largest = SeenModel(CallWatch(keep=keep), None, "a model", "kind"), []
        train(model, largest)
        found.append(model)
        # Of what waits, little is held, however long a client trains.
        assert max(largest) <= batches._LATER * (8 * 16 + 1)
    alone, together = found
    assert (alone.batches.uses, alone.steps, alone.batches.sizes) == (
        together.batches.uses,
        together.steps,
        together.batches.sizes,
    )
    for role in ("trained", "evaluated"):
        one, other = getattr(alone.batches, role), getattr(together.batches, role)
        assert one.labels.items == other.labels.items
        assert len(one.labels)
        first, second = one.seen(), other.seen()
        assert first.total == second.total
        assert first.counts == second.counts
        assert first.x.tobytes() == second.x.tobytes()
        assert first.y.tolist() == second.y.tolist()
        assert first.hashes.tobytes() == second.hashes.tobytes()
