import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedattack.attacks import ATTACKS, Knowledge, Targets, read_knowledge, write_knowledge
from fedattack.audit.quality import measure_quality
from fedattack.audit.truth import read_truth
from fedattack.base.errors import DataError, FedAttackError, RecordError
from fedattack.learning import accuracy_of_models
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.folder import Part, find_parts
from fedattack.report import read_findings, read_run, write_report
from tests.worlds.attacked import audit_folder
from tests.worlds.federation import CLIENTS, EACH, LR, MODEL, write_run, write_sums_run
from tests.worlds.sealed import edit


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
    (means,) = run["means"]
    assert means["question"] == "Which client holds this example?"
    assert means["knows"] == list(ATTACKS["sia"].knows)
    assert 0 < means["seconds"] < 600
    assert run["threat_model"]["not_asked"][0] == "a server that departs from the protocol"
    page = write_report(tmp_path).read_text()
    assert page.startswith("<!")
    assert f"{means['seconds']:g} s of processor time per run" in page


def test_gradients_are_audited_through_the_models_that_they_lead_to(tmp_path):
    write_run(tmp_path, protocol="fedsgd", rounds=3)
    attack_all(tmp_path)
    findings = {finding.metric: finding for finding in audit_folder(tmp_path, device="cpu")}
    assert findings["asr"].value > 0.7  # one gradient over 30 records with random labels gives most of them away
    assert findings["asr"].verdict == findings["asr-beyond-labels"].verdict == "leak"
    assert findings["asr"].null["low"] < 1 / CLIENTS < findings["asr"].null["high"]
    run = read_run(tmp_path)
    assert run["threat_model"]["sees"].startswith("every client's reply by itself: the average gradient over its")
    record = Record(tmp_path / "record")
    assert run["accuracy"]["rounds"] == run["overfitting"]["rounds"] == [1, 2, 3]
    known, truth = read_knowledge(tmp_path / "knowledge"), read_truth(tmp_path / "truth")
    x, y = truth.evaluation

    def accuracy(state, x, y) -> float:
        model = MODEL.build()
        model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
        return float((model(torch.from_numpy(x)).argmax(dim=1).numpy() == y).mean())

    def loss(state) -> float:
        model = MODEL.build()
        model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
        return float(torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).detach())

    for position, item in enumerate(record):
        assert run["accuracy"]["seeds"]["0"][position] == pytest.approx(accuracy(item.after, x, y))
        assert run["loss"]["seeds"]["0"][position] == pytest.approx(loss(item.after), rel=1e-4)
        gaps = []
        for seen in item.observations:
            local = {name: array - np.float32(LR) * seen.arrays[name] for name, array in item.common.items()}
            own = truth.owners == truth.nodes[seen.node]
            held = accuracy(local, known.targets.x[own], known.targets.y[own])
            gaps.append(abs(held - accuracy(local, x[:500], y[:500])))
        assert run["overfitting"]["seeds"]["0"][position] == pytest.approx(np.mean(gaps), abs=0.01)


def test_what_is_unknown_of_the_models_is_left_out(tmp_path):
    """Records of which no model can be rebuilt: no learning rate, or a protocol whose server sends no model."""
    write_run(tmp_path, protocol="fedsgd")
    known, truth = read_knowledge(tmp_path / "knowledge"), read_truth(tmp_path / "truth")
    (item,) = Record(tmp_path / "record").rounds[:1]
    replies = [Reply(seen.node, "ok", dict(seen.arrays), EACH) for seen in item.observations]
    for name, protocol in (("silent", "fedsgd"), ("predictions", "fedmd")):
        writer = RecordWriter(tmp_path / name, protocol=protocol)
        writer.write(Exchange(1, dict(item.common), replies))
        writer.close(final=dict(item.common))
    silent = measure_quality(Record(tmp_path / "silent"), known, truth, device="cpu")
    assert len(silent.accuracy) == len(silent.rounds) == 1
    assert silent.accuracy[0] is not None
    assert silent.overfitting == silent.overfitting_rounds == []
    predictions = measure_quality(Record(tmp_path / "predictions"), known, truth, device="cpu")
    assert predictions.accuracy == predictions.rounds == []


