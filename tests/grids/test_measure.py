from dataclasses import replace

import pytest

from fedattack.grids.cell import Number, Stated
from fedattack.grids.measure import count_training_records, measure, per_round
from tests.report import example

CURVE = Number("c", "c", curve="accuracy")
FACT = Number("f", "f", fact="privacy.epsilon_round.high", units="")


def curve(**seeds):
    return {"accuracy": {"rounds": [1, 2, 3], "seeds": seeds, "what": "w"}}


def test_a_curve_counts_where_it_ends_in_each_seed():
    found = measure(CURVE, [], curve(a=[0.1, 0.2, 0.5], b=[0.1, 0.7, None]), Stated(0.4, 0.1))
    assert found["value"] == found["seed_mean"] == pytest.approx(0.6)
    assert found["seed_sd"] == pytest.approx(0.02**0.5)
    # t(0.975, 1) = 12.7 times 0.1: beyond what a rate can be at both ends.
    assert (found["low"], found["high"]) == (0.0, 1.0)
    assert found["difference"] == pytest.approx(0.2)
    assert found["seeds"] == 2


def test_a_loss_has_no_interval_below_zero_and_another_curve_without_units_may_have():
    ends = {"rounds": [1], "seeds": {"a": [0.5], "b": [0.7]}, "what": "w"}
    loss, other = (measure(Number("n", "n", curve=name, units=""), [], {name: ends}) for name in ("loss", "r2"))
    assert loss["low"] == 0
    assert other["low"] == pytest.approx(0.6 - 12.706 * 0.1, abs=1e-3)
    assert loss["high"] == other["high"] > 1


def test_one_seed_has_no_spread_and_no_seed_no_value():
    assert measure(CURVE, [], curve(a=[0.5]))["seed_sd"] is None
    assert measure(CURVE, [], curve(a=[0.5]))["low"] is None
    assert measure(CURVE, [], curve(a=[None]))["value"] is None
    assert measure(CURVE, [], {}, Stated(0.4, None))["difference"] is None


@pytest.mark.parametrize(
    ("run", "value"),
    [
        ({"privacy": {"epsilon_round": {"high": 2}}}, 2.0),
        ({"privacy": {"epsilon_round": {"high": None}}}, None),
        ({}, None),
    ],
)
def test_a_fact_is_found_by_its_keys(run, value):
    assert measure(FACT, [], run)["value"] == value


def test_a_finding_that_is_not_there_has_no_value():
    finding = example.findings()[0]
    assert measure(Number("a", "a", finding="sia.nothing"), [finding], {})["value"] is None
    alone = replace(finding, seed_mean=None, seed_sd=None)
    assert (
        measure(Number("a", "a", finding="sia.asr"), [alone], {}, Stated(0.1, None))["difference"] == alone.value - 0.1
    )


def test_series_and_sizes():
    assert (
        per_round(Number("a", "a", finding="sia.asr"), example.findings()) == example.findings()[0].series["per_round"]
    )
    assert per_round(Number("a", "a", finding="sia.nothing"), example.findings()) is None
    assert count_training_records({"holdings": {"counts": [[1, 2], [3, 4]]}}) == 10
    assert count_training_records({}) is None


def test_a_baseline_of_a_finding_is_a_number_without_an_interval():
    finding = replace(example.findings()[0], baselines={"majority": 0.4})
    number = Number("m", "m", finding="sia.asr", baseline="majority")
    found = measure(number, [finding], {}, Stated(0.3, None))
    assert (found["value"], found["low"], found["null"], found["n"]) == (0.4, None, None, finding.n)
    assert found["difference"] == pytest.approx(0.1)
    assert measure(replace(number, baseline="other"), [finding], {})["value"] is None
