"""What a model returned last is kept with what it took, as long as that is little."""

import numpy as np

from fedattack.witness import outputs
from fedattack.witness.outputs import ModelOutputs

X = np.arange(60, dtype=np.float32).reshape(10, 6)


def made(*sizes) -> ModelOutputs:
    kept, start = ModelOutputs(0, lambda width: False), 0
    for size in sizes:
        rows = X[start : start + size]
        kept.add((size, 2), lambda rows=rows: rows[:, :2], rows.shape, lambda rows=rows: rows)
        start += size
    return kept


def test_inputs_of_outputs_on_end_are_put_together():
    kept = made(4, 3, 3)
    np.testing.assert_array_equal(kept.read_inputs(range(1, 3)), X[4:])
    kept.add((5, 2), lambda: X[:5, :2])
    assert kept.read_inputs(range(2, 4)) is None


def test_the_oldest_inputs_go_first_and_their_outputs_stay(monkeypatch):
    monkeypatch.setattr(outputs, "INPUTS", 36)
    kept = made(4, 3, 3)
    assert kept.read_inputs(range(1)) is None
    np.testing.assert_array_equal(kept.read_inputs(range(1, 3)), X[4:])
    assert len(kept.read()) == 3
