"""Trees of XGBoost: what clients train on is seen, and what their trees give away is asked and judged."""

import pytest
from flwr.app import Context, RecordDict

from fedattack.apps.witnessing import witness_of
from fedattack.observe import ObservedServerApp
from fedattack.record import Record, check_record
from fedattack.record.folder import Part, write_study
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from fedattack.witness import WitnessedClientApp, read_witnesses, sources
from tests.apps.projects import CLIENTS, ROUNDS, XGBOOST
from tests.apps.worlds import attack_all, pose_all
from tests.witness.apps import hashes_of, load, seen
from tests.worlds.local_grid import LocalGrid


def test_an_app_of_trees_ends_in_a_judged_page_without_an_option(tmp_path):
    pytest.importorskip("xgboost", reason="XGBoost is not installed")
    client, server, task = (load(XGBOOST, name) for name in ("client_app", "server_app", "task"))
    part = Part(tmp_path, "")
    grid = LocalGrid(WitnessedClientApp(client.app, witness_of(part)), CLIENTS)
    grid.configure(XGBOOST.config)
    context = Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=XGBOOST.config)
    try:
        ObservedServerApp(server.app, part.record)(grid, context)
    finally:
        sources.remove()
    assert check_record(part.record).whole
    assert len(Record(part.record)) == ROUNDS
    for witness in read_witnesses(witness_of(part)):
        x, y = task.load_data(int(witness.client))[0]
        assert seen(witness.trained) == hashes_of(x)
        assert sum(witness.trained.counts.values()) == len(y)
    write_study(tmp_path, {"commands": ["fedattack audit ."], "seeds": [0]})
    posed = pose_all([part])
    attacked = attack_all([part], posed)
    assert attacked.scored == ("trees", "plaintext")
    findings, _ = judge_folder(tmp_path, device="cpu", watch=Watch())
    found = {finding.metric: finding for finding in findings}
    assert found["rows"].n == CLIENTS
    assert found["columns"].value > found["columns"].chance
