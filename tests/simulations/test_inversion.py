"""The reference system's own clients and server, and gradient inversion of what they record."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import clients.app
import simulations.server
from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.audit.run import audit_folder
from fedattack.audit.truth import read_truth
from fedattack.learning import LocalSGD
from fedattack.record import Record
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.runs.settings import load_settings
from simulations.prepare import prepare
from simulations.study import Study
from tests.worlds.local_grid import LocalGrid

DEFAULTS = {name: setting.default for name, setting in load_settings().items()}
PRESET = {**DEFAULTS, **resolve_settings(load_preset("inversion"), []), "device": "cpu"}
TRAINING = LocalSGD(epochs=1, batch_size=0, lr=0.1)


def run(folder, **changes):
    """Prepare and run the app itself, server and clients, in this process."""
    config = PRESET | changes | {name: str(folder / name) for name in ("record", "truth", "knowledge")}
    prepare(Study.of(config), knowledge=folder / "knowledge", truth=folder / "truth")
    grid = LocalGrid(clients.app.app, config["clients"])
    for context in grid._contexts.values():
        context.run_config.update(config)
    simulations.server.app(grid, Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=config))
    return Record(folder / "record")


@pytest.mark.parametrize("framework", ["fedsgd", "fedavg"])
@pytest.mark.slow
def test_what_the_preset_s_clients_send_is_what_the_attacker_takes_them_to_send(tmp_path, framework):
    record = run(tmp_path, clients=4, rounds=1, framework=framework)
    attack = ATTACKS["inversion"].with_options({"iterations": "400"})
    attack.run(record, read_knowledge(tmp_path / "knowledge"), device="cpu").save(tmp_path / "scores" / "inversion.npz")
    found = {finding.metric: finding for finding in audit_folder(tmp_path, device="cpu")}
    assert found["preflight"].value < 0.01
    assert "for 4 of 4 replies" in found["preflight"].reason
    assert found["psnr"].value > 20
    assert found["labels"].value == 1


def test_the_truth_keeps_the_records_of_clients_that_hold_few(tmp_path):
    for name, size in (("few", 3), ("many", 65)):
        plan = Study.of(PRESET | {"records-per-client": size})
        prepare(plan, knowledge=tmp_path / name / "k", truth=tmp_path / name / "t")
    held = read_truth(tmp_path / "few" / "t").records
    x, y = Study.of(PRESET | {"records-per-client": 3}).records_of(2)
    rows = np.array(held.owners) == "2"
    np.testing.assert_array_equal(held.x[rows], x)
    np.testing.assert_array_equal(held.y[rows], y)
    assert len(held.y) == 3 * PRESET["clients"]
    assert read_truth(tmp_path / "many" / "t").records is None
    known = read_knowledge(tmp_path / "many" / "k")
    assert known.training == TRAINING
    data = Study.of(PRESET).data
    assert known.limits == ((data.x_train.min(), data.x_train.max()),), "digits have black and white in both splits"
    assert not (tmp_path / "few" / "k" / "records.npz").exists()
