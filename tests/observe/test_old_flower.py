"""A record of a server with an older Flower is attacked with the newest, as after a copy to another machine.

``flower-1.32.zip`` is what `python -m tests.flower_versions 1.32.1` recorded: an environment of Flower 1.32.1 and
fedattack without any extra observed four clients, which trained the project `numpy_model` for three rounds.
"""

import json
import zipfile
from pathlib import Path

import pytest

from fedattack.record import Record, check_record
from tests.apps.projects import CLIENTS, NUMPY, ROUNDS, write_targets, write_what_is_true
from tests.flower_versions import MODEL

HERE = Path(__file__).parent


@pytest.mark.parametrize("version", ["1.32"])
@pytest.mark.slow
def test_a_record_of_an_older_flower_is_attacked(version, tmp_path, call, monkeypatch):
    audit = tmp_path / "audit"
    with zipfile.ZipFile(HERE / f"flower-{version}.zip") as archive:
        archive.extractall(audit)
    found = check_record(audit / "record")
    assert found.whole
    assert found.signer.startswith("SHA256:")
    record = Record(audit / "record")
    assert record.manifest["versions"]["flwr"].startswith(f"{version}.")
    assert [len(item.participants) for item in record] == [CLIENTS] * ROUNDS
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logistic_model.py").write_text(MODEL)
    for folder in (tmp_path, NUMPY.copy(tmp_path)):
        monkeypatch.syspath_prepend(folder)
    from numpyexample.task import load_data

    data, unheld = [load_data(site)[0] for site in range(CLIENTS)], load_data(CLIENTS)[0]
    targets, owners = write_targets(tmp_path / "targets.npz", data, unheld)
    words = ["--targets", "targets.npz", "--model", "logistic_model:logistic", "--classes", "10"]
    assert call("attack", "sia", "audit", *words)[0] == 0
    write_what_is_true(audit, data, unheld, targets, owners)
    code, out, _ = call("report", "audit", "--trust", "--json")
    assert code == 0
    headline = next(item for item in json.loads(out) if item["metric"] == "asr")
    assert (headline["verdict"], headline["n"]) == ("leak", sum(len(y) for _, y in data))
    assert headline["value"] > 0.95
