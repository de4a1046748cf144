"""The reference system's own clients and server, and gradient inversion of what they record."""

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.learning import LocalSGD
from fedattack.runs.presets import load_preset, resolve_settings
from simulations.study import Study
from tests.worlds.attacked import audit_folder
from tests.worlds.reference import DEFAULTS, prepare_in, run_here

PRESET = {**DEFAULTS, **resolve_settings(load_preset("inversion"), []), "device": "cpu"}
TRAINING = LocalSGD(epochs=1, batch_size=0, lr=0.1)


@pytest.mark.parametrize("framework", ["fedsgd", "fedavg"])
@pytest.mark.slow
def test_what_the_preset_s_clients_send_is_what_the_attacker_takes_them_to_send(tmp_path, framework):
    record = run_here(tmp_path, PRESET | {"clients": 4, "rounds": 1, "framework": framework})
    attack = ATTACKS["inversion"].with_options({"iterations": "400"})
    attack.run(record, read_knowledge(tmp_path / "knowledge"), device="cpu").save(tmp_path / "scores" / "inversion.npz")
    found = {finding.metric: finding for finding in audit_folder(tmp_path, device="cpu")}
    assert found["preflight"].value < 0.01
    assert "for 4 of 4 replies" in found["preflight"].reason
    assert found["psnr"].value > 20
    assert found["labels"].value == 1


def test_the_preset_of_a_table_searches_for_rows_of_columns_that_the_attacker_knows(tmp_path):
    preset = load_preset("inversion-table")
    config = {**DEFAULTS, **resolve_settings(preset, []), "device": "cpu"}
    known, truth = prepare_in(tmp_path, Study.of(config))
    attack = ATTACKS[preset.attacks[0]].with_options(dict(preset.options))
    assert attack.method_of(known) == "table"
    names = {"mean radius", "symmetry error"}
    assert names < {*known.coding.names}
    # The one column of two values.
    assert [name for name, kind in zip(known.coding.names, known.coding.is_number, strict=True) if not kind] == [
        "symmetry error"
    ]
    assert len(truth.records.y) == 5 * 8


def test_the_truth_keeps_the_records_of_clients_that_hold_few(tmp_path):
    few, many = (prepare_in(tmp_path / str(size), Study.of(PRESET | {"records-per-client": size})) for size in (3, 65))
    held = few[1].records
    x, y = Study.of(PRESET | {"records-per-client": 3}).records_of(2)
    rows = np.array(held.owners) == "2"
    np.testing.assert_array_equal(held.x[rows], x)
    np.testing.assert_array_equal(held.y[rows], y)
    assert len(held.y) == 3 * PRESET["clients"]
    known, truth = many
    assert truth.records is None
    assert known.training == TRAINING
    data = Study.of(PRESET).data
    assert known.limits == ((data.x_train.min(), data.x_train.max()),), "digits have black and white in both splits"
    assert not (tmp_path / "3" / "knowledge" / "records.npz").exists()
