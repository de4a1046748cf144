"""Real runs: a stranger's app, and a preset of several seeds."""

import json

import pytest

from fedattack.report import read_findings
from tests.apps.projects import BATCH_NORM, fedattack

STATED = ("value", "low", "high", "n", "chance", "null", "verdict")


def stated(folder):
    return {finding.name: [getattr(finding, key) for key in STATED] for finding in read_findings(folder)}


@pytest.mark.long
@pytest.mark.flower
def test_an_app_of_somebody_else(tmp_path):
    """Its running variances must stay variances behind noise, and its clients of few examples are asked again."""
    where, run, out = BATCH_NORM.copy(tmp_path), tmp_path / "run", tmp_path / "out"
    fedattack("audit", str(where), "--out", str(run), "--supernodes", "3", cwd=where)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    words = ("what-if", str(run), "--out", str(out), "--secagg", "--noise", "0.001", "--keep", "1", "--device", "cpu")
    # Nothing of the app is imported without a word: what needs its model is not asked.
    without = fedattack("what-if", str(run), "--out", str(tmp_path / "without"), "--noise", "0", "--json", cwd=where)
    untrusted, _ = json.loads(without.stdout)["runs"]
    assert {"sia", "membership"} <= {entry["attack"] for entry in untrusted["not_asked"]}
    done = fedattack(*words, "--trust", "--json", cwd=where)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert stated(out / "cells" / "keep-1.0") == stated(out / "cells" / "as-it-was") == stated(run)
    was, sums, noisy, _ = json.loads(done.stdout)["runs"]
    assert was["not_asked"] == noisy["not_asked"] == []
    assert {finding["name"] for finding in noisy["findings"]} == {finding["name"] for finding in was["findings"]}
    assert {"sia", "membership"} <= {entry["attack"] for entry in sums["not_asked"]}


@pytest.mark.long
@pytest.mark.flower
def test_a_preset_of_two_seeds(tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    small = [word for text in ("rounds=2", "clients=4", "auxiliary=100") for word in ("--set", text)]
    fedattack("audit", "membership", "--out", str(run), "--seeds", "2", *small, "--device", "cpu", cwd=tmp_path)
    words = ("--secagg", "--noise", "0", "--noise", "0.05", "--device", "cpu", "--json")
    done = fedattack("what-if", str(run), "--out", str(out), *words, cwd=tmp_path)
    assert stated(out / "cells" / "noise-0.0") == stated(out / "cells" / "as-it-was") == stated(run)
    _, sums, _, noisy = json.loads(done.stdout)["runs"]
    assert "membership-aggregate.tpr-at-1pct-fpr" in {finding["name"] for finding in sums["findings"]}
    assert "membership.tpr-at-1pct-fpr-adaptive" in {finding["name"] for finding in noisy["findings"]}
