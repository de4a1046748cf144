"""Tables are read off trees: by hand, beside a slow obvious reading, and where there is nothing to find."""

import json
import re
import tracemalloc
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest

from fedattack.audit.finding import LEAK, NO_EVIDENCE, NOT_APPLICABLE
from fedattack.audit.truth import read_truth
from fedattack.base.errors import DataError, NeedsError
from fedattack.report.section import show_table
from fedattack.threats.trees import tables, trees
from fedattack.threats.trees.booster import read_booster
from fedattack.threats.trees.boxes import enclose_leaves, list_cuts, list_leaves
from fedattack.threats.trees.linking import link_trees
from fedattack.threats.trees.matching import match_rows
from fedattack.threats.trees.planting import plant_trees
from fedattack.threats.trees.reconstruct import SentStep, find_penalties, reconstruct, share_out
from fedattack.threats.trees.section import _name_exposed
from tests.threats.trees.world import (
    CLIENTS,
    EACH,
    RATE,
    RIDGE,
    ROUNDS,
    as_array,
    as_json,
    attacked,
    grow,
    judged,
    predict,
    table,
    write_trees_run,
)
from tests.worlds.attacked import judge, rewrite_truth

X = np.array([[1.0, 5.0], [2.0, 7.0], [3.0, 6.0], [4.0, 8.0]], dtype=np.float32)
Y = np.array([10.0, -3.0, 40.0, 7.0])


def model_of(x, y, depth=4):
    tree = grow(x, y.mean() - y, depth)
    return read_booster(as_array(as_json([tree], x.shape[1], float(y.mean()))).tobytes(), "here"), tree


def test_leaves_are_boxes_around_as_many_examples_as_their_covers_say():
    booster, tree = model_of(X, Y)
    leaves = enclose_leaves(booster.trees[0], list_leaves(booster.trees[0]))
    assert leaves.cover.tolist() == [1, 1, 2]
    x = X[:, leaves.columns]
    inside = ((leaves.low[:, None] <= x) & (leaves.high[:, None] > x)).all(axis=2)
    assert inside.sum(axis=1).tolist() == [1, 1, 2]
    assert (inside.sum(axis=0) == 1).all()
    np.testing.assert_allclose(booster.trees[0].predict(X.astype(float)), predict(tree, X), rtol=1e-6)


def test_ridge_rate_and_labels_are_read_off_the_nodes():
    x, y = table()
    booster, _ = model_of(x[:60], y[:60])
    penalties = find_penalties(booster.trees)
    assert penalties.ridge == pytest.approx(RIDGE, abs=0.01)
    assert penalties.rate == pytest.approx(RATE, abs=0.001)
    small, _ = model_of(X, Y)
    read = reconstruct([SentStep(small.trees, ())], small, small.base_score, 4)
    # The leaf of two examples tells their mean.
    assert sorted(read.label) == pytest.approx([2, 2, 10, 40], abs=1e-3)


def test_two_trees_are_put_together_as_the_likeliest_of_all_ways():
    """The oracle tries each way to say which leaf of the second tree holds which example of the first one."""
    first, _ = model_of(X, Y)
    tree = grow(X[:, ::-1], np.array([3.0, -1.0, 2.0, -7.0]), 2)
    tree["split_indices"] = [1 - column for column in tree["split_indices"]]
    second = read_booster(as_array(as_json([tree], 2, 0.0)).tobytes(), "here").trees[0]
    unlabelled = read_booster(as_array(as_json([], 2, 0.0, "rank:ndcg")).tobytes(), "here")
    begun = reconstruct([SentStep(first.trees, ())], unlabelled, 0.0, 4)
    begun._cuts = list_cuts([*first.trees, second], 2)
    leaves = enclose_leaves(second, list_leaves(second))
    slots = np.repeat(np.arange(len(leaves.cover)), leaves.cover.astype(int))
    costs = begun.weigh(leaves)[:, slots]
    least = min(sum(costs[row, place] for row, place in enumerate(way)) for way in permutations(range(4)))
    found = reconstruct([SentStep([*first.trees, second], ())], unlabelled, 0.0, 4)
    low, high = found.low[:, leaves.columns], found.high[:, leaves.columns]
    inside = ((leaves.low <= low[:, None]) & (high[:, None] <= leaves.high)).all(axis=2)
    assert inside.sum(axis=0).tolist() == leaves.cover.tolist()
    assert begun.weigh(leaves)[inside].sum() == pytest.approx(least)
    guessed = found.guess()
    assert np.isin(guessed[~np.isnan(guessed)], X).all()


