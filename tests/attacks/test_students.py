"""FedMD's students: what they are taught, and that nothing but their teachers tells them apart."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.attacks.knowledge import Sends
from fedattack.attacks.local_models import LocalModels, local_models
from fedattack.attacks.students import HOW, TEACHERS, students_of, usable_predictions
from fedattack.base.errors import NeedsError
from fedattack.learning import Distillation, build_model, distil, outputs_of
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.threats.source.case import credits_of
from tests.worlds.federation import CLIENTS, MODEL, write_predictions_run

SIA = ATTACKS["sia"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_predictions_run(tmp_path_factory.mktemp("predictions"))


def rebuilt(folder, seed=0, how=HOW, teachers=TEACHERS):
    record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
    students = students_of(record, known, seed, CPU, how=how)
    models_of = LocalModels(usable_predictions(students, []), students, teachers)
    return [{seen.node: dict(state) for seen, state in models_of(item)} for item in record]


def predictions_of(state, public):
    model = MODEL.build()
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
    return outputs_of(model, public)


def test_each_student_gives_its_own_teacher_s_predictions(run):
    record, public = Record(run / "record"), read_knowledge(run / "knowledge").public
    for item, models in zip(record, rebuilt(run), strict=True):
        given = np.stack([predictions_of(models[seen.node], public) for seen in item.observations])
        wanted = np.stack([seen.arrays["predictions"] for seen in item.observations])
        distance = np.abs(given[:, None] - wanted[None]).mean(axis=(2, 3))
        np.testing.assert_array_equal(distance.argmin(axis=1), np.arange(CLIENTS))


def test_students_are_those_trained_one_after_the_other_from_one_start(run):
    record, public = Record(run / "record"), read_knowledge(run / "knowledge").public
    how = Distillation(epochs=3)
    few = 3  # so that the clients need more than one go
    for item, models in zip(record, rebuilt(run, seed=4, how=how, teachers=few), strict=True):
        order = int(np.random.SeedSequence((4, item.seq)).generate_state(1)[0])
        for seen in item.observations:
            model = build_model(MODEL.spec, input_shape=MODEL.input_shape, classes=MODEL.classes, hidden=64, seed=4)
            distil(model, public, seen.arrays["predictions"], how, seed=order)
            for name, value in model.state_dict().items():
                np.testing.assert_allclose(models[seen.node][name], value.numpy(), atol=2e-6)


def test_the_seed_decides(run):
    first, again, other = rebuilt(run, seed=1), rebuilt(run, seed=1), rebuilt(run, seed=2)
    for left, right in zip(first, again, strict=True):
        for node, state in left.items():
            for name, array in state.items():
                np.testing.assert_array_equal(array, right[node][name])
    assert not np.array_equal(first[0]["node0"]["fc1.weight"], other[0]["node0"]["fc1.weight"])


def test_clients_that_predict_alike_have_students_that_tie(tmp_path):
    folder = write_predictions_run(tmp_path, epochs=0)
    scores = SIA.run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu")
    credit = credits_of(scores.arrays["combined"])
    np.testing.assert_array_equal(credit, np.full_like(credit, 1 / CLIENTS))


def test_a_client_that_was_not_sampled_is_not_seen(tmp_path):
    folder = write_predictions_run(tmp_path, rounds=2, skip=((1, 0),))
    scores = SIA.run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu")
    assert np.isnan(scores.arrays["losses"][0, :, 0]).all()
    assert np.isfinite(scores.arrays["losses"][1]).all()


def test_predictions_that_cannot_be_used_are_named_and_leave_the_others_as_they_are(run, tmp_path):
    record, known = Record(run / "record"), read_knowledge(run / "knowledge")
    first = record.rounds[0]
    sent = {seen.node: seen.arrays["predictions"].copy() for seen in first.observations}
    broken, text = sent["node1"].copy(), np.full(sent["node1"].shape, 1, dtype=np.bool_)
    broken[7, 3] = np.inf
    replies = [
        Reply("node0", "ok", {"predictions": sent["node0"]}),
        Reply("node1", "ok", {"predictions": broken}),
        Reply("node2", "ok", {"predictions": sent["node2"][:-1]}),
        Reply("node3", "ok", {"predictions": sent["node3"], "more": sent["node3"]}),
        Reply("node4", "ok", {"predictions": text}),
        Reply("node5", "failed", reason="it raised"),
    ]
    writer = RecordWriter(tmp_path / "record", protocol="fedmd")
    writer.write(Exchange(first.number, None, replies))
    writer.close()
    notes: list[str] = []
    models_of = local_models(Record(tmp_path / "record"), known, seed=0, device=CPU, notes=notes)
    (usable,) = [list(models_of(item)) for item in Record(tmp_path / "record")]
    assert [seen.node for seen, _ in usable] == ["node0"]
    for name, array in rebuilt(run)[0]["node0"].items():
        np.testing.assert_allclose(usable[0][1][name], array, atol=1e-5)
    assert [note.split(" left out: ")[0] for note in notes] == [f"round 1, client node{k}" for k in range(1, 5)]
    assert "not finite" in notes[0]
    assert "expected predictions of shape (60, 10)" in notes[1]
    assert "got (59, 10)" in notes[1]


@pytest.mark.parametrize("need", ["public", "model"])
def test_without_public_records_or_architecture_it_refuses_by_name(run, need):
    record, known = Record(run / "record"), replace(read_knowledge(run / "knowledge"), **{need: None})
    with pytest.raises(NeedsError, match=f"students of them need knowledge of {need}") as caught:
        local_models(record, known, seed=0, device=CPU, notes=[])
    assert "\n" not in str(caught.value)


def test_probabilities_teach_as_the_logits_do_that_they_are_made_of(tmp_path, run):
    """Up to a constant a row, which no softmax shows."""
    record, known = Record(run / "record"), read_knowledge(run / "knowledge")
    students = students_of(record, known, 0, CPU)
    sent = {seen.node: seen.arrays["predictions"] for seen in record.rounds[0].observations}
    writer = RecordWriter(tmp_path / "r", protocol="fedmd")
    softmax = {}
    for node, logits in sent.items():
        powers = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64)
        softmax[node] = powers / powers.sum(axis=1, keepdims=True)
    writer.write(Exchange(1, None, [Reply(node, "ok", {"p": each}, 4) for node, each in softmax.items()]))
    writer.close()
    usable = usable_predictions(students, [])
    for seen, known_of in usable(Record(tmp_path / "r").rounds[0]):
        logits = sent[seen.node]
        expected = logits - np.log(np.exp(logits, dtype=np.float64).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(known_of["predictions"], expected, atol=1e-4)


def test_a_record_whose_replies_are_known_to_be_predictions_is_attacked_as_one_of_fedmd(tmp_path, run):
    """As of an app, whose record cannot say beforehand what clients send."""
    record, known = Record(run / "record"), read_knowledge(run / "knowledge")
    writer = RecordWriter(tmp_path / "r", record_id=record.id)
    for item in record:
        replies = [Reply(seen.node, "ok", dict(seen.arrays), seen.num_examples) for seen in item.observations]
        writer.write(Exchange(item.number, item.common, replies))
    writer.close()
    plain = Record(tmp_path / "r")
    stranger = replace(known, record="", sends=Sends(protocol="fedmd"))
    assert plain.protocol == "fedavg"
    assert not SIA.find_obstacles(plain, stranger)
    expected = SIA.run(record, known, device="cpu").arrays
    for name, array in SIA.run(plain, stranger, device="cpu").arrays.items():
        np.testing.assert_array_equal(array, expected[name])
    (why,) = ATTACKS["labels"].find_obstacles(plain, stranger)
    assert "but these clients send predictions" in why.what
