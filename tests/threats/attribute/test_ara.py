from dataclasses import replace

import numpy as np
import pytest
import torch

from fedattack.attacks import ATTACKS, Knowledge, read_knowledge
from fedattack.base.errors import ConfigError, NeedsError
from fedattack.learning import LocalSGD
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.threats.attribute.ara import averaged_gradient, choose_rounds
from tests.worlds.classified import MODEL, ONE_STEP, write_classified_run

ARA = ATTACKS["ara"]
COS, L2 = 0, 1


def attack(folder, knowledge=None, **choices):
    known = knowledge or read_knowledge(folder / "knowledge")
    return ARA.with_options(choices).run(Record(folder / "record"), known, device="cpu")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("pre1", [3]),
        ("pre2", [3, 4]),
        ("pre5", [3, 4, 5, 6, 7]),
        ("gap10", [12, 22, 32, 42, 52]),
        ("last5", [58, 59, 60, 61, 62]),
        ("4, 10,99", [4, 10]),
    ],
)
def test_rounds_are_chosen_among_those_with_a_reply(spec, expected):
    assert choose_rounds(spec, range(3, 63)) == expected
    assert (choose_rounds("last5", [1, 2]), choose_rounds("gap10", range(1, 16))) == ([1, 2], [10])


@pytest.mark.parametrize(
    ("training", "examples", "steps"),
    [
        (LocalSGD(1, 0, 0.1), 100, 1),
        (LocalSGD(1, 32, 0.1), 100, 4),
        (LocalSGD(3, 25, 0.1), 100, 12),
        (LocalSGD(2, 500, 0.1), 100, 2),
    ],
)
def test_local_steps_are_epochs_times_batches(training, examples, steps):
    assert training.steps(examples) == steps


@pytest.mark.parametrize(
    "training",
    [
        LocalSGD(1, 0, 0.3),
        LocalSGD(4, 0, 0.3),
        LocalSGD(4, 0, 0.3, momentum=0.9),
        LocalSGD(1, 0, 0.3, momentum=0.9, weight_decay=0.05),
    ],
)
def test_the_averaged_gradient_undoes_torchs_sgd(training):
    """A linear loss has the same gradient everywhere, which must come back whatever the optimiser does with it."""
    gradient = np.array([0.5, -2.0, 0.25], dtype=np.float32)
    start = np.array([1.0, 2.0, -3.0], dtype=np.float32)
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.SGD(
        [weight], lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )
    for _ in range(training.epochs):
        optimizer.zero_grad()
        (weight * torch.from_numpy(gradient)).sum().backward()
        optimizer.step()
    update = {"w": weight.detach().numpy() - start}
    found = averaged_gradient(update, {"w": start}, training, examples=10)
    np.testing.assert_allclose(found["w"], gradient, rtol=1e-5)


@pytest.mark.parametrize("training", [LocalSGD(1, 1, 0.1), LocalSGD(2, 8, 0.1, momentum=0.9)])
def test_a_count_that_a_client_states_costs_no_steps(training):
    found = averaged_gradient({"w": -np.ones(2)}, {"w": np.ones(2)}, training, 2**53)
    steps = training.steps(2**53)
    assert found["w"].tolist() == pytest.approx([(1 - training.momentum) / (0.1 * steps)] * 2)


