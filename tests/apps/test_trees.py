"""Trees of XGBoost: what clients train on is seen, and what their trees give away is asked and judged."""

import pytest

from fedattack.apps.witnessing import witness_of
from fedattack.record import Record, check_record
from fedattack.record.folder import Part
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from fedattack.witness import read_witnesses
from tests.apps.projects import CLIENTS, ROUNDS, XGBOOST
from tests.apps.worlds import attack_all, pose_all, run_here
from tests.witness.apps import hashes_of, load, seen


def test_an_app_of_trees_ends_in_a_judged_page_without_an_option(tmp_path):
    pytest.importorskip("xgboost", reason="XGBoost is not installed")
    part = Part(tmp_path, "")
    client, server, task = (load(XGBOOST, name) for name in ("client_app", "server_app", "task"))
    run_here(part, server.app, client.app, XGBOOST.config, CLIENTS)
    assert check_record(part.record).whole
    assert len(Record(part.record)) == ROUNDS
    for witness in read_witnesses(witness_of(part))[:CLIENTS]:
        x, y = task.load_data(int(witness.client))[0]
        assert seen(witness.trained) == hashes_of(x)
        assert sum(witness.trained.counts.values()) == len(y)
    posed = pose_all([part])
    attacked = attack_all([part], posed)
    assert attacked.scored == ("trees", "plaintext")
    findings, _ = judge_folder(tmp_path, device="cpu", watch=Watch())
    found = {finding.metric: finding for finding in findings}
    assert found["rows"].n == CLIENTS
    assert found["columns"].value > found["columns"].chance
