"""The command, with a real run."""

import json
import os
import subprocess
import sys

import pytest


def fedattack(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "fedattack", "reproduce", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        # No data but those that come with fedattack.
        env={**os.environ, "FEDATTACK_DATA": str(cwd / "nothing")},
    )


@pytest.mark.long
@pytest.mark.flower
def test_a_cell_is_made_once_and_shared_by_table_and_figure(tmp_path):
    small = ("--out", "paper", "--seeds", "1", "--set", "rounds=2", "--set", "size=600")
    only = ("--only", "framework=fedavg", "--only", "dataset=digits", "--only", "dataset=cifar10", "--only", "alpha=1")
    table = fedattack("sia-table3", *small, *only, "--only", "local-epochs=1", "--json", cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    assert "cell 1 of 1: fedavg · digits · 1 · 1" in table.stderr
    results = json.loads(table.stdout)
    (done,) = [cell for cell in results["cells"] if cell["state"] == "done"]
    assert done["place"] == {"framework": "fedavg", "dataset": "digits", "alpha": 1.0, "local-epochs": 1}
    assert done["training_records"] == 480
    assert done["numbers"]["asr"]["n"] > 0
    assert done["minutes"] > 0
    lacking = {cell["reason"] for cell in results["cells"] if cell["state"] != "done"}
    assert "needs `fedattack download cifar10`, or --data cifar10=PATH.npz" in lacking
    folder = tmp_path / "paper" / "cells" / done["cell"]
    assert (folder / "report.html").exists()
    assert not (folder / "record").exists()
    before = (folder / "findings.json").stat().st_mtime_ns

    figure = fedattack("sia-fig5", *small, *only, cwd=tmp_path)
    assert figure.returncode == 0, figure.stderr
    assert "1 are there, 0 to run" in figure.stderr
    (again,) = [
        cell
        for cell in json.loads((tmp_path / "paper" / "sia-fig5.json").read_text())["cells"]
        if cell["state"] == "done"
    ]
    assert 0 <= again["numbers"]["overfitting"]["value"] <= 1
    assert again["numbers"]["asr-best-round"]["value"] == done["numbers"]["asr-best-round"]["value"]
    assert again["minutes"] == done["minutes"]
    assert (folder / "findings.json").stat().st_mtime_ns == before
    assert "| fedavg | digits (480 training examples) | 1 |" in (tmp_path / "paper" / "sia-fig5.md").read_text()

    other = fedattack("sia-fig5", *small, "--set", "clients=5", cwd=tmp_path)
    assert other.returncode == 2
    assert "was run with clients = 10, and now it is 5" in other.stderr
    assert other.stderr.count("\n") == 1
