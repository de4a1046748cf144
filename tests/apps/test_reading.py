"""How replies are read: as weights, as differences, or not at all."""

from dataclasses import replace

import numpy as np
import pytest

from fedattack.apps.reading import read_sends
from fedattack.attacks import ATTACKS, Knowledge, read_knowledge
from fedattack.attacks.knowledge import Sends
from fedattack.attacks.matching import as_models
from fedattack.audit.truth import read_truth
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.folder import Part
from fedattack.report import read_run
from fedattack.witness.sent import SentArray
from tests.apps.test_holding import World
from tests.apps.worlds import pose, write_record
from tests.worlds.attacked import audit_folder

TRUSTED = ("torch.nn:Linear",)


def sent(kind: str, *, of=("weight", "bias"), first=0, factor=None, shapes=((4, 6), (4,))) -> tuple[SentArray, ...]:
    arrays = []
    for place, name in enumerate(of):
        shape = shapes[place % 2]
        arrays.append(SentArray(str(first + place), shape, "float32", kind, name, factor, factor))
    return tuple(arrays)


WEIGHTS, UNKNOWN = sent("weights"), sent("not understood")


def witnesses(*tables):
    seen = World.witnesses(10**6)
    return [replace(one, sends=table) for one, table in zip(seen, tables, strict=False)] + seen[len(tables) :]


def test_weights_are_read_as_they_are_and_so_is_what_nobody_saw():
    assert read_sends(witnesses((), (), ())).rows == ()
    reading = read_sends(witnesses(WEIGHTS, WEIGHTS, WEIGHTS))
    assert (reading.known, reading.unread, reading.notes) == (None, "", ())
    rows = [(row["array"], row["kind"], row["clients"]) for row in reading.rows]
    assert rows == [("0", "weights", 3), ("1", "weights", 3)]


def test_of_models_of_another_form_alone_the_app_may_still_say_what_leaks():
    """As of parts of a large model, which HeteroFL gives to weak clients."""
    narrow = sent("weights", shapes=((2, 6), (2,)))
    reading = read_sends(witnesses(narrow, WEIGHTS, WEIGHTS))
    assert (reading.known, reading.unread) == (None, "")
    (note,) = reading.notes
    assert note.startswith(
        "1 of 3 clients send something different from the rest, such as models of another form: unless"
    )


def test_differences_have_the_factor_of_each_client():
    tables = [sent("difference times a factor", factor=factor) for factor in (-2.0, -4.0, -8.0)]
    reading = read_sends(witnesses(*tables))
    nodes = [one.node for one in World.witnesses(10**6)[:3]]
    assert reading.known == Sends((), dict(zip(nodes, (-2.0, -4.0, -8.0), strict=True)))
    assert "times -8 … -2; the attacker is assumed to know each client's factor" in reading.notes[0]


def test_of_a_doubled_list_the_model_is_taken_and_the_rest_is_named():
    doubled = (*WEIGHTS, *sent("not understood", first=2))
    reading = read_sends(witnesses(doubled, doubled, doubled))
    assert (reading.known, reading.unread) == (Sends(("0", "1")), "")
    assert "clients also send 2 (not understood), 3 (not understood)" in reading.notes[0]


def test_of_weights_that_were_changed_no_cause_is_named_that_nobody_saw():
    changed = sent("weights, changed")
    (note,) = read_sends(witnesses(changed, changed, changed)).notes
    assert note.startswith("clients send arrays that are similar to their weights after training, but not equal: a ")
    assert note.endswith("and the witness did not see which")
    noised = [replace(one, mods=("LocalDpMod(epsilon=1.0)",)) for one in witnesses(changed, changed, changed)]
    (note,) = read_sends(noised).notes
    assert note.endswith("but not equal: the mods that their messages pass through change them")


