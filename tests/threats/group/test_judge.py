"""The judge of private attributes: known answers, ties, restarts and a null."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from fedattack.attacks import ATTACKS, Scores, read_knowledge
from fedattack.audit.finding import LEAK, NO_EVIDENCE, TOO_FEW
from fedattack.audit.truth import ClientAttribute, Truth, read_truth
from fedattack.base.errors import DataError
from fedattack.record import Record
from fedattack.report import write_report
from fedattack.threats.group.case import PrivateAttributeCase, credits_of
from fedattack.threats.group.judge import MAJORITY, PrivateAttributeJudge
from fedattack.threats.group.private_attribute import AttributeBeliefs
from tests.benchmarks.calibration.drawn import REPORT, measured
from tests.benchmarks.calibration.group import NULLS, POWERS
from tests.benchmarks.calibration.group import judged as judged_in
from tests.worlds.attacked import audit_folder
from tests.worlds.cases import change_case, make_case
from tests.worlds.private import VALUES, write_private_run
from tests.worlds.sealed import edit

CLIENTS = 30


def truth(held, nodes=None):
    names = [str(client) for client in range(len(held))]
    return Truth(
        clients=tuple(names),
        classes=("0",),
        counts=np.ones((len(held), 1), dtype=np.int64),
        owners=np.zeros(0, dtype=np.str_),
        evaluation=(np.zeros((1, 2), np.float32), np.zeros(1, np.int64)),
        nodes=nodes or {f"node{name}": name for name in names},
        targets="",
        private={"level": ClientAttribute(tuple(map(int, held)), VALUES)},
    )


def case(beliefs, held, adversaries=("svm",), seed=0, nodes=None):
    """A case of scores; beliefs are (adversaries, rounds, nodes, values)."""
    known = truth(held, nodes)
    facts = {
        "adversaries": [*adversaries],
        "rounds": [*range(1, beliefs.shape[1] + 1)],
        "nodes": [*known.nodes],
        "attributes": {"level": [*VALUES]},
        "clients": 1,
        "epochs": 1,
        "targets": "",
    }
    return make_case(
        PrivateAttributeCase,
        seed,
        Scores("private-attribute", {"beliefs-level": beliefs}, facts),
        known,
        SimpleNamespace(view="individual"),
    )


def sure(decisions):
    return np.eye(3)[np.asarray(decisions)]


def judged(*cases):
    return {finding.metric: finding for finding in PrivateAttributeJudge(cases, setting={}, provenance={}).findings()}


def test_credit_is_shared_by_ties_and_left_out_where_nothing_was_sent():
    beliefs = np.array([[[1, 0, 0], [0.4, 0.4, 0.2], [1 / 3] * 3, [np.nan] * 3]])
    np.testing.assert_allclose(credits_of(beliefs, np.array([0, 1, 2, 0])), [[1, 1 / 2, 1 / 3, np.nan]])
    np.testing.assert_allclose(credits_of(beliefs, np.array([2, 2, 2, 2])), [[0, 0, 1 / 3, np.nan]])


def test_a_client_counts_once_with_the_share_of_its_rounds():
    """Three clients, two rounds; the last one replied once."""
    beliefs = np.stack([sure([0, 1, 2]), sure([0, 2, 0])])[None]
    beliefs[0, 1, 2] = np.nan
    found = judged(case(beliefs, [0, 1, 2]))["level-svm"]
    assert found.value == pytest.approx((1 + 0.5 + 1) / 3)
    assert found.n == 3
    assert found.series["per_round"]["value"] == [1.0, 0.5]
    assert found.series["confusion"]["counts"] == [[2, 0, 0], [0, 1, 1], [0, 0, 1]]


def test_two_nodes_of_one_client_are_one_client():
    nodes = {"a": "0", "b": "0", "c": "1"}
    found = judged(case(sure([[0, 1, 1]])[None], [0, 1], nodes=nodes))["level-svm"]
    assert found.n == 2
    assert found.value == pytest.approx((0.5 + 1) / 2)


def test_right_decisions_are_a_leak_and_guesses_are_not():
    held = np.arange(CLIENTS) % 3
    found = judged(*(case(sure([held])[None], held, seed=seed) for seed in range(2)))["level-svm"]
    assert (found.value, found.verdict, found.chance, found.n) == (1.0, LEAK, 1 / 3, 2 * CLIENTS)
    assert found.null["value"] == pytest.approx(1 / 3, abs=0.03)
    assert found.null["low"] < found.null["value"] < found.null["high"] < 0.6
    draw = np.random.default_rng(0)
    guessed = judged(*(case(sure(draw.integers(3, size=(1, 1, CLIENTS))), held, seed=seed) for seed in range(3)))
    assert guessed["level-svm"].verdict == NO_EVIDENCE


def test_naming_the_commonest_value_is_no_leak():
    held = np.array([0] * 24 + [1] * 6)
    found = judged(case(sure([np.zeros(CLIENTS, int)])[None], held))["level-svm"]
    assert found.value == found.baselines[MAJORITY] == 0.8
    assert found.verdict == NO_EVIDENCE
    assert found.null == {"value": pytest.approx(0.8), "low": pytest.approx(0.8), "high": pytest.approx(0.8), "n": 30}


def test_four_clients_can_exchange_their_values_in_six_ways():
    found = judged(case(sure([[0, 0, 1, 1]])[None], [0, 0, 1, 1]))["level-svm"]
    assert found.p == pytest.approx(1 / 6, abs=0.03)
    assert found.verdict == TOO_FEW
    several = judged(*(case(sure([[0, 0, 1, 1]])[None], [0, 0, 1, 1], seed=seed) for seed in range(2)))["level-svm"]
    assert several.p == pytest.approx(1 / 36, abs=0.005), "clients stay in their run"
    assert several.verdict == LEAK
    assert several.low <= several.here_low < several.here_high == several.value == 1


@pytest.mark.slow
def test_nothing_is_seldom_a_leak():
    worlds = {name: NULLS[name] for name in ("decisions at random", "partial participation", "3 clients, 3 seeds")}
    rows = [*measured("null", worlds, judged_in, 80, seed=0)]
    alarms = sum(row["alarms"] for row in rows if row["finding"] != REPORT)
    assert stats.binom.ppf(0.001, 240, 0.01) <= alarms <= stats.binom.isf(0.001, 240, 0.05)
    assert all(row["leaks"] <= row["alarms"] for row in rows)


def test_a_quarter_of_the_clients_is_a_leak():
    name = "a quarter leaks, others the commonest"
    row, _ = measured("power", {name: POWERS[name]}, judged_in, 40, seed=0)
    assert row["leaks"] >= 25


def test_the_headline_is_the_first_adaptive_adversary_where_there_is_one():
    held = np.arange(CLIENTS) % 3
    both = np.stack([sure([held]), sure([(held + 1) % 3])])
    found = judged(case(both, held, adversaries=("svm", "svm-adaptive")))
    assert [name for name, finding in found.items() if finding.headline] == ["level-svm-adaptive"]
    assert found["level-svm"].value == 1
    assert found["level-svm-adaptive"].value == 0
    assert found["level-svm-adaptive"].label == "Level named by an SVM (adaptive)"


def test_scores_and_truth_that_do_not_go_together_are_refused():
    held = [0, 1, 2]
    good = case(sure([held])[None], held)
    other = replace(good.truth, private={"level": ClientAttribute((0, 1, 2), ("a", "b", "c"))})
    with pytest.raises(DataError, match="values low, middle, high, the truth has a, b, c"):
        change_case(good, truth=other)
    with pytest.raises(DataError, match="has none"):
        change_case(good, truth=replace(good.truth, private={}))
    with pytest.raises(DataError, match="node node0 is in the scores but not in the truth"):
        change_case(good, truth=replace(good.truth, nodes={"node1": "1", "node2": "2"}))


def test_beliefs_of_other_values_or_attributes_are_refused():
    with pytest.raises(DataError, match=r"beliefs-level: expected 3 values, got \(2,\); run"):
        case(np.full((1, 1, 3, 2), 0.5), [0, 1, 2])
    found = case(sure([[0, 1, 2]])[None], [0, 1, 2]).found
    split = Scores.of("private-attribute", replace(found, beliefs={"age": found.beliefs["level"]}))
    with pytest.raises(DataError, match="there is no array beliefs-level"):
        replace(split, notes=("read again",)).as_found(AttributeBeliefs)


def test_a_run_folder_is_attacked_judged_and_reported(tmp_path):
    folder = write_private_run(tmp_path, clients=30)
    attack = ATTACKS["private-attribute"].with_options({"clients": "150", "epochs": "10", "adversaries": "svm"})
    known = read_knowledge(folder / "knowledge")
    attack.run(Record(folder / "record"), known, device="cpu").save(folder / "scores" / "private-attribute.npz")
    findings = audit_folder(folder, device="cpu")
    assert [finding.name for finding in findings] == ["private-attribute.level-svm"]
    assert findings[0].verdict == LEAK
    assert "Level named by an SVM" in write_report(folder).read_text()


def test_the_truth_about_clients_survives_the_disk(tmp_path):
    folder = write_private_run(tmp_path)
    private = read_truth(folder / "truth").private
    assert private["level"].names == VALUES
    assert len(private["level"].values) == 9
    path = folder / "truth" / "private.json"
    for text, message in (
        ('{"attributes": {"level": {"values": [0, 1], "names": ["a", "b"]}}}', "one of 2 values for each of 9 clients"),
        ('{"attributes": {"level": {"values": [0, 1]}}}', "names is missing"),
    ):
        path.write_text(text)
        edit(folder / "truth" / "holdings.json", {})
        with pytest.raises(DataError, match=message):
            read_truth(folder / "truth")
