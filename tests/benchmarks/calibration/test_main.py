"""The short version of the study that the module runs in full."""

import json
import sys

import pytest
from scipy import stats

from tests.benchmarks.calibration import __main__ as study
from tests.benchmarks.calibration import federations
from tests.benchmarks.calibration.drawn import REPORT


@pytest.mark.slow
def test_the_command_writes_what_was_asked_for(tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.json"
    asked = ["draws", "federations", "--repetitions", "2", "--threat", "property", "--out", str(out)]
    world = "5 clients of one image"
    monkeypatch.setattr(sys, "argv", ["calibration", *asked, "--world", world])
    study.main()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert {*found} == {"draws", "federations"}
    assert {row["threat"] for row in found["draws"]} == {"property"}
    assert {row["world"] for row in found["federations"]} == {world}
    assert all(row["low"] <= row["alarms"] / row["of"] <= row["high"] for row in found["federations"])
    assert world in capsys.readouterr().out


@pytest.mark.long
def test_reports_on_trained_federations_without_a_leak_say_so():
    """Thirty-four reports: with one false alarm in twenty, six of them would be a rarity (p = 0.007)."""
    reports = [row for row in federations.rows(2, seed=0) if row["finding"] == federations.REPORT]
    assert sum(row["of"] for row in reports) == 34
    assert sum(row["alarms"] for row in reports) <= 5


@pytest.mark.slow
@pytest.mark.parametrize("threat", ["exact", "inversion_table", "labels", "plaintext", "sequences", "tokens", "trees"])
def test_reports_on_drawn_scores_seldom_cry_wolf_and_see_what_is_there(threat):
    """Of each kind of nothing three reports, and of each leak."""
    reports = [row for row in study.draws(3, 0, [threat]) if row["finding"] == REPORT]
    nulls = [row for row in reports if row["kind"] == "null"]
    assert sum(row["alarms"] for row in nulls) <= stats.binom.ppf(0.999, sum(row["of"] for row in nulls), 0.05)
    leaks = [row["alarms"] for row in reports if row["kind"] == "power"]
    assert sum(leaks) > len(leaks)
