"""What is written beside a record of a witnessed run: the judge takes it, and it is what the clients had."""

from dataclasses import replace

import numpy as np
import pytest

from fedattack.apps import posing
from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.attacks.registry import THREATS
from fedattack.audit.truth import read_truth
from fedattack.base.errors import DataError, NeedsError
from fedattack.learning import LocalSGD
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.folder import Part, read_study
from fedattack.witness import WitnessedModel
from fedattack.witness.seen import ONLY_APP, AskedToTrain
from fedattack.witness.sent import SentArray
from tests.apps.test_holding import HOLES, World, Y, rows
from tests.apps.worlds import (
    CLASSES,
    FEATURES,
    MODEL,
    TRAINING,
    attack_all,
    pose,
    server,
    train_record,
    witness,
    write_record,
)
from tests.worlds.attacked import audit_folder


@pytest.fixture
def part(tmp_path) -> Part:
    write_record(tmp_path / "record", ["100", "101", "102"])
    return Part(tmp_path, "")


def judged(part: Part, trusted=("torch.nn:Linear",)):
    knowledge = read_knowledge(part.knowledge, trusted=trusted)
    for name in ("sia", "membership"):
        ATTACKS[name].run(Record(part.record), knowledge, device="cpu").save(part.scores(name))
    found = audit_folder(part.folder, device="cpu", trusted=trusted)
    return {f"{finding.attack}.{finding.metric}": finding for finding in found}


@pytest.mark.slow
def test_the_truth_is_what_the_clients_had_and_is_judged(part):
    posed = pose(part, World.witnesses(10**6), most=90)
    truth = read_truth(part.truth)
    assert truth.clients == ("0", "1", "2")
    assert truth.nodes == {"100": "0", "101": "1", "102": "2"}
    for row, name in enumerate(truth.clients):
        assert truth.counts[row].tolist() == np.bincount(World.trains[name][1], minlength=CLASSES).tolist()
    knowledge = read_knowledge(part.knowledge, trusted={"torch.nn:Linear"})
    assert truth.targets == knowledge.targets.fingerprint
    for row, x in enumerate(knowledge.targets.x):
        owners = World.owners(x)
        if len(owners) < 2:
            assert truth.owners[row] == "".join(owners)
            assert truth.origins[row] == ("" if owners else World.origin(x))
        else:
            assert sorted(truth.shared[row]) == owners
    assert knowledge.training == LocalSGD(epochs=3, batch_size=8, lr=0.1, momentum=0.9)
    assert knowledge.nodes == {}
    # Nobody has few examples: the smallest client is searched.
    assert posed.few == ("100",)
    assert truth.records.owners == ("0",) * len(World.trains["0"][0])
    findings = judged(part)
    assert findings["sia.asr"].n == (truth.owners != "").sum() - len(truth.shared)
    assert findings["sia.asr"].chance == pytest.approx(1 / 3)
    assert findings["sia.asr"].null is not None
    assert findings["membership.tpr-at-1pct-fpr"].verdict != "not applicable"


def test_without_examples_of_nobody_there_is_no_null_and_it_is_judged_all_the_same(part):
    pose(part, [witness(name, World.trains[name]) for name in "012"])
    assert not len(read_truth(part.truth).evaluation[1])
    findings = judged(part)
    assert findings["sia.asr"].n == 290
    assert findings["sia.asr"].null is None
    membership = findings["membership.tpr-at-1pct-fpr"]
    assert membership.verdict != "not applicable"
    assert membership.label.endswith("against other clients' examples")
    assert any("there is no null run" in note for note in read_truth(part.truth).notes)
    # What is rebuilt of the smallest client is held against examples that other clients alone hold.
    records = read_truth(part.truth).records
    own = len(World.trains["0"][0])
    assert {*records.owners[:own]} == {"0"}
    assert {*records.owners[own:]} == {"1", "2"}
    assert all(World.owners(x) == [owner] for x, owner in zip(records.x[own:], records.owners[own:], strict=True))