def test_updates_without_a_learning_rate_are_refused():
    with pytest.raises(NeedsError, match="learning rate above 0"):
        averaged_gradient({}, {}, LocalSGD(1, 0, 0.0), examples=1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return folder, write_classified_run(folder)


@pytest.mark.slow
def test_full_batches_give_every_value_away(plain):
    folder, truth = plain
    scores = attack(folder)
    assert scores.facts["methods"] == ["cos", "l2"]
    assert scores.arrays["decisions"].shape == (2, len(truth))
    np.testing.assert_array_equal(scores.arrays["decisions"][COS], truth)
    np.testing.assert_allclose(scores.arrays["beliefs"].sum(axis=2), 1)
    assert scores.facts["rounds"] == {str(client): [1, 2, 3, 4, 5] for client in range(3)}
    assert set(scores.facts["weights"].values()) == {"uniform"}
    assert scores.arrays["objectives"][COS].min() > 0.99


@pytest.mark.slow
def test_l_bfgs_starts_more_often_unless_told_otherwise(plain):
    folder, _ = plain
    usual, once, often = (attack(folder, steps="20", **how) for how in ({}, {"restarts": "1"}, {"restarts": "4"}))
    np.testing.assert_array_equal(usual.arrays["objectives"][COS], once.arrays["objectives"][COS])
    np.testing.assert_array_equal(usual.arrays["objectives"][L2], often.arrays["objectives"][L2])
    assert (usual.arrays["objectives"][L2] < once.arrays["objectives"][L2]).any()


@pytest.mark.slow
def test_a_permuted_attribute_is_found_as_it_was_trained_on_and_not_as_it_is(tmp_path):
    """The null run: updates that say nothing of the truth give nothing beyond guessing."""
    truth = write_classified_run(tmp_path, permute=True, clients=6, each=30)
    decided = attack(tmp_path, restarts="1").arrays["decisions"][COS]
    balanced = np.mean([(decided[truth == value] == value).mean() for value in (0, 1)])
    # Three standard deviations of a mean of two shares of about 70 and 110 draws.
    assert abs(balanced - 0.5) < 0.12


@pytest.mark.slow
def test_records_weights_are_found_where_a_last_batch_is_short(tmp_path):
    truth = write_classified_run(tmp_path, each=20, training=LocalSGD(epochs=1, batch_size=16, lr=0.02))
    free, uniform = (attack(tmp_path, restarts="1", **choice) for choice in ({}, {"weights": "uniform"}))
    assert set(free.facts["weights"].values()) == {"round"}
    assert set(uniform.facts["weights"].values()) == {"uniform"}
    hits = [(scores.arrays["decisions"][COS] == truth).mean() for scores in (free, uniform)]
    assert hits[0] >= max(hits[1], 0.95)
    assert (free.arrays["objectives"][COS] > uniform.arrays["objectives"][COS]).all()


@pytest.mark.slow
def test_without_names_of_nodes_a_node_is_a_client_of_that_name(tmp_path):
    truth = write_classified_run(tmp_path, nodes=False)
    np.testing.assert_array_equal(attack(tmp_path).arrays["decisions"][COS], truth)


@pytest.mark.slow
def test_a_client_that_nobody_can_place_is_named_and_not_guessed(plain):
    folder, truth = plain
    known = read_knowledge(folder / "knowledge")
    two = replace(known, nodes={node: client for node, client in known.nodes.items() if client != "1"})
    scores = attack(folder, two)
    lost = known.partial.clients == "1"
    assert (scores.arrays["decisions"][:, lost] == -1).all()
    np.testing.assert_allclose(scores.arrays["beliefs"][:, lost], np.broadcast_to([0.6, 0.4], (2, lost.sum(), 2)))
    np.testing.assert_array_equal(scores.arrays["decisions"][COS, ~lost], truth[~lost])
    assert np.isnan(scores.arrays["objectives"][:, 1]).all()
    assert "client 1: no update that updates=pre5 asks for can be used; not attacked" in scores.notes
    with pytest.raises(NeedsError, match="holds none for updates=pre5; check knowledge/nodes"):
        attack(folder, replace(known, nodes={f"node{number}": "elsewhere" for number in range(3)}))


def test_the_model_that_a_client_received_is_the_one_that_counts(plain, tmp_path):
    """As an isolating server's victim: what others received says nothing of its gradients."""
    folder, truth = plain
    known, first = read_knowledge(folder / "knowledge"), next(iter(Record(folder / "record")))
    reply = first.observations[0]
    other = {name: np.asarray(array) + np.float32(1) for name, array in first.common.items()}
    writer = RecordWriter(tmp_path / "record")
    singled = Reply(reply.node, "ok", dict(reply.arrays), reply.num_examples, received=dict(first.common))
    writer.write(Exchange(1, other, [singled]))
    writer.close()
    scores = ARA.run(Record(tmp_path / "record"), known, device="cpu")
    own = known.partial.clients == known.nodes[reply.node]
    np.testing.assert_array_equal(scores.arrays["decisions"][COS, own], truth[own])


def test_updates_that_cannot_be_used_are_named_and_left_out(plain, tmp_path):
    folder, _ = plain
    known, rounds = read_knowledge(folder / "knowledge"), list(Record(folder / "record"))
    writer = RecordWriter(tmp_path / "record")
    for item, kind in zip(rounds[:4], ("whole", "zero", "nan", "odd"), strict=True):
        common = dict(item.common)
        seen = item.observations[0]
        sent = {
            "whole": dict(seen.arrays),
            "zero": common,
            "nan": {name: np.full_like(array, np.nan) for name, array in common.items()},
            "odd": {**common, "fc2.bias": np.zeros(9, dtype=np.float32)},
        }[kind]
        writer.write(Exchange(item.number, common, [Reply(seen.node, "ok", sent, 15)]))
    writer.close()
    scores = ARA.run(Record(tmp_path / "record"), known, device="cpu")
    client = known.nodes[rounds[0].observations[0].node]
    assert scores.facts["rounds"] == {client: [1]}
    notes = " ".join(scores.notes)
    assert f"round 2, client {client} left out: its update is zero" in notes
    assert f"round 3, client {client} left out: its update is not finite" in notes
    assert f"round 4, client {client} left out" in notes
    assert "fc2.bias" in notes
    assert f"client {client} says that it has 15 examples, and 12 are known" in notes


@pytest.mark.slow
def test_less_knowledge_is_said_and_used_less(plain):
    folder, truth = plain
    scores = attack(folder, prior="unknown", label="unknown", restarts="2", steps="40", updates="1,3")
    assert (scores.facts["prior"], scores.facts["label"]) == ("unknown", "unknown")
    assert scores.facts["rounds"]["0"] == [1, 3]
    blind = replace(
        read_knowledge(folder / "knowledge"),
        partial=replace(read_knowledge(folder / "knowledge").partial, y=np.zeros(len(truth), dtype=np.int64)),
    )
    other = attack(folder, blind, prior="unknown", label="unknown", restarts="2", steps="40", updates="1,3")
    np.testing.assert_array_equal(scores.arrays["beliefs"], other.arrays["beliefs"])


@pytest.mark.slow
def test_members_are_judged_first_where_membership_is_unknown(tmp_path):
    # Trained until records of its own stand out.
    truth = write_classified_run(
        tmp_path, clients=2, each=16, rounds=40, training=LocalSGD(epochs=5, batch_size=0, lr=0.5), auxiliary=40
    )
    scores = attack(tmp_path, membership="unknown", restarts="1")
    members, decoys = scores.arrays["members"], scores.arrays["decoys"]
    assert members.shape == truth.shape
    assert scores.arrays["decoy_clients"].tolist() == ["0"] * 16 + ["1"] * 16
    assert ((members > 0.5).mean() + (decoys <= 0.5).mean()) / 2 > 0.7
    answered = scores.arrays["decisions"][COS] >= 0
    np.testing.assert_array_equal(answered, members > 0.5)
    known = read_knowledge(tmp_path / "knowledge")
    with pytest.raises(NeedsError, match="membership=unknown needs knowledge of auxiliary"):
        attack(tmp_path, replace(known, auxiliary=None), membership="unknown")
    with pytest.raises(NeedsError, match="membership=unknown needs label=known"):
        attack(tmp_path, membership="unknown", label="unknown")


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"updates": "pre7"}, "option updates=pre7: expected one of pre1"),
        ({"updates": "1;2"}, "option updates=1;2"),
        ({"restarts": "0"}, "option restarts=0: expected a whole number, 1 or more"),
        ({"steps": "many"}, "option steps=many"),
        ({"relaxation": "hard"}, "option relaxation=hard: expected one of softmax, gumbel"),
        ({"temperature": "-1"}, "option temperature=-1"),
        ({"temperature": "warm"}, "option temperature=warm"),
        ({"weights": "mine"}, "option weights=mine: expected one of uniform, free"),
        ({"membership": "maybe"}, "option membership=maybe"),
        ({"method": "cos"}, "has no option 'method'"),
    ],
)
def test_bad_options_are_refused_by_name(choices, words):
    with pytest.raises(ConfigError, match=words):
        ARA.with_options(choices)


