import json

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, Knowledge, Targets, read_knowledge
from fedattack.audit.run import audit_folder
from fedattack.errors import DataError, FedAttackError
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
    (trained,) = run["train_accuracy"]["seeds"]["0"]
    assert trained > run["accuracy"]["seeds"]["0"][-1] + 0.2, (
        "the common model knows the records that it was trained on"
    )
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


def test_scores_of_other_targets_than_the_truth_s_are_refused(tmp_path):
    """The same records in another order would turn a perfect attack into chance, silently."""
    write_run(tmp_path)
    known = read_knowledge(tmp_path / "knowledge")
    order = np.random.default_rng(0).permutation(len(known.targets))
    shuffled = Knowledge(model=known.model, targets=Targets(known.targets.x[order], known.targets.y[order]))
    ATTACKS["sia"].run(Record(tmp_path / "record"), shuffled, device="cpu").save(tmp_path / "scores" / "sia.npz")
    with pytest.raises(DataError, match="about other target records than the truth"):
        audit_folder(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("study.json", "[]"),
        ("truth/holdings.json", "{}"),
        ("truth/nodes/node0.json", "{}"),
        ("truth/owners.npz", "PK\x03\x04 cut"),
        ("scores/sia.npz", "PK\x03\x04 cut"),
        ("knowledge/targets.npz", "PK\x03\x04 cut"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path, file, content):
    write_run(tmp_path)
    attack_all(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(FedAttackError) as problem:
        audit_folder(tmp_path, device="cpu")
    assert "\n" not in str(problem.value)
    assert (tmp_path / file).name.split(".")[0] in str(problem.value) or "nodes" in str(problem.value)


def test_a_damaged_neighbour_costs_a_model_s_accuracy_and_nothing_else(tmp_path):
    write_run(tmp_path, rounds=3)
    file = tmp_path / "record" / "rounds" / "000000.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    part = Part(tmp_path, "")
    record = Record(part.record, skip_damaged=True)
    ATTACKS["sia"].run(record, read_knowledge(part.knowledge), device="cpu").save(part.scores("sia"))
    audit_folder(tmp_path, device="cpu")
    assert read_run(tmp_path)["accuracy"]["rounds"] == [2, 3]


def test_scores_are_needed(tmp_path):
    write_run(tmp_path)
    with pytest.raises(DataError, match="holds no scores"):
        audit_folder(tmp_path)