@pytest.mark.slow
def test_a_node_that_was_not_witnessed_is_a_client_of_its_own_and_is_told(part):
    pose(part, World.witnesses(10**6)[:2])
    truth = read_truth(part.truth)
    assert truth.nodes["102"] == "node 102"
    assert truth.counts[2].sum() == 0
    assert any("1 of the record's nodes were not seen to train, such as 102" in note for note in truth.notes)
    assert judged(part)["sia.asr"].chance == pytest.approx(1 / 3)


def test_a_regression_is_posed(part):
    model = WitnessedModel("torch.nn:Linear", {"in_features": FEATURES, "out_features": 1}, (FEATURES,), 1, "mse", "")
    ages = [(x, (y * 1.5).astype(np.float32)) for x, y in World.trains.values()]
    witnesses = [witness(name, data, model=model) for name, data in zip("012", ages, strict=True)]
    pose(part, [*witnesses, server((World.central[0], World.central[1].astype(np.float32)))])
    truth = read_truth(part.truth)
    assert truth.classes == ("all",)
    assert truth.counts.tolist() == [[60], [80], [170]]
    assert read_knowledge(part.knowledge, trusted={"torch.nn:Linear"}).model.loss == "mse"


def test_a_linear_layer_is_recognised_by_its_arrays(part):
    unknown = WitnessedModel(None, {}, (FEATURES,), 0, None, "no PyTorch model was seen")
    posed = pose(part, [witness(name, World.trains[name], model=unknown, training=None) for name in "012"])
    model = posed.knowledge.model
    assert (model.spec, model.loss, model.classes) == ("torch.nn:Linear", "cross-entropy", CLASSES)
    assert any("assumed to be one (no PyTorch model was seen)" in note for note in posed.notes)
    assert posed.knowledge.training is None
    assert judged(part)["sia.asr"].n > 0


def test_a_model_that_is_named_takes_the_place(part):
    pose(part, World.witnesses(10**6), model="mlp", loss="mse")
    known = read_knowledge(part.knowledge).model
    assert (known.spec, known.loss, known.classes, known.arguments) == ("mlp", "mse", CLASSES, None)


def test_clients_that_differ_are_told(part):
    other = replace(TRAINING, lr=0.5)
    posed = pose(
        part, [witness(name, World.trains[name], training=other if name == "2" else TRAINING) for name in "012"]
    )
    assert posed.knowledge.training.lr == 0.1
    assert "clients were seen with 2 different ways to train; the one that most have is used" in posed.notes


def test_clients_that_trained_decide_about_model_and_loss(part):
    """Who only evaluates may do so with another model, and has no loss; there may be more of them."""
    x, y = rows((300, 340))
    untrained = {"training": None, "model": replace(MODEL, spec="torch.nn:Bilinear", loss=None, why="none was seen")}
    idle = [witness(name, (x[:0], y[:0]), (x, y), **untrained) for name in "23456"]
    posed = pose(part, [*World.witnesses(10**6)[:2], *idle])
    assert (posed.knowledge.model.spec, posed.knowledge.model.loss) == ("torch.nn:Linear", "cross-entropy")
    assert not any("different models" in note or "loss is not known" in note for note in posed.notes)


def test_parts_that_all_clients_train_and_keep_end_in_one_line(part):
    kept = replace(MODEL, personal=("head.weight",))
    witnesses = [witness(name, World.trains[name], model=kept) for name in "012"]
    posed = pose(part, witnesses)
    why = "clients train head.weight and do not send it: no reply holds a whole model"
    assert posed.knowledge.model is None
    assert posed.reasons["losses"].what.startswith(why)
    assert pose(part, [replace(witnesses[0], model=MODEL), *witnesses[1:]]).knowledge.model.spec == MODEL.spec


