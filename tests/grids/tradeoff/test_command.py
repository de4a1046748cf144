"""The command, with real runs."""

import json
import os
import subprocess
import sys

import pytest


def tradeoff(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "fedattack", "tradeoff", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=900,
        # No data but those that come with fedattack.
        env={**os.environ, "FEDATTACK_DATA": str(cwd / "nothing")},
    )


@pytest.mark.long
@pytest.mark.flower
def test_a_strength_and_a_defence_that_the_preset_cannot_take(tmp_path):
    small = ("--out", "out", "--seeds", "1", "--set", "rounds=2", "--set", "size=300", "--set", "clients=3")
    small += ("--set", "local-epochs=3", "--set", "recup-attributes=hair", "--device", "cpu", "--json")
    done = tradeoff("quickstart", *small, "--defence", "sparsify=1", "--defence", "recup=0.1", cwd=tmp_path)
    assert done.returncode == 2, "recup was asked for"
    results = json.loads(done.stdout)
    none, everything, recup = results["cells"]
    assert recup["state"] == "failed"
    assert "hair can be protected without a zoo" in recup["reason"]
    assert everything["loss"]["value"] == pytest.approx(2.3, abs=0.2), "nothing is sent, nothing is learnt"
    assert everything["loss"]["value"] > none["loss"]["value"]
    chance = none["attacks"]["sia.asr"]["chance"]
    assert everything["attacks"]["sia.asr"]["value"] == pytest.approx(chance), "and nothing leaks"
    assert results["numbers"][0]["name"] == "sia.asr"
    assert everything["cell"] in results["fronts"]["sia.asr"]
    cost = results["cost"]["defences"]
    assert cost["sparsify"]["ratio"] == 1
    assert "hair" in cost["recup"]["reason"]

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").glob("*/findings.json")}
    assert len(before) == 2
    again = tradeoff("quickstart", *small, "--defence", "sparsify=1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "2 done before, 0 to do now" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