def test_examples_are_shared_out_by_cover():
    assert share_out(np.array([2.0, 1.0, 1.0]), 4).tolist() == [2, 1, 1]
    assert share_out(np.array([0.9, 0.05, 0.05]), 10).tolist() == [8, 1, 1]
    assert share_out(np.array([3.0, 2.0, 1.0]), 2).sum() == 2
    assert share_out(np.zeros(3), 5).tolist() == [0, 0, 0]


def test_rows_are_matched_by_hand():
    true = np.array([[0.0, 0], [1, 1], [2, 2]])
    met = match_rows(np.array([[2.0, 2], [0.0, 9]]), true, np.array([0.1, 0.1]))
    assert met.tolist() == [[True, False], [False, False], [True, True]]


def test_thresholds_of_diabetes_leak_and_the_page_says_so(tmp_path):
    found = judged(write_trees_run(tmp_path))
    columns = found["columns"]
    assert (columns.verdict, columns.n) == (LEAK, CLIENTS)
    assert columns.p == pytest.approx(1 / 120, abs=1e-3)
    assert columns.value > columns.chance
    assert (columns.headline, found["rows"].n) == (True, CLIENTS)
    assert {*found["values"].baselines} == {"the middle of each column", "rows of the other clients"}
    linked = found["linked"]
    assert linked.n == CLIENTS * (ROUNDS - 1)
    assert 0 <= linked.value <= 1
    assert [row[0] for row in show_table(tables.CLIENTS, columns).rows] == list("01234")
    assert len(show_table(tables.COLUMNS, columns).rows) == 10
    assert "appear as thresholds in its trees" in _name_exposed([columns])


def linked_of(cuts, order, rounds=3):
    """Link trees of one threshold each: ``cuts[client][round]``; clients are named in an order."""
    by_node = {}
    for client, own in enumerate(cuts):
        replies = []
        for number, values in enumerate(own):
            tree = grow(np.array(values, dtype=np.float32)[:, None], np.arange(len(values)) - 1.0, 6)
            booster = read_booster(as_array(as_json([tree], 1, 0.0)).tobytes(), "here")
            replies.append(SimpleNamespace(number=number, trees=booster.trees))
        by_node[str(client)] = replies
    nodes = [str(client) for client in order]
    found = link_trees(by_node, nodes, [])
    assert sorted(found["sent_in"].tolist()) == sorted(list(range(1, rounds)) * len(cuts))
    by_number = zip(found["sent_in"].tolist(), found["owners"].tolist(), found["linked"].tolist(), strict=True)
    return sorted((number, nodes[owner], nodes[chosen]) for number, owner, chosen in by_number)


def test_trees_of_clients_that_share_no_value_are_all_put_to_theirs():
    cuts = [[[client + place / 8 for place in range(6)]] * 3 for client in range(4)]
    found = linked_of(cuts, range(4))
    assert len(found) == 8
    assert all(owner == chosen for _, owner, chosen in found)


@pytest.mark.parametrize("shared", [True, False])
def test_to_whom_a_tree_is_put_does_not_depend_on_the_order_of_nodes(shared):
    """Also where trees share nothing, so that only the order could tell."""
    rng = np.random.default_rng(0)
    cuts = [
        [(rng.integers(20, size=6) + 100 * (number if not shared else 0)).tolist() for number in range(3)]
        for _ in range(4)
    ]
    first = linked_of(cuts, range(4))
    assert linked_of(cuts, [2, 0, 3, 1]) == first
    for number in (1, 2):
        assert sorted(chosen for at, _, chosen in first if at == number) == list("0123"), "one of each client a round"


def test_each_threshold_is_a_value_of_the_client_and_cyclic_trees_are_its_own_alone(tmp_path):
    x, _ = table()
    scores = attacked(write_trees_run(tmp_path, cyclic=True, clients=3))
    assert scores.facts["trees"] == [1, 1, 1]
    arrays = scores.arrays
    for cut, column, client in zip(arrays["cuts"], arrays["cut_columns"], arrays["cut_whose"], strict=True):
        assert np.float32(cut) in x[client * 30 : (client + 1) * 30, column]