def test_mods_that_the_messages_of_clients_pass_are_told(part):
    mods = ("LocalDpMod(clipping_norm=1.0)", "message_size_mod")
    posed = pose(part, [witness(name, World.trains[name], mods=mods) for name in "012"])
    assert f"messages of clients pass through the mods {', '.join(mods)}" in posed.notes


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"epochs": None}, "fedattack does not know how often clients pass"),
        ({"batch_sizes": ()}, "fedattack does not know the clients' batch size"),
        ({"optimizer": "SGD of nesterov=True"}, "clients train by SGD of nesterov=True"),
    ],
)
def test_training_that_no_attack_imitates_is_told(part, facts, told):
    training = replace(TRAINING, **facts)
    posed = pose(part, [witness(name, World.trains[name], training=training) for name in "012"])
    assert posed.knowledge.training is None
    assert any(note.startswith(told) for note in posed.notes)


def test_accumulated_gradients_are_imitated_as_those_of_one_batch(part):
    training = replace(TRAINING, together=2.1)
    posed = pose(part, [witness(name, World.trains[name], training=training) for name in "012"])
    assert posed.knowledge.training.batch_size == 2 * TRAINING.batch_sizes[0]
    assert any(note.startswith("a step of clients takes 2 batches of 8: attacks imitate it") for note in posed.notes)


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW"])
def test_adam_is_imitated(part, optimizer):
    training = replace(TRAINING, optimizer=optimizer, momentum=0.0, weight_decay=0.01)
    pose(part, [witness(name, World.trains[name], training=training) for name in "012"])
    known = read_knowledge(part.knowledge, trusted={"torch.nn:Linear"}).training
    assert (known.optimizer, known.lr, known.weight_decay) == (optimizer, training.lr, 0.01)


def test_where_all_clients_are_large_it_is_said_that_no_examples_are_searched_for(part, monkeypatch):
    monkeypatch.setattr(posing, "SOME", 59)
    posed = pose(part, World.witnesses(10**6))
    assert posed.few == ()
    assert read_truth(part.truth).records is None
    assert posed.reasons["inversion"].what.startswith(
        "no client that was witnessed whole trains on at most 59 examples"
    )


def test_few_examples_are_to_be_reconstructed_beside_those_of_nobody(part):
    small = witness("0", rows((0, 6)), rows((300, 340)))
    posed = pose(part, [small, *World.witnesses(10**6)[1:]])
    records = read_truth(part.truth).records
    assert posed.few == ("100",)
    assert {*records.owners} == {"0"}
    assert sorted(map(tuple, records.x.tolist())) == sorted(map(tuple, rows((0, 6))[0].tolist()))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (replace(MODEL, classes=2), "labels go up to 3, and the model has 2 outputs"),
        (replace(MODEL, classes=1, loss=None), "labels go up to 3, and the model has 1 outputs"),
    ],
)
def test_a_loss_that_is_not_known_is_asked_for(tmp_path, model, message):
    write_record(tmp_path / "record", ["100"])
    posed = pose(Part(tmp_path, ""), [witness("0", rows((0, 20)), model=model)])
    assert message in posed.reasons["losses"].what


def test_labels_too_large_for_classes_end_in_one_line(part):
    x, y = rows((0, 20))
    y[3] = 2**40
    with pytest.raises(DataError, match="labels go up to 1099511627776, and the model has 1 outputs"):
        pose(part, [witness("0", (x, y), model=replace(MODEL, classes=1, loss="mse"))])


def test_a_model_that_is_not_known_is_asked_for(part):
    unknown = WitnessedModel(None, {}, (2, 3), 9, None, "it cannot be rebuilt")
    x, y = rows((0, 20))
    posed = pose(part, [witness("0", (x.reshape(-1, 2, 3), y), (x[:0].reshape(-1, 2, 3), y[:0]), model=unknown)])
    assert "not known (it cannot be rebuilt): name it by --model" in posed.reasons["model"].what
    # What clients send is asked all the same, of the same examples.
    assert len(posed.knowledge.targets) == 20


