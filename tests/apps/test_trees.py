"""Trees of XGBoost: what clients train on may be stated, and no attack reads what they send, which is said."""

import pytest
from flwr.app import Context, RecordDict

from fedattack.apps.auditing import pose_all, witness_of
from fedattack.base.errors import RunError
from fedattack.observe import ObservedServerApp
from fedattack.record import Record, check_record
from fedattack.record.folder import Part
from fedattack.witness import WitnessedClientApp, read_witnesses, sources, trained_on
from tests.apps.projects import CLIENTS, ROUNDS, XGBOOST
from tests.witness.apps import hashes_of, load, seen
from tests.worlds.local_grid import LocalGrid


def test_the_record_is_whole_and_one_line_says_that_nothing_can_be_asked(tmp_path, monkeypatch):
    pytest.importorskip("xgboost", reason="XGBoost is not installed")
    client, server, task = (load(XGBOOST, name) for name in ("client_app", "server_app", "task"))

    def telling(site):
        train, test = task.load_data(site)
        trained_on(*train)
        return train, test

    monkeypatch.setattr(client, "load_data", telling)
    part = Part(tmp_path, "")
    grid = LocalGrid(WitnessedClientApp(client.app, witness_of(part)), CLIENTS)
    config = {"num-server-rounds": ROUNDS, "local-epochs": 1, "eta": 0.3}
    grid.configure(config)
    context = Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=config)
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
    with pytest.raises(RunError, match="clients send bytes, such as the trees of XGBoost, and no attack reads them"):
        pose_all([part])
