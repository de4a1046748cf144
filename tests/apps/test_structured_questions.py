"""Questions about texts, ids of words with a mask: what is there is found, and where nothing is, nothing is."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fedattack.apps.holding import Holding
from fedattack.apps.questions import Questions, Scene, pose_further
from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets
from fedattack.base.errors import NeedsError
from fedattack.learning import LocalSGD, train_local
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.project import project_record
from fedattack.witness import WitnessedModel
from tests.apps.test_questions import audited
from tests.apps.worlds import train_record
from tests.worlds.texts import CLASSES, continued, next_word, texts

MODEL = WitnessedModel("tests.worlds.texts:classifier", {}, (), CLASSES, "cross-entropy", "")
PEOPLE = [str(client) for client in range(16)]
ONE_STEP = LocalSGD(epochs=1, batch_size=12, lr=0.5)


def written(rng: np.random.Generator, count: int, south: set[str]) -> dict:
    """Texts of each client; those of the south have other words."""
    data = {}
    for name in PEOPLE:
        y = rng.integers(CLASSES - 1, size=count)
        data[name] = texts(y, rng, **({"first": 13} if name in south else {"words": 17})), y
    return data


@pytest.mark.parametrize("shuffled", [False, True])
def test_groups_of_clients_with_texts(tmp_path, shuffled):
    south = {*PEOPLE[8:]}
    rng = np.random.default_rng(5)
    data, evaluated = written(rng, 12, south), written(rng, 24, south)
    of_client = {name: "south" if name in south else "north" for name in PEOPLE}
    if shuffled:
        of_client = dict(zip(PEOPLE, rng.permutation([*of_client.values()]).tolist(), strict=True))
    _, attacked, found = audited(
        *(tmp_path, data, evaluated, data),
        model=MODEL,
        how=ONE_STEP,
        rounds=2,
        asked=Questions(groups={"region": of_client}),
        names=("private-attribute",),
    )
    assert attacked.scored == ("private-attribute",)
    assert (found["private-attribute.region-svm"].verdict == "leak") is not shuffled


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.slow
def test_membership_of_texts_has_shadow_models(tmp_path, trained):
    """With each client's replies, and with sums alone; where clients train on other texts, nobody is a member."""
    rng = np.random.default_rng(6)
    labelled = [texts(np.arange(240) % CLASSES, rng), rng.integers(CLASSES, size=240)]
    data, other, nobody, own = (
        Targets(labelled[0][start : start + 60], labelled[1][start : start + 60]) for start in (0, 60, 120, 180)
    )
    how = replace(ONE_STEP, epochs=40)
    held = data if trained else other
    by_client = {name: (held.x[5 * row :][:5], held.y[5 * row :][:5]) for row, name in enumerate(PEOPLE[:12])}
    train_record(tmp_path / "record", by_client, model=MODEL, training=how, rounds=3)
    targets = Targets(np.concatenate([data.x, nobody.x]), np.concatenate([data.y, nobody.y]))
    known = Knowledge(ModelKnowledge(MODEL.spec, (), CLASSES), targets, auxiliary=own, training=how)
    record = Record(tmp_path / "record")
    scores = ATTACKS["membership"].with_options({"shadows": "4"}).run(record, known)
    assert {"likelihood-ratio", "rmia"} <= {*scores.facts["methods"]}
    assert scores.facts["trained"] == 4 * 3
    held_by = np.repeat([[*scores.facts["clients"]].index(f"10{name}") for name in PEOPLE[:12]], 5)
    for method in ("likelihood-ratio", "rmia"):
        values = scores.arrays[f"score/{method}"]
        auc = roc_auc_score(np.arange(120) < 60, np.r_[values[np.arange(60), held_by], values[60:].mean(axis=1)])
        assert (auc > 0.7) if trained else (0.3 < auc < 0.7)
    sums = project_record(record, tmp_path / "sums")
    scores = ATTACKS["membership-aggregate"].with_options({"references": "4"}).run(sums, known)
    assert scores.facts["trained"] > 0
    for method in ("fedmia", "loss-series"):
        auc = roc_auc_score(np.arange(120) < 60, scores.arrays[f"score/{method}"][:, 0])
        assert (auc > 0.65) if trained else (0.3 < auc < 0.7)


def test_language_models_with_frozen_weights_have_shadow_models(tmp_path):
    """Labels are words, clients train and send an adapter alone, and the loss is the model's own."""
    rng = np.random.default_rng(8)
    how = LocalSGD(epochs=60, batch_size=5, lr=0.5)
    model = next_word()
    state = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    frozen = {name: value for name, value in state.items() if name.startswith("base")}
    x, own = continued(80, rng), continued(40, rng)
    writer = RecordWriter(tmp_path / "record")
    common = {name: value for name, value in state.items() if name not in frozen}
    replies = []
    for client in range(8):
        model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state.items()})
        train_local(model, x[5 * client :][:5], np.zeros(5), **vars(how), loss="own", seed=client)
        sent = {name: value.numpy().copy() for name, value in model.state_dict().items() if name not in frozen}
        replies.append(Reply(f"10{client}", "ok", sent, 5))
    writer.write(Exchange(1, common, replies))
    writer.close(final={name: np.mean([reply.arrays[name] for reply in replies], axis=0) for name in common})
    labels = np.zeros(80, np.int64)
    known = Knowledge(
        ModelKnowledge("tests.worlds.texts:next_word", (), 1, loss="own"),
        Targets(x, labels),
        auxiliary=Targets(own, labels[:40]),
        training=how,
        frozen=frozen,
    )
    record = Record(tmp_path / "record")
    scores = ATTACKS["membership"].with_options({"shadows": "4"}).run(record, known)
    members = np.arange(80) < 40
    for method in ("likelihood-ratio", "rmia"):
        values = scores.arrays[f"score/{method}"]
        of_holder = np.r_[values[np.arange(40), np.repeat(np.arange(8), 5)], values[40:].mean(axis=1)]
        assert roc_auc_score(members, of_holder) > 0.8
    sums = project_record(record, tmp_path / "sums")
    scores = ATTACKS["membership-aggregate"].with_options({"references": "3"}).run(sums, known)
    assert roc_auc_score(members, scores.arrays["score/fedmia"][:, 0]) > 0.6
    for name in ("prolin", "private-attribute"):
        assert "frozen" not in ATTACKS[name].needs.takes


def test_auxiliary_examples_of_another_structure_are_refused(tmp_path):
    rng = np.random.default_rng(8)
    y = np.arange(12) % CLASSES
    by_client = {name: (texts(y, rng), y) for name in PEOPLE[:3]}
    train_record(tmp_path / "record", by_client, model=MODEL, training=ONE_STEP, rounds=1)
    known = Knowledge(
        ModelKnowledge(MODEL.spec, (), CLASSES),
        Targets(texts(y, rng), y),
        auxiliary=Targets(continued(12, rng), y),
        training=ONE_STEP,
        property="class-1-at-50",
    )
    sums = project_record(Record(tmp_path / "record"), tmp_path / "sums")
    with pytest.raises(NeedsError, match="expected examples of one structure; got input_ids, attention_mask and"):
        ATTACKS["prolin"].run(sums, known)


def test_labels_that_are_no_classes_have_a_reason():
    scene = Scene(Holding((), {}, "i", np.zeros(0), {}, {}, {}), [], np.zeros((0, 1), np.int64), None, [], 0)
    assert pose_further(Questions(label=0), scene).reasons["property"].what.endswith("labels are not classes")