def test_a_model_that_diverged_has_no_loss(tmp_path):
    write_run(tmp_path)
    known, truth = read_knowledge(tmp_path / "knowledge"), read_truth(tmp_path / "truth")
    (item, *_) = Record(tmp_path / "record").rounds
    writer = RecordWriter(tmp_path / "diverged")
    writer.write(Exchange(1, dict(item.common), []))
    writer.close(final={name: np.full_like(array, np.inf) for name, array in item.common.items()})
    found = measure_quality(Record(tmp_path / "diverged"), known, truth, device="cpu")
    assert list(found.loss) == [None]
    assert found.accuracy[0] is not None


def test_a_seed_that_occurs_twice_has_two_curves(tmp_path):
    for part in ("first", "second"):
        write_run(tmp_path, seed=3, part=part)
    attack_all(tmp_path)
    audit_folder(tmp_path, device="cpu")
    run = read_run(tmp_path)
    for curve in ("accuracy", "loss", "train_accuracy", "overfitting"):
        assert [*run[curve]["seeds"]] == ["3 (first)", "3 (second)"]


@pytest.mark.parametrize("protocol", ["fedavg", "fedsgd"])
def test_clients_that_learn_nothing_leak_nothing(tmp_path, protocol):
    write_run(tmp_path, epochs=0, protocol=protocol)
    attack_all(tmp_path)
    for finding in audit_folder(tmp_path, device="cpu"):
        assert finding.verdict in ("no evidence", "too few to tell"), finding.metric
        assert finding.value == pytest.approx(1 / CLIENTS)


def test_without_truth_nothing_is_claimed(tmp_path):
    write_run(tmp_path)
    attack_all(tmp_path)
    (tmp_path / "truth").rename(tmp_path / "elsewhere")
    findings = audit_folder(tmp_path, device="cpu")
    assert [finding.verdict for finding in findings] == ["not applicable"]
    assert "there is no truth" in findings[0].reason
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
    facts = json.loads((tmp_path / "run.json").read_text())
    assert "the run has not ended" in " ".join(facts["notes"])
    (line,) = facts["left_out"]
    assert "left out as damaged" in line


def test_a_record_of_which_nothing_is_left_is_refused(tmp_path):
    write_run(tmp_path, rounds=2)
    attack_all(tmp_path)
    for file in (tmp_path / "record" / "rounds").iterdir():
        file.write_bytes(b"")
    with pytest.raises(RecordError, match="holds no readable round, so nothing can be judged"):
        audit_folder(tmp_path, device="cpu")


def test_nodes_of_which_knowledge_and_truth_say_different_things_are_refused(tmp_path):
    """A file of knowledge/nodes that is gone would silently leave a client out."""
    write_run(tmp_path)
    attack_all(tmp_path)
    shutil.copytree(tmp_path / "truth" / "nodes", tmp_path / "knowledge" / "nodes")
    audit_folder(tmp_path, device="cpu")
    (tmp_path / "knowledge" / "nodes" / "node2.json").unlink()
    with pytest.raises(DataError, match="do not say the same of node node2"):
        audit_folder(tmp_path, device="cpu")


@pytest.mark.slow
def test_canaries_are_no_candidates(tmp_path):
    """In the first round, all that attacks read of clients is what it is without canaries."""
    for attack in ("sia", "membership"):
        plain, planted = tmp_path / f"{attack}-plain", tmp_path / f"{attack}-planted"
        found = []
        for folder, canaries in ((plain, 0), (planted, 6)):
            write_run(folder, rounds=1, canaries=canaries)
            ATTACKS[attack].run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu").save(
                Part(folder, "").scores(attack)
            )
            found.append(audit_folder(folder, device="cpu"))
        without, beside = found
        assert [finding.metric for finding in beside] == [finding.metric for finding in without]
        for one, other in zip(without, beside, strict=True):
            assert (one.value, one.low, one.high, one.chance, one.n) == pytest.approx(
                (other.value, other.low, other.high, other.chance, other.n), nan_ok=True
            )
        run = json.loads((planted / "run.json").read_text())
        assert any(note.startswith("6 canaries took part") for note in run["notes"])
        assert run["observed"]["replies"] == len(run["holdings"]["clients"]) == CLIENTS
        assert "canaries" not in " ".join(json.loads((plain / "run.json").read_text())["notes"])


