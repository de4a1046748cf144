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
    assert "run 1 of 1: fedavg · digits · 1 · 1" in table.stderr
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
    assert "1 done before, 0 to do now" in figure.stderr
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


@pytest.mark.long
@pytest.mark.flower
def test_a_cell_made_on_a_cluster_is_the_one_made_here(tmp_path):
    """Real training, attacks and report on another machine: the same findings to the last digit, all intervals too."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    words = ("--seeds", "1", "--set", "rounds=2", "--set", "size=600", "--only", "framework=fedavg")
    words += ("--only", "dataset=digits", "--only", "alpha=1", "--only", "local-epochs=1", "--json")
    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    machines.add_node(num_cpus=2)
    try:
        there = fedattack("sia-table3", "--out", "there", *words, "--cluster", machines.address, cwd=tmp_path)
    finally:
        ray.shutdown()
        machines.shutdown()
    assert there.returncode == 0, there.stderr
    assert "run 1 of 1: fedavg · digits · 1 · 1: " in there.stderr
    here = fedattack("sia-table3", "--out", "here", *words, cwd=tmp_path)
    assert here.returncode == 0, here.stderr
    cells = [cell for cell in json.loads(there.stdout)["cells"] if cell["state"] == "done"]
    assert len(cells) == 1
    folders = [tmp_path / name / "cells" / cells[0]["cell"] for name in ("here", "there")]
    assert not (folders[1] / "record").exists()
    for name in ("findings.json", "study.json", "report.html", "flower.log"):
        assert (folders[1] / name).exists() == (folders[0] / name).exists()
    one, two = (json.loads((folder / "findings.json").read_text()) for folder in folders)
    for finding in (*one, *two):
        del finding["provenance"]["started"], finding["provenance"]["finished"]
    assert one == two
