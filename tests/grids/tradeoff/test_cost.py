"""Time and memory of known actions, and of real defences on a real update."""

import sys
import time
from statistics import median

import numpy as np
import pytest

from fedattack.base.errors import FedAttackError
from fedattack.grids.tradeoff.cost import Cost, measure_cost, measure_peak_memory, summarise_cost, time_side_by_side
from fedattack.runs.presets import load_preset, resolve_settings

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory's high-water mark is Linux's")


def test_actions_are_timed_in_turn():
    order = []

    def action(name, seconds):
        def act():
            order.append(name)
            time.sleep(seconds)

        return act

    costs = time_side_by_side({"short": action("short", 0.001), "long": action("long", 0.02)}, seconds=0.0)
    assert order[:8] == ["short", "long"] * 4, "once to warm up, and three turns even when the time is up"
    assert len(costs["short"].seconds) == len(costs["long"].seconds) == 3
    assert 0.001 <= median(costs["short"].seconds) < 0.02 <= median(costs["long"].seconds)


@LINUX
@pytest.mark.slow
def test_memory_is_what_was_needed_at_most_and_not_what_is_kept():
    measure_peak_memory(lambda: np.ones(1_000_000))
    for _ in range(2):
        # What was freed before is no memory at hand.
        found = measure_peak_memory(lambda: [np.ones(5_000_000) for _ in range(4)] and None)
        assert 150e6 < found < 200e6
        in_turn = measure_peak_memory(lambda: [float(np.ones(5_000_000).sum()) for _ in range(4)])
        assert 35e6 < in_turn < 80e6
    assert measure_peak_memory(lambda: None) < 5e6


def test_a_cost_beyond_another_one_is_their_difference_turn_by_turn():
    found = summarise_cost(Cost([3.0, 5.0, 4.0], 100), less=Cost([1.0, 1.0, 2.0], 30))
    assert found == {"seconds": 2.0, "fastest": 2.0, "slowest": 4.0, "turns": 3, "memory": 70}
    assert summarise_cost(Cost([1.0], None))["memory"] is None


@pytest.fixture(scope="module")
def settings():
    small = ["rounds=2", "size=300", "clients=3", "local-epochs=2", "device=cpu"]
    small += ["recup-zoo-models=5", "recup-zoo-width=128", "recup-zoo-epochs=1"]
    return {**resolve_settings(load_preset("quickstart"), small), "seed": 0}


@pytest.mark.long
def test_defences_are_measured_on_a_real_update(settings):
    found = measure_cost(settings, {"soteria": 0.5, "dp-gaussian": 0.01, "recup": 0.01, "dp-sgd": 1.0})
    assert list(found["defences"]) == ["sparsify", "soteria", "dp-gaussian", "recup", "dp-sgd"]
    assert found["entries"] == 15010
    assert 0 < found["records"] < 300
    assert found["training"]["seconds"] > 0
    for entry in found["defences"].values():
        assert entry["fastest"] <= entry["seconds"] <= entry["slowest"]
        whole = found["training"]["seconds"] + entry["seconds"]
        other = found["training"]["seconds"] + found["defences"]["sparsify"]["seconds"]
        assert entry["client_ratio"] == pytest.approx(whole / other)
        assert entry["ratio"] == entry["seconds"] / found["defences"]["sparsify"]["seconds"]
    assert found["defences"]["soteria"]["ratio"] > 1, "a derivative for each column against one sorting"


@pytest.mark.slow
def test_a_defence_that_cannot_be_applied_is_named_with_the_reason(settings):
    found = measure_cost({**settings, "recup-attributes": "hair"}, {"recup": 0.01})["defences"]
    assert found["recup"]["reason"].startswith("recup-attributes = 'hair'")
    assert found["sparsify"]["ratio"] == 1


@pytest.mark.slow
def test_settings_that_do_not_fit_are_one_line(settings):
    with pytest.raises(FedAttackError, match="do not fit") as caught:
        measure_cost({**settings, "records-per-client": 100_000}, {})
    assert "\n" not in str(caught.value)
