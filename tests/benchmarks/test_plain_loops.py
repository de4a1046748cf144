"""Loops that attacks are timed against find what the attacks find."""

from dataclasses import replace

import numpy as np
import pytest

from tests.benchmarks import plain_loops
from tests.benchmarks.peers.attributes import Case
from tests.benchmarks.peers.runs import recorded

RUNS = {
    "sia-fedavg": ("clients=3", "rounds=2", "targets=10", "size=200", "dataset=synthetic"),
    "membership": ("clients=4", "rounds=2", "records-per-client=5", "local-epochs=2", "nulls=15", "auxiliary=0"),
}
CONTESTS = {"sia-fedavg": plain_loops.source, "membership": plain_loops.membership}


@pytest.mark.parametrize("preset", CONTESTS)
def test_measured_values_are_the_same(preset):
    with recorded(preset, RUNS[preset], 0) as (record, knowledge, _):
        contest = CONTESTS[preset](record, knowledge)
        ours, plain = contest.ours(), contest.plain()
    assert ours.keys() == plain.keys()
    for name, values in ours.items():
        assert np.ptp(plain[name]) > 0
        np.testing.assert_allclose(values, plain[name], rtol=1e-4, atol=1e-5)
    assert "apart by" in contest.told(ours, plain)


def test_searches_end_at_the_same_quality(monkeypatch):
    monkeypatch.setattr(plain_loops, "IMAGES", 2)
    for module in (plain_loops, plain_loops.inversion):
        monkeypatch.setattr(module, "EVALUATIONS", 40)
    contest = plain_loops.inversions()
    ours, plain = contest.ours(), contest.plain()
    assert len(ours) == len(plain) == 2
    for one, other in zip(ours, plain, strict=True):
        # rounding grows with every step where an image is not yet found
        assert np.abs(one - other).mean() < 0.06
    assert contest.told(ours, plain).count("dB") == 2


def test_matching_decides_alike():
    with recorded("ara-cos", ("records-per-client=12", "rounds=2"), 0) as run:
        case = Case.of(*run)
        contest = plain_loops.attributes(replace(case, clients=case.clients[:1]))
        ours, plain = contest.ours(), contest.plain()
    np.testing.assert_array_equal(ours, plain)
