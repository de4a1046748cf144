import json

import pytest

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.audit.run import audit_folder
from fedattack.errors import DataError
from fedattack.folder import Part, find_parts
from fedattack.record import Record
from fedattack.report import read_findings, read_run, write_report
from tests.federation import CLIENTS, EACH, write_run


def attack_all(folder) -> None:
    for part in find_parts(folder):
        known = read_knowledge(part.knowledge)
        ATTACKS["sia"].run(Record(part.record), known, device="cpu").save(part.scores("sia"))


def test_one_run_is_audited_and_rendered(tmp_path):
    write_run(tmp_path)
    attack_all(tmp_path)
    findings = {finding.metric: finding for finding in audit_folder(tmp_path, device="cpu")}
    headline = findings["asr"]
    assert headline.value > 0.85
    assert headline.verdict == "leak"
    assert headline.n == CLIENTS * EACH
    assert findings["asr-beyond-labels"].verdict == "leak"  # labels are random: it is the records that leak
    assert [item.name for item in read_findings(tmp_path)] == [item.name for item in findings.values()]
    run = read_run(tmp_path)
    assert run["observed"] == {
        "rounds": 2,
        "replies": 2 * CLIENTS,
        "failed": 0,
        "missing": 0,
        "late": 0,
        "in_plaintext": ["num-examples", "train-loss"],
    }
    assert run["holdings"]["counts"] == [list(row) for row in run["holdings"]["counts"]]
    assert len(run["accuracy"]["seeds"]["0"]) == 2
    assert all(value > 0.5 for value in run["overfitting"]["seeds"]["0"])
    assert write_report(tmp_path).read_text().startswith("<!")


def test_several_seeds_are_pooled(tmp_path):
    for seed in (0, 1, 2):
        write_run(tmp_path, seed=seed, part=f"seed-{seed}")
    attack_all(tmp_path)
    headline = audit_folder(tmp_path, device="cpu")[0]
    assert headline.seeds == [0, 1, 2]
    assert headline.n == 3 * CLIENTS * EACH
    assert headline.seed_sd is not None
    assert write_report(tmp_path).exists()


def test_clients_that_learn_nothing_leak_nothing(tmp_path):
    write_run(tmp_path, epochs=0)
    attack_all(tmp_path)
    for finding in audit_folder(tmp_path, device="cpu"):
        assert finding.verdict == "no evidence", finding.metric
        assert finding.value == pytest.approx(1 / CLIENTS)


def test_without_truth_nothing_is_claimed(tmp_path):
    write_run(tmp_path)
    attack_all(tmp_path)
    (tmp_path / "truth").rename(tmp_path / "elsewhere")
    findings = audit_folder(tmp_path, device="cpu")
    assert [finding.verdict for finding in findings] == ["not applicable"]
    assert "the truth is not there" in findings[0].reason
    assert write_report(tmp_path).exists()


def test_a_killed_run_and_a_damaged_round_are_audited_with_a_note(tmp_path):
    write_run(tmp_path, rounds=3, close=False)
    file = tmp_path / "record" / "rounds" / "000001.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    part = Part(tmp_path, "")
    record = Record(part.record, skip_damaged=True)
    ATTACKS["sia"].run(record, read_knowledge(part.knowledge), device="cpu").save(part.scores("sia"))
    findings = audit_folder(tmp_path, device="cpu")
    assert findings[0].series["per_round"]["rounds"] == [1, 3]
    notes = " ".join(json.loads((tmp_path / "run.json").read_text())["notes"])
    assert "the run did not end" in notes
    assert "left out as damaged" in notes


def test_truth_and_knowledge_of_different_runs_are_refused(tmp_path):
    write_run(tmp_path)
    attack_all(tmp_path)
    import numpy as np

    np.savez(tmp_path / "truth" / "owners.npz", owners=np.array(["0", "1"]))
    with pytest.raises(DataError, match="belong to different runs"):
        audit_folder(tmp_path, device="cpu")


def test_scores_are_needed(tmp_path):
    write_run(tmp_path)
    with pytest.raises(DataError, match="holds no scores"):
        audit_folder(tmp_path)