def test_who_sends_outputs_of_a_model_sends_predictions():
    kept = sent("not sent")
    outputs = (SentArray("logits", (200, 10), "float32", "outputs of the model"), *kept)
    assert read_sends(witnesses(outputs, outputs, outputs)).predictions == ("logits (200 × 10)",)
    assert read_sends(witnesses(outputs, outputs, WEIGHTS)).predictions == ()
    assert read_sends(witnesses((*WEIGHTS, outputs[0]), (), ())).predictions == ()


def test_another_model_beside_the_one_that_is_asked_about_is_named_and_not_read():
    other = (SentArray("g", (2, 2), "float32", "weights of another model"),)
    reading = read_sends(witnesses(*[(*WEIGHTS, *other)] * 3))
    assert (reading.known, reading.unread) == (Sends(("0", "1")), "")
    assert reading.notes[0].startswith(
        "clients send several models in a reply; g belong to a model that does not take their "
    )


def test_indices_and_values_are_read_as_the_server_puts_them_into_the_model(tmp_path):
    draw, nodes = np.random.default_rng(0), [one.node for one in World.witnesses(10**6)[:3]]
    common, replies = {"w": draw.normal(size=12)}, []
    for _ in nodes:
        replies.append({"at": draw.permutation(12)[:4], "by": draw.normal(size=4)})
    after = common["w"].copy()
    for reply in replies:
        np.add.at(after, reply["at"], reply["by"] / 3)
    writer = RecordWriter(tmp_path / "record")
    sent_back = [Reply(node, "ok", reply, 5) for node, reply in zip(nodes, replies, strict=True)]
    writer.write(Exchange(1, common, sent_back))
    writer.write(Exchange(2, {"w": after}, []))
    writer.close()
    record = Record(tmp_path / "record")
    table = (SentArray("at", (4,), "int64", "no floats"), SentArray("by", (4,), "float64", "not understood"))
    reading = read_sends(witnesses(*[(*table, *sent("not sent"))] * 3), record)
    sparse = reading.known.sparse
    assert (sparse.indices, sparse.values, sparse.into) == ("at", "by", ("w",))
    assert sparse.step == pytest.approx(1)
    # That the model's own arrays are not sent says nothing where their entries are.
    assert [row["array"] for row in reading.rows] == ["at", "by"]
    assert "adds 1 times the values to these entries" in reading.notes[0]
    seen = as_models(record, Knowledge(sends=reading.known)).rounds[0].observations[1]
    expected = common["w"].copy()
    expected[replies[1]["at"]] += replies[1]["by"]
    np.testing.assert_allclose(seen.arrays["w"], expected)


def test_a_vector_of_the_server_s_is_the_model_whose_entries_are_sent(tmp_path):
    """If it is as long as the arrays of the model that all clients were seen to train, and not else."""
    draw, nodes = np.random.default_rng(0), [one.node for one in World.witnesses(10**6)[:3]]
    common, replies = {"v": draw.normal(size=12)}, []
    for _ in nodes:
        replies.append({"at": draw.permutation(12)[:4], "by": draw.normal(size=4)})
    after = common["v"].copy()
    for reply in replies:
        np.add.at(after, reply["at"], reply["by"] / 3)
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, common, [Reply(node, "ok", each, 5) for node, each in zip(nodes, replies, strict=True)]))
    writer.write(Exchange(2, {"v": after}, []))
    writer.close()
    record = Record(tmp_path / "record")
    table = (SentArray("at", (4,), "int64", "no floats"), SentArray("by", (4,), "float64", "not understood"))

    def missing(name, *shape):
        return SentArray(name, shape, "float32", "not sent", of=name)

    whole = (*table, missing("w", 2, 5), missing("b", 2))
    reading = read_sends(witnesses(whole, whole, whole), record)
    flat = reading.known.flat
    assert (flat.vector, flat.names, flat.shapes) == ("v", ("w", "b"), ((2, 5), (2,)))
    assert "the attacker takes it for the 2 arrays of the model" in reading.notes[1]
    seen = as_models(record, Knowledge(sends=reading.known)).rounds[0].observations[1]
    expected = common["v"].copy()
    expected[replies[1]["at"]] += replies[1]["by"]
    np.testing.assert_allclose(seen.arrays["w"].reshape(-1), expected[:10])
    np.testing.assert_allclose(seen.arrays["b"], expected[10:])
    shorter, other = (*table, missing("w", 2, 5), missing("b", 1)), (*table, missing("w", 5, 2), missing("b", 2))
    assert read_sends(witnesses(shorter, shorter, shorter), record).known.flat is None
    assert read_sends(witnesses(whole, whole, other), record).known.flat is None


