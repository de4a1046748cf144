from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.learning import build_model
from fedattack.record import Record
from fedattack.threats.attribute.baselines import HEURISTICS, statistics_decisions, statistics_scores
from tests.worlds.classified import write_classified_run

BASELINES = ATTACKS["attribute-baselines"]


def decide(model, states, candidates, y, loss):
    return statistics_decisions(statistics_scores(model, states, candidates, y, loss), np.random.default_rng(0))


def test_the_heuristics_are_those_of_the_paper_worked_out_by_hand():
    """A linear model of two classes: the statistics follow from the logits and the records themselves."""
    model = nn.Linear(2, 2)
    states = [
        {"weight": np.array([[0.0, a], [0.0, 0.0]], dtype=np.float32), "bias": np.array([b, 0.0], dtype=np.float32)}
        for a, b in ((2.0, -1.0), (-3.0, 1.0), (1.0, -0.5))
    ]
    x = np.array([[0.0, 0.0], [3.0, 0.0]], dtype=np.float32)
    candidates = np.stack([x, x + np.array([0, 1])]).astype(np.float32)
    y = np.array([0, 1])
    found = decide(model, states, candidates, y, "cross-entropy")
    assert tuple(found) == HEURISTICS
    expected = {name: [] for name in HEURISTICS}
    for record in range(2):
        table = {name: [0.0, 0.0] for name in HEURISTICS[:-1]}
        for value in range(2):
            row = candidates[value, record]
            for state in states:
                logits = state["weight"] @ row + state["bias"]
                p = np.exp(logits) / np.exp(logits).sum()
                error = p - np.eye(2)[y[record]]
                gradient = np.concatenate([np.outer(error, row).ravel(), error])
                table["stats-label"][value] += logits.argmax() == y[record]
                table["stats-probability"][value] += p[y[record]]
                table["stats-loss"][value] += np.log(p[y[record]])
                table["stats-final-loss"][value] = np.log(p[y[record]])
                table["stats-gradient"][value] += np.linalg.norm(gradient)
                table["stats-true-label-gradient"][value] += error[y[record]] * row.sum()
        votes = [int(np.argmax(scores)) for scores in table.values() if scores[0] != scores[1]]
        assert len(votes) == len(table), "the case must have no ties"
        for name, vote in zip(table, votes, strict=True):
            expected[name].append(vote)
        expected["stats-majority"].append(int(np.bincount(votes, minlength=2).argmax()))
        assert sum(votes) != 3, "nor an equal vote"
    assert {name: chosen.tolist() for name, chosen in found.items()} == expected


def test_a_regression_has_the_heuristics_of_losses_and_gradients():
    model = build_model("mlp", input_shape=(3,), classes=1, hidden=4, seed=0)
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    found = decide(model, [state], x, np.zeros(5, dtype=np.float32), "mse")
    assert list(found) == ["stats-loss", "stats-final-loss", "stats-gradient", "stats-majority"]
    with torch.no_grad():
        squares = np.stack([model(torch.from_numpy(rows)).numpy()[:, 0] ** 2 for rows in x])
    np.testing.assert_array_equal(found["stats-loss"], squares.argmin(axis=0))


def test_equals_are_drawn_and_not_given_to_the_first_value():
    model = build_model("mlp", input_shape=(3,), classes=2, hidden=4, seed=0)
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    same = np.repeat(np.random.default_rng(0).normal(size=(1, 200, 3)).astype(np.float32), 2, axis=0)
    y = np.zeros(200, dtype=np.int64)
    found = decide(model, [state], same, y, "cross-entropy")
    assert all(abs(chosen.mean() - 0.5) < 0.12 for chosen in found.values())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return folder, write_classified_run(folder, auxiliary=120)


@pytest.mark.slow
def test_all_baselines_stand_side_by_side(plain):
    folder, truth = plain
    known = read_knowledge(folder / "knowledge")
    scores = BASELINES.run(Record(folder / "record"), known, device="cpu")
    methods = scores.facts["methods"]
    assert methods == ["random", "public100", "majority", *HEURISTICS]
    assert scores.arrays["decisions"].shape == (len(methods), len(truth))
    assert scores.arrays["beliefs"].shape == (len(methods), len(truth), 2)
    np.testing.assert_allclose(scores.arrays["beliefs"].sum(axis=2), 1)
    assert (scores.arrays["decisions"][methods.index("majority")] == 0).all()
    assert set(scores.arrays["decisions"][methods.index("random")]) == {0, 1}
    assert "public1000 is left out: there are 120 auxiliary records" in scores.notes
    assert set(scores.facts["classifiers"]) == {"public100"}


def test_without_public_records_their_methods_are_missing(plain):
    folder, _ = plain
    known = read_knowledge(folder / "knowledge")
    bare = replace(known, auxiliary=None)
    methods = BASELINES.run(Record(folder / "record"), bare, device="cpu").facts["methods"]
    assert methods == ["random", "majority", *HEURISTICS]
    lost = replace(bare, partial=replace(known.partial, prior=None))
    assert BASELINES.run(Record(folder / "record"), lost, device="cpu").facts["methods"] == ["random", *HEURISTICS]


@pytest.mark.slow
def test_without_a_prior_the_majority_is_that_of_the_public_records(plain):
    folder, _ = plain
    known = read_knowledge(folder / "knowledge")
    lost = replace(known, partial=replace(known.partial, prior=None))
    scores = BASELINES.run(Record(folder / "record"), lost, device="cpu")
    shares = scores.arrays["beliefs"][scores.facts["methods"].index("majority"), 0]
    ones = known.auxiliary.x[:, known.partial.columns[0]].mean()
    np.testing.assert_allclose(shares, [1 - ones, ones], rtol=1e-6)


@pytest.mark.slow
def test_a_client_without_replies_gets_no_statistics(plain):
    folder, _ = plain
    known = read_knowledge(folder / "knowledge")
    two = replace(known, nodes={node: client for node, client in known.nodes.items() if client != "2"})
    scores = BASELINES.run(Record(folder / "record"), two, device="cpu")
    row = scores.facts["methods"].index("stats-loss")
    assert (scores.arrays["decisions"][row, known.partial.clients == "2"] == -1).all()
    assert (scores.arrays["decisions"][row, known.partial.clients != "2"] >= 0).all()
    np.testing.assert_allclose(scores.arrays["beliefs"][row, known.partial.clients == "2"][0], known.partial.prior)
    assert any("client 2: no reply that can be used" in note for note in scores.notes)


@pytest.mark.slow
def test_examples_that_are_taken_one_by_one_get_the_same_statistics(plain, monkeypatch):
    folder, _ = plain
    record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
    whole = BASELINES.run(record, known, device="cpu")
    monkeypatch.setattr("fedattack.threats.attribute.baselines._NUMBERS", 1)
    single = BASELINES.run(record, known, device="cpu")
    np.testing.assert_array_equal(single.arrays["decisions"], whole.arrays["decisions"])