@pytest.mark.slow
def test_tables_that_have_nothing_to_do_with_the_trees_are_no_leak(tmp_path):
    """The null: trees stand beside tables that are drawn anew each time."""
    folder = write_trees_run(tmp_path)
    attacked(folder).save(folder / "scores" / "trees.npz")
    tables, draw, ps = dict(read_truth(folder / "truth").answers["trees"]), np.random.default_rng(3), []
    before = tables["x"]
    for _ in range(10):
        tables["x"] = draw.permuted(before, axis=0)
        rewrite_truth(folder, answers={"trees": tables})
        found = judge(folder)["columns"]
        assert found.verdict == NO_EVIDENCE or found.p <= 0.05
        ps.append(found.p)
    assert sum(p <= 0.05 for p in ps) <= 3


def test_without_tables_nothing_is_said(tmp_path):
    folder = write_trees_run(tmp_path, rounds=1)
    rewrite_truth(folder)
    found = judged(folder)["columns"]
    assert (found.verdict, found.value) == (NOT_APPLICABLE, None)


def test_scores_that_do_not_fit_each_other_are_refused(tmp_path):
    folder = write_trees_run(tmp_path, rounds=1, clients=2, depth=1)
    scores = attacked(folder)
    replace(scores, facts={**scores.facts, "features": 1}).save(folder / "scores" / "trees.npz")
    with pytest.raises(DataError, match="rows of 2 columns, 1 features, 2 clients"):
        judge(folder)
    whose = np.full_like(scores.arrays["whose"], 2)
    replace(scores, arrays={**scores.arrays, "whose": whose}).save(folder / "scores" / "trees.npz")
    with pytest.raises(DataError, match="whose: expected indices below 2, got 2"):
        judge(folder)


def test_a_damaged_answer_is_refused(tmp_path):
    folder = write_trees_run(tmp_path, rounds=1, clients=2, depth=1)
    attacked(folder).save(folder / "scores" / "trees.npz")
    good = dict(read_truth(folder / "truth").answers["trees"])
    for bad, words in (
        ({"x": good["x"]}, "expected the arrays x and owners, but there is no 'owners'"),
        (good | {"owners": good["owners"][:1]}, "owners: expected texts"),
        (good | {"x": good["x"] * np.nan}, "x: expected numbers, got NaN"),
        (good | {"x": good["x"] + np.inf}, "x: expected values in"),
        (good | {"x": good["x"][:, :3]}, "it has 3 columns, and the trees 10"),
    ):
        rewrite_truth(folder, answers={"trees": bad})
        with pytest.raises(DataError, match=re.escape(f"seed 0: the truth's answer 'trees': {words}")):
            judge(folder)


def test_a_reply_that_cannot_be_read_is_left_out_and_said(tmp_path):
    def sent(client, number, array):
        return np.arange(9, dtype=np.uint8) if client == 1 else array

    scores = attacked(write_trees_run(tmp_path, sent=sent))
    assert scores.facts["clients"] == ["node0", "node2", "node3", "node4"]
    assert any("round 1, client node1 left out" in note for note in scores.notes)


def stating(features, *, trees=None, of=1):
    """Let one client state a number of columns, and send other trees."""

    def sent(client, number, array):
        if client != of or number < (2 if trees else 1):
            return array
        model = json.loads(array.tobytes())
        model["learner"]["learner_model_param"]["num_feature"] = str(features)
        if trees:
            model["learner"]["gradient_booster"]["model"]["trees"] = trees
        return as_array(model)

    return sent


def by_client(scores, client):
    own = scores.arrays["whose"] == scores.facts["clients"].index(client)
    cuts = scores.arrays["cut_whose"] == scores.facts["clients"].index(client)
    return scores.arrays["rows"][own], scores.arrays["cuts"][cuts]


@pytest.mark.parametrize("features", [10, 11, 100_000])
def test_one_client_that_states_other_columns_takes_nothing_from_the_others(tmp_path, features):
    honest = attacked(write_trees_run(tmp_path / "honest"))
    folder = write_trees_run(tmp_path / "other", sent=stating(features))
    scores = attacked(folder)
    assert scores.facts["features"] == 10
    for client in honest.facts["clients"]:
        for one, other in zip(by_client(honest, client), by_client(scores, client), strict=True):
            np.testing.assert_array_equal(one, other)
    assert any("client node1 says" in note for note in scores.notes) == (features > 10)
    assert judged(folder)["columns"].n == CLIENTS


def test_a_reply_that_splits_by_a_column_that_others_lack_is_left_out_and_said(tmp_path):
    tree = grow(X, np.array([1.0, -2, 3, 5]), 2)
    tree["split_indices"] = [12] * len(tree["split_indices"])
    folder = write_trees_run(tmp_path, sent=stating(20, trees=[tree]))
    scores = attacked(folder)
    assert scores.facts["trees"] == [3, 1, 3, 3, 3]
    assert any("client node1: 2 replies left out: they split by other columns" in note for note in scores.notes)
    assert judged(folder)["columns"].n == CLIENTS