def test_predictions_on_what_all_predict_are_read_as_those_of_fedmd(tmp_path):
    outputs = (SentArray("logits", (200, 10), "float32", "outputs of the model"), *sent("not sent"))
    seen, public = witnesses(outputs, outputs, outputs), tmp_path / "one.npz"
    reading = read_sends([replace(one, public=public) for one in seen])
    assert (reading.known, reading.public) == (Sends(protocol="fedmd"), public)
    others = [replace(one, public=tmp_path / f"{at}.npz") for at, one in enumerate(seen)]
    for each in (others, [replace(seen[0], public=public), *seen[1:]]):
        assert (read_sends(each).known, read_sends(each).public) == (None, None)


UNREADABLE = ("not understood", "no floats", "slice of a model's array", "weights as the bytes of another type")


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_most_clients_send_and_is_no_model_is_unread(kind):
    reading = read_sends(witnesses(sent(kind), sent(kind), WEIGHTS))
    assert reading.unread.startswith(f"2 of 3 clients send 0 ({kind}), 1 ({kind}); expected the model's weights")
    few = read_sends(witnesses(sent(kind), WEIGHTS, WEIGHTS))
    assert few.unread == ""
    assert "1 of 3 clients send something different" in few.notes[0]


def test_models_of_other_shapes_are_unread():
    tables = [sent("weights", shapes=((width, 6), (width,))) for width in (4, 5, 6)]
    assert "of 3 different forms" in read_sends(witnesses(*tables)).unread


@pytest.fixture
def part(tmp_path) -> Part:
    write_record(tmp_path / "record", ["100", "101", "102"])
    return Part(tmp_path, "")


def judged(part: Part):
    knowledge = read_knowledge(part.knowledge, trusted=TRUSTED)
    ATTACKS["sia"].run(Record(part.record), knowledge, device="cpu").save(part.scores("sia"))
    return {finding.name: finding for finding in audit_folder(part.folder, device="cpu", trusted=TRUSTED)}


def test_what_is_not_understood_is_never_no_evidence(part):
    pose(part, witnesses(WEIGHTS, WEIGHTS, WEIGHTS), most=90)
    plain = judged(part)
    pose(part, witnesses(UNKNOWN, UNKNOWN, UNKNOWN), most=90)
    assert read_truth(part.truth).unread.startswith("3 of 3 clients send 0 (not understood)")
    found = judged(part)
    assert found.keys() == plain.keys()
    for name, finding in found.items():
        # A leak that is found in spite of it stays one.
        expected = {"no evidence": "cannot be told", "too few to tell": "cannot be told"}
        assert finding.verdict == expected.get(plain[name].verdict, plain[name].verdict)
    assert "cannot be told" in {finding.verdict for finding in found.values()}
    run = read_run(part.folder)
    assert [row["kind"] for row in run["sent"]["arrays"]] == ["not understood", "not understood"]
    assert run["sent"]["unread"] == read_truth(part.truth).unread


def test_knowledge_of_differences_is_written_and_read(part):
    tables = [sent("difference times a factor", factor=factor) for factor in (-2.0, -4.0, -8.0)]
    posed = pose(part, witnesses(*tables), most=90)
    knowledge = read_knowledge(part.knowledge, trusted=TRUSTED)
    assert knowledge.sends == posed.knowledge.sends
    assert np.all([factor < 0 for factor in knowledge.sends.factors.values()])
