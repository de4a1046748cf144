"""The words of the bundled digits are named in replies and sums, judged, and refused in one line."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, read_knowledge
from fedattack.attacks.lookups import used_rows
from fedattack.audit.finding import LEAK, NO_EVIDENCE, NOT_APPLICABLE, TOO_FEW
from fedattack.audit.truth import read_truth
from fedattack.base.errors import DataError, NeedsError
from fedattack.base.structured import pack
from fedattack.learning import LocalSGD
from fedattack.record import Record
from fedattack.report.section import show_table
from fedattack.threats.tokens import tables
from fedattack.threats.tokens.judge import TokensJudge
from fedattack.threats.tokens.section import _count_exposed
from tests.threats.tokens.world import (
    CLIENTS,
    EMBEDDED,
    ONE_HOT,
    attacked,
    judged,
    texts,
    write_sums_of_words,
    write_words_run,
)
from tests.worlds.attacked import judge, rewrite_truth
from tests.worlds.federation import write_run


@pytest.mark.parametrize(
    ("known", "protocol"),
    [(EMBEDDED, "fedavg"), (ONE_HOT, "fedavg"), (ONE_HOT, "fedsgd")],
    ids=["embedding", "one-hot", "gradients"],
)
def test_words_of_digits_are_named_exactly(known, protocol, tmp_path):
    found = judged(write_words_run(tmp_path, known=known, protocol=protocol))
    for metric in ("f1", "precision", "recall"):
        assert found[metric].value == 1.0
    assert (found["f1"].headline, found["f1"].verdict, found["f1"].n) == (True, LEAK, CLIENTS)
    assert found["f1"].p == pytest.approx(1 / 720, abs=1e-3)
    assert found["f1"].chance < 0.9
    (row,) = show_table(tables.TABLES, found["f1"]).rows
    assert row[4:] == ["100%", "100%", "stood still"]
    assert len(show_table(tables.CLIENTS, found["f1"]).rows) == CLIENTS
    assert _count_exposed([found["f1"]]) == "The rows named for 6 of 6 clients are exactly those that they use."


def test_words_are_named_under_decay_and_momentum(tmp_path):
    training = LocalSGD(2, 2, 0.05, momentum=0.9, weight_decay=1e-3)
    assert judged(write_words_run(tmp_path, training=training))["f1"].value == 1.0


@pytest.mark.slow
def test_sums_tell_whose_words_they_are_over_rounds(tmp_path):
    taking_part = [*itertools.combinations(range(CLIENTS), 2)]
    folder = write_sums_of_words(tmp_path, rounds=len(taking_part), taking_part=taking_part)
    found = judged(folder)
    assert found["f1"].verdict == LEAK
    assert found["f1"].value > 0.95


def test_sums_of_the_same_clients_tell_nothing_of_one(tmp_path):
    """The null: whoever always appears together is not told apart."""
    found = judged(write_sums_of_words(tmp_path, rounds=2))["f1"]
    assert found.verdict in (NO_EVIDENCE, TOO_FEW)
    assert found.value <= found.chance + 1e-9


@pytest.mark.slow
def test_named_rows_that_are_nobody_s_own_are_no_leak(tmp_path):
    """The null: what was named stands beside words that are drawn anew each time."""
    folder, draw, ps = write_words_run(tmp_path), np.random.default_rng(3), []
    for _ in range(20):
        rows = [np.sort(draw.choice(1088, 200, replace=False)) for _ in range(CLIENTS)]
        used = {
            "names": np.array(["embed.weight"]),
            "rows": np.concatenate(rows),
            "tables": np.zeros(200 * CLIENTS, np.int64),
            "owners": np.repeat([str(client) for client in range(CLIENTS)], 200),
            "whole": np.array([str(client) for client in range(CLIENTS)]),
        }
        rewrite_truth(folder, answers={"tokens": used})
        found = judged(folder)["f1"]
        assert found.read_off["right"] > 0
        assert found.read_off["certain"] == 0
        ps.append(found.p)
    assert sum(p <= 0.05 for p in ps) <= 4


def test_words_that_one_client_alone_holds_are_certain_where_three_clients_are_too_few_for_a_test(tmp_path):
    found = judged(write_words_run(tmp_path, clients=3))["f1"]
    assert found.p_least == pytest.approx(1 / 6)
    assert (found.verdict, found.p_adjusted, found.read_off["clients"]) == (LEAK, None, 3)
    assert 0 < found.read_off["certain"] < found.read_off["right"]


def test_few_words_of_three_clients_are_too_few(tmp_path):
    """Each uses ten words alone: so few are no more than an accident may give."""
    folder = write_words_run(tmp_path, clients=3)
    truth = read_truth(folder / "truth").answers["tokens"]
    draw = np.random.default_rng(0)
    kept = np.concatenate(
        [draw.choice(np.flatnonzero(truth["owners"] == client), 10, replace=False) for client in "012"]
    )
    few = {name: truth[name][kept] for name in ("rows", "tables", "owners")}
    rewrite_truth(folder, answers={"tokens": {**truth, **few}})
    assert judged(folder)["f1"].verdict == TOO_FEW


def test_without_all_examples_of_a_client_nothing_is_judged(tmp_path):
    folder = write_words_run(tmp_path)
    rewrite_truth(folder)
    found = judged(folder)["f1"]
    assert (found.verdict, found.value) == (NOT_APPLICABLE, None)
    assert "there is no client whose training examples are all known" in found.reason


def test_a_damaged_answer_is_refused(tmp_path):
    folder = write_words_run(tmp_path)
    good = dict(read_truth(folder / "truth").answers["tokens"])
    for bad in (
        {name: array for name, array in good.items() if name != "rows"},
        good | {"rows": -good["rows"] - 1},
        good | {"tables": good["tables"] + 7},
        good | {"owners": good["owners"][:2]},
    ):
        rewrite_truth(folder, answers={"tokens": bad})
        with pytest.raises(DataError, match="seed 0: the truth's answer 'tokens'"):
            judged(folder)


def test_masked_words_are_not_used():
    known = texts_alone()
    ids = np.array([[1, 2, 0, 0, 0, 0], [3, 2, 2, 0, 0, 0]])
    x = pack({"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)})
    used = used_rows(known, [("a", x[:1]), ("b", x)])
    assert used["rows"].tolist() == [1, 2, 1, 2, 3]
    assert used["owners"].tolist() == ["a", "a", "b", "b", "b"]
    assert used["whole"].tolist() == ["a", "b"]
    assert used_rows(known, []) is None


def texts_alone():
    spec = ModelKnowledge("tests.worlds.texts:classifier", (), 4, arguments={})
    return Knowledge(model=spec)


def test_a_table_is_found_by_its_name_where_no_model_is_known(tmp_path):
    folder = write_words_run(tmp_path)
    record, known = Record(folder / "record"), read_knowledge(folder / "knowledge", trusted=(str(EMBEDDED.spec),))
    without = replace(known, model=None)
    alone, asked = ATTACKS["tokens"].run(record, without), ATTACKS["tokens"].run(record, known)
    assert alone.facts["tables"] == asked.facts["tables"]
    np.testing.assert_array_equal(alone.arrays["rows"], asked.arrays["rows"])
    _, ids, _ = texts()
    by_model = used_rows(known, [("a", ids[:3]), ("b", ids[3:9])])
    by_ids = used_rows(without, [("a", ids[:3]), ("b", ids[3:9])], record)
    assert by_model.keys() == by_ids.keys()
    for name, array in by_model.items():
        np.testing.assert_array_equal(array, by_ids[name])
    assert used_rows(without, [("a", np.zeros((2, 3), np.float32))], record) is None
    assert used_rows(without, [("a", ids[:3])]) is None


def test_what_cannot_be_asked_is_refused_in_one_line(tmp_path):
    attack = ATTACKS["tokens"]
    plain = write_run(tmp_path / "plain", rounds=1, epochs=1)
    with pytest.raises(
        NeedsError, match="needs an embedding, ten inputs of 0 or 1 in a first linear layer, or a matrix"
    ):
        attack.run(Record(plain / "record"), read_knowledge(plain / "knowledge"))
    folder = write_words_run(
        tmp_path / "nan", known=ONE_HOT, alter=lambda name, array, start: np.full_like(array, np.nan)
    )
    with pytest.raises(
        NeedsError, match=r"needs updates of a table, .*round 1, client node0 left out: fc1.weight holds num"
    ):
        attacked(folder)
    record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
    with pytest.raises(NeedsError, match="ten inputs of 0 or 1"):
        attack.run(record, replace(known, targets=None))


def test_scores_that_name_what_they_do_not_list_are_refused(tmp_path):
    folder = write_words_run(tmp_path, known=ONE_HOT)
    scores = attacked(folder)
    for name, number in (("tables", 1), ("whose", CLIENTS), ("asked_tables", 1)):
        altered = {**scores.arrays, name: np.full_like(scores.arrays[name], number)}
        replace(scores, arrays=altered).save(folder / "scores" / "tokens.npz")
        with pytest.raises(DataError, match=f"{name}: expected indices below"):
            judge(folder)


@pytest.mark.parametrize(("clients", "known"), [(1, False), (2, True)])
def test_of_a_single_client_nothing_is_said_before_the_run(clients, known):
    """Its rows are held against those that nobody uses. Two that use three rows each are too few for anything."""
    rows = np.arange(3 * clients)
    answers = {
        "names": np.array(["words"]),
        "rows": rows,
        "tables": np.zeros_like(rows),
        "owners": (rows // 3).astype(str),
        "whole": np.arange(clients).astype(str),
    }
    run = SimpleNamespace(truth=SimpleNamespace(answers={"tokens": answers}))
    assert (TokensJudge.reach([run], 0.05) is not None) == known
