"""How often a leak is found on drawn scores: seldom where there is none, mostly where there is one."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.benchmarks.calibration.source import ALL, NULLS, Drawn, Null, alarms, findings_of

EACH = 20


def smaller(null: Null) -> Null:
    """Draw fewer targets, so that hundreds of federations are judged in seconds."""
    drawn = null.drawn
    return replace(null, drawn=replace(drawn, targets=min(drawn.targets, 20), held_out=min(drawn.held_out, 10)))


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_they_should_be():
    """On all nulls together, since those of one null are too few to tell."""
    found, tested = dict.fromkeys(ALL, 0), dict.fromkeys(ALL, 0)
    for index, null in enumerate(NULLS):
        count = alarms(smaller(null), EACH, seed=index)
        for metric in null.silent:
            found[metric] += count[metric]
            tested[metric] += EACH
    for metric in ALL:
        assert tested[metric] >= 200, metric
        # One of a thousand such tests fails by accident.
        assert found[metric] <= stats.binom.isf(0.001, tested[metric], 0.05), metric
        assert found[metric] > 0, metric


@pytest.mark.parametrize(
    ("drawn", "metric"),
    [
        (Drawn(remembered=0.06, targets=50), "asr"),
        (Drawn(remembered=0.1, targets=50), "asr-beyond-labels"),
        (Drawn(remembered=0.25, by_site=1.0, held_out=50), "asr-beyond-site"),
        (Drawn(alpha=0.3, by_labels=1.0, remembered=0.4), "asr-worst-client"),
        (Drawn(remembered=0.1, targets=50, rounds=3), "asr-best-round"),
    ],
)
@pytest.mark.slow
def test_true_leaks_are_mostly_found(drawn, metric):
    assert alarms(Null("", drawn, (metric,)), EACH, seed=5)[metric] >= 0.8 * EACH


def test_three_clients_are_too_few_to_say_who_is_who():
    """Their examples may still be told from others of the same label."""
    found = {
        finding.metric: finding for finding in findings_of(Drawn(clients=3, remembered=0.8), np.random.default_rng(0))
    }
    assert found["asr"].verdict == "too few to tell"
    assert found["asr-beyond-labels"].verdict == "leak"
    assert found["asr-beyond-site"].verdict == "leak"


def test_a_site_is_told_from_examples():
    found = {finding.metric: finding for finding in findings_of(Drawn(by_site=2.0), np.random.default_rng(0))}
    assert found["asr-beyond-labels"].verdict == "leak"
    assert found["asr-beyond-site"].verdict == "no evidence"
    explained = found["asr"].series["explained"]
    points = {part["part"]: part["value"] for part in explained["parts"]}
    assert sum(points.values()) == pytest.approx(explained["value"]) == found["asr"].value
    assert points["guessing"] == pytest.approx(0.1)
    assert points["site"] > 0.2
    assert abs(points["examples"]) < 0.06