def test_nothing_witnessed_ends_in_one_line(part):
    with pytest.raises(DataError, match="no client's training was witnessed"):
        pose(part, [])
    assert not part.truth.exists()


def test_predictions_are_called_so_and_the_way_to_attack_them_is_named(part):
    outputs = (SentArray("logits", (9, 4), "float32", "outputs of the model"),)
    clients = [replace(each, sends=outputs) for each in World.witnesses(10**6)]
    with pytest.raises(
        NeedsError, match=r"clients send predictions .* logits \(9 × 4\) are .* observe --protocol fedmd`"
    ):
        pose(part, clients)
    assert not part.truth.exists()


def test_examples_that_all_clients_train_on_are_called_public(part):
    public = rows((0, 7))
    own = [rows((first, first + 10)) for first in (10, 20, 30)]
    clients = []
    for name, (x, y) in zip("012", own, strict=True):
        clients.append(witness(name, (np.concatenate([public[0], x]), np.concatenate([public[1], y])), rows((50, 60))))
    assert any(
        note.startswith("all 3 clients hold 7 of the 37 training examples") for note in pose(part, clients).notes
    )
    assert not any("clients hold" in note for note in pose(part, World.witnesses(10**6)).notes)


def test_what_no_attack_asks_about_is_said_and_no_other_model_is_asked_for(part):
    why = f"Trees has no weights: {ONLY_APP}"
    unasked = WitnessedModel(None, {}, (FEATURES,), CLASSES, None, why)
    clients = [
        witness(name, World.trains[name], model=unasked, notes=(f"Trees was fitted: {ONLY_APP}",)) for name in "01"
    ]
    reason = pose(part, clients).reasons["losses"]
    assert reason.what.startswith(f"Trees was fitted: {ONLY_APP}; the page lists what reached the server")
    assert reason.remedy.endswith("that gives losses: --losses module:function")


def test_what_reads_gradients_of_sgd_is_not_made_of_other_updates_whatever_else_is_known(part):
    """Of a rate that changes nobody knows how to imitate it; that it is no SGD is known all the same."""
    training = replace(TRAINING, optimizer="AdamW", lr=None)
    posed = pose(part, [witness(name, World.trains[name], training=training) for name in "012"])
    assert posed.knowledge.training is None
    assert {"dager", "exact", "labels", "inversion"} <= {*posed.reasons}
    assert "these clients train by AdamW" in posed.reasons["exact"].what
    assert not pose(part, World.witnesses(10**6)).reasons


def patients(model):
    """Three hospitals, half of whose patients lack a value, and a server that evaluates on others alike."""
    clients = [witness(str(each), (HOLES[60 * each :][:60], Y[60 * each :][:60]), model=model) for each in range(3)]
    return [*clients, server((HOLES[200:], Y[200:]), model=model)]


def test_examples_that_lack_a_value_are_asked_about_where_the_model_fills_it_in(tmp_path):
    """Of clients that learn their few examples by heart those with a missing value are found as the others are."""
    part, filling = Part(tmp_path, ""), replace(MODEL, spec="tests.apps.worlds:Filling")
    witnesses = patients(filling)
    data = {name: (HOLES[60 * each :][:60], Y[60 * each :][:60]) for each, name in enumerate("012")}
    train_record(part.record, data, model=filling, training=LocalSGD(epochs=40, batch_size=6, lr=0.2), rounds=2)
    posed = pose(part, witnesses, most=200)
    assert any("only asked about by their losses" in note for note in posed.notes)
    trusted = {filling.spec}
    knowledge = read_knowledge(part.knowledge, trusted=trusted)
    lacks = np.isnan(knowledge.targets.x).any(axis=1)
    assert 60 < lacks.sum() < 140
    assert np.isfinite(knowledge.auxiliary.x).all()
    truth = read_truth(part.truth)
    assert np.isfinite(truth.evaluation[0]).all()
    assert np.isfinite(truth.answers["exact"]["x"]).all()
    assert {*truth.answers["exact"]["owners"].tolist()} == {"0", "1", "2"}
    found = judged(part, trusted)
    assert found["sia.asr"].n == (truth.owners != "").sum()
    assert found["sia.asr"].value > 1 / 3
    scores = ATTACKS["sia"].load_scores(part.scores("sia"))
    assert np.isfinite(scores.arrays["combined"][lacks]).all()
    named = np.array([truth.nodes[node] for node in scores.facts["clients"]])[scores.arrays["decisions"]]
    held = truth.owners != ""
    assert (named == truth.owners)[held & lacks].mean() > 1 / 3