def test_beside_canaries_clients_that_learn_nothing_stay_at_chance(tmp_path):
    write_run(tmp_path, rounds=3, epochs=0, canaries=6)
    attack_all(tmp_path)
    headline = audit_folder(tmp_path, device="cpu")[0]
    assert headline.chance == pytest.approx(1 / CLIENTS)
    assert headline.low <= headline.chance <= headline.high
    assert headline.verdict != "leak"


@pytest.mark.slow
def test_sums_are_judged_with_the_canaries_that_they_hold(tmp_path):
    folder = write_sums_run(tmp_path, canaries=2, auxiliary=60)
    known, scores = read_knowledge(folder / "knowledge"), Part(folder, "").scores("membership-aggregate")
    ATTACKS["membership-aggregate"].run(Record(folder / "record"), known, device="cpu").save(scores)
    assert audit_folder(folder, device="cpu")[0].value is not None
    run = json.loads((folder / "run.json").read_text())
    assert any("but they are in the sums" in note for note in run["notes"])
    assert run["observed"]["replies"] == 2 * (CLIENTS + 2)


@pytest.mark.parametrize("left", ["no file", "one file less", "no names"])
def test_canaries_that_attacks_would_not_leave_out_are_refused(tmp_path, left):
    write_run(tmp_path, canaries=2)
    if left == "no names":
        known = read_knowledge(tmp_path / "knowledge")
        write_knowledge(tmp_path / "knowledge", replace(known, canaries=()))
    elif left == "no file":
        shutil.rmtree(tmp_path / "knowledge" / "nodes")
    else:
        (tmp_path / "knowledge" / "nodes" / "node5.json").unlink()
    attack_all(tmp_path)
    fault = {
        "no names": "names 0 canaries, and .* 2; expected the same",
        "no file": "node4 is in the record but not in the truth",
        "one file less": "do not say the same of node node5",
    }
    with pytest.raises(DataError, match=fault[left]):
        audit_folder(tmp_path, device="cpu")


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


def test_overfitting_is_not_told_from_a_handful_of_targets(tmp_path):
    """A mean of absolute differences of a few records each would be large whether or not the models overfit."""
    write_run(tmp_path)
    attack_all(tmp_path)
    owned = dict(np.load(tmp_path / "truth" / "owners.npz"))
    owners = owned["owners"]
    kept = np.zeros(len(owners), dtype=bool)
    for client in map(str, range(1, CLIENTS)):
        kept[np.flatnonzero(owners == client)[:9]] = True
    owners[~kept & (owners != "0")] = ""
    np.savez(tmp_path / "truth" / "owners.npz", **owned)
    edit(tmp_path / "truth" / "holdings.json", {})
    audit_folder(tmp_path, device="cpu")
    record, truth = Record(tmp_path / "record"), read_truth(tmp_path / "truth")
    own, (x, y) = owners == "0", truth.evaluation
    model, known = MODEL.build(), read_knowledge(tmp_path / "knowledge")
    for item, value in zip(record, read_run(tmp_path)["overfitting"]["seeds"]["0"], strict=True):
        (state,) = [dict(seen.arrays) for seen in item.observations if seen.node == "node0"]
        held = accuracy_of_models(model, [state], known.targets.x[own], known.targets.y[own])
        unheld = accuracy_of_models(model, [state], x, y)
        assert value == pytest.approx(abs(float(held[0]) - float(unheld[0])))
    owners[owners == "0"] = ""
    np.savez(tmp_path / "truth" / "owners.npz", **owned)
    edit(tmp_path / "truth" / "holdings.json", {})
    audit_folder(tmp_path, device="cpu")
    assert "overfitting" not in read_run(tmp_path)
    assert write_report(tmp_path).exists()