def test_a_loss_that_is_not_known_needs_labels(plain):
    folder, _ = plain
    known = read_knowledge(folder / "knowledge")
    other = Knowledge(**{**vars(known), "model": replace(MODEL, loss="somewhere:loss"), "training": ONE_STEP})
    with pytest.raises(NeedsError, match="label=unknown needs a known loss"):
        attack(folder, other, label="unknown")


@pytest.mark.slow
def test_a_client_of_too_many_known_examples_is_left_out(plain, monkeypatch):
    folder, _ = plain
    known = read_knowledge(folder / "knowledge")
    partial = known.partial
    rows = np.concatenate([np.arange(len(partial)), np.flatnonzero(partial.clients == "2")])
    more = replace(partial, x=partial.x[rows], y=partial.y[rows], clients=partial.clients[rows])
    most = max(np.sum(more.clients == client) for client in set(partial.clients) - {"2"})
    monkeypatch.setattr("fedattack.threats.attribute.ara._MOST_RECORDS", most)
    scores = attack(folder, replace(known, partial=more), restarts="1", steps="3")
    note = next(note for note in scores.notes if note.startswith("client 2: "))
    assert note.endswith("not attacked: ask about fewer")
    assert (scores.arrays["decisions"][:, more.clients == "2"] == -1).all()
    assert (scores.arrays["decisions"][:, more.clients != "2"] >= 0).all()