def test_examples_of_which_the_model_gives_no_finite_loss_are_left_out_and_told(part):
    posed = pose(part, patients(MODEL), most=200)
    said = "that hold a value that is not finite: the clients' model gives no finite loss of them"
    assert any(said in note for note in posed.notes)
    assert np.isfinite(posed.knowledge.targets.x).all()
    assert len(posed.knowledge.targets)
    assert judged(part)["sia.asr"].n > 0


def test_a_client_that_trains_on_nothing_is_told_and_holds_nothing(part):
    """A hospital without a patient sends back what it was sent, and says so; it is no client that nobody watched."""
    idle = replace(witness("7", rows((0, 0)), node="107"), asked=AskedToTrain("train", {}, {}))
    record = RecordWriter(part.folder / "with" / "record")
    for round_ in Record(part.record):
        replies = [Reply(seen.node, "ok", dict(seen.arrays), 10) for seen in round_.observations]
        record.write(Exchange(round_.number, dict(round_.common), [*replies, Reply("107", "ok", round_.common, 0)]))
    record.close()
    whole = Part(part.folder / "with", "")
    posed = pose(whole, [*World.witnesses(10**6), idle])
    said = [note for note in posed.notes if "did not train" in note]
    assert said == ["1 client did not train, and sent the model back unchanged (7): no example is theirs"]
    assert not any("were not seen to train" in note for note in posed.notes)
    truth = read_truth(whole.truth)
    assert truth.counts[-1].sum() == 0
    assert truth.nodes["107"] not in truth.owners.tolist()
    assert judged(whole)["sia.asr"].n > 0


def test_replies_that_hold_nothing_that_was_sent_are_refused_by_name(tmp_path):
    """The largest entries of an update, as indices and values: none of them is a weight."""
    writer, rng = RecordWriter(tmp_path / "record"), np.random.default_rng(0)
    for number in (1, 2):
        replies = []
        for node in ("100", "101", "102"):
            sent = {"indices": rng.permutation(28)[:3], "values": rng.normal(size=3).astype(np.float32)}
            replies.append(Reply(node, "ok", sent, 10))
        writer.write(Exchange(number, {"weights": np.zeros(28, np.float32)}, replies))
    writer.close()
    part = Part(tmp_path, "")
    posed = pose(part, World.witnesses(10**6))
    done = attack_all([part], [posed])
    assert done.scored == ("plaintext",)
    for name in ("sia", "membership", "exact"):
        assert done.failed[name] == (
            "replies hold indices (3,), values (3,), and not the arrays that clients were sent, weights (28,): no "
            "attack can read a model from them"
        )


def test_the_truth_of_one_attack_that_cannot_be_found_out_takes_no_other(part, monkeypatch):
    def fail(held):
        raise IndexError("of a strange table")

    monkeypatch.setattr(THREATS["exact"], "find_truth", fail)
    posed = pose(part, World.witnesses(10**6))
    why = "the truth about it cannot be found out: IndexError: of a strange table"
    assert posed.reasons["exact"].what.startswith(why)
    done = attack_all([part], [posed])
    assert "sia" in done.scored
    assert "exact" in done.failed
    assert any(line.startswith("exact was not made: ") for line in read_study(part.folder)["left_out"])