def test_columns_by_which_no_tree_splits_take_no_memory(tmp_path):
    def every(client, number, array):
        return stating(100_000, of=client)(client, number, array)

    folder = write_trees_run(tmp_path, rounds=1, sent=every)
    attacked(folder)  # imports and caches
    tracemalloc.start()
    scores = attacked(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert scores.facts["features"] == 100_000
    assert scores.arrays["rows"].shape == (CLIENTS * EACH, len(scores.arrays["columns"]))
    assert peak < 4e6


def test_more_trees_than_can_be_dealt_are_left_out_of_the_links_and_said(tmp_path):
    leaf = grow(X, np.array([1.0, -2, 3, 5]), 0)
    scores = attacked(write_trees_run(tmp_path, rounds=2, sent=stating(10, trees=[leaf] * 700)))
    assert sorted(scores.arrays["owners"].tolist()) == [0, 2, 3, 4]
    assert any("client node1: its trees of 1 rounds are assigned to nobody" in note for note in scores.notes)


def test_a_client_without_thresholds_at_first_is_left_out_of_the_links_alone(tmp_path):
    leaf = grow(X, np.array([1.0, -2, 3, 5]), 0)

    def sent(client, number, array):
        return stating(10, trees=[leaf])(client, 2, array) if number == 1 else array

    scores = attacked(write_trees_run(tmp_path, rounds=2, sent=sent))
    assert sorted(scores.arrays["owners"].tolist()) == [0, 2, 3, 4]


def test_more_trees_than_can_be_put_together_tell_thresholds_alone(tmp_path, monkeypatch):
    honest = attacked(write_trees_run(tmp_path))
    monkeypatch.setattr(trees, "_MOST_PREDICTIONS", 5)
    scores = attacked(tmp_path)
    assert any("the last 2 trees only give thresholds" in note for note in scores.notes)
    np.testing.assert_array_equal(scores.arrays["cuts"], honest.arrays["cuts"])
    monkeypatch.setattr(trees, "_MOST_NUMBERS", 100)
    scores = attacked(tmp_path)
    assert scores.arrays["rows"].size <= 100
    assert any("2 rows of each client are rebuilt" in note for note in scores.notes)


def test_a_table_of_more_columns_than_are_compared_is_refused(tmp_path):
    folder = write_trees_run(tmp_path, rounds=1, clients=2, depth=1)
    attacked(folder).save(folder / "scores" / "trees.npz")
    good = dict(read_truth(folder / "truth").answers["trees"])
    wide = good | {"x": np.zeros((len(good["owners"]), 20_000), np.float32)}
    rewrite_truth(folder, answers={"trees": wide})
    with pytest.raises(DataError, match="it has 20,000 columns; at most 10,000 are compared"):
        judge(folder)


def test_a_record_without_trees_is_refused(tmp_path):
    folder = write_trees_run(tmp_path, rounds=1, sent=lambda *_: np.arange(9, dtype=np.uint8))
    with pytest.raises(NeedsError, match="attack trees: it needs replies that hold trees of XGBoost"):
        attacked(folder)


def test_values_that_one_client_alone_holds_are_certain_where_two_clients_are_too_few_for_a_test(tmp_path):
    x, _ = table()

    def sent(client, number, array):
        return plant_trees({"0": array}, x[client * EACH : (client + 1) * EACH], 64)["0"]

    found = judged(write_trees_run(tmp_path, clients=2, rounds=1, sent=sent))["columns"]
    assert (found.verdict, found.p_adjusted, found.read_off["clients"]) == (LEAK, None, 2)
    assert found.read_off["certain"] == found.read_off["right"] > 100


@pytest.mark.parametrize("kind", ["other values", "values of both"])
def test_thresholds_that_are_no_value_of_one_client_alone_are_not_certain(tmp_path, kind):
    x, _ = table()
    first = x[:EACH]

    def sent(client, number, array):
        return plant_trees({"0": array}, first if kind == "values of both" else first + 0.001, 64)["0"]

    def of_truth(rows):
        return np.tile(first, (2, 1)) if kind == "values of both" else rows

    folder = write_trees_run(tmp_path, clients=2, rounds=1, sent=sent, of_truth=of_truth)
    found = judged(folder)["columns"]
    assert (found.read_off["right"], found.read_off["certain"], found.verdict == LEAK) == (0, 0, False)
