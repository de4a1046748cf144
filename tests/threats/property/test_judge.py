import json
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from fedattack.audit.finding import LEAK, NO_EVIDENCE, NOT_APPLICABLE, TOO_FEW
from fedattack.audit.truth import Truth
from fedattack.base.errors import DataError
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.threats.property.case import PropertyCase
from fedattack.threats.property.judge import PropertyJudge
from tests.benchmarks.calibration import property as drawn
from tests.benchmarks.calibration.drawn import measured
from tests.threats.property.answered import make_scores
from tests.worlds.cases import make_case

CLIENTS, ROUNDS, WINDOWS = 20, 12, (10, 12)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return write_record(tmp_path_factory.mktemp("record") / "r")


def write_record(path, metric=lambda client: 0.5):
    model = {"w": np.zeros(2, dtype=np.float32)}
    writer = RecordWriter(path, view="aggregate", aggregation={"kind": "mean", "weight": "num-examples"})
    for number in range(1, 4):
        replies = [Reply(f"n{client}", "ok", None, 10, {"loss": metric(client)}) for client in range(CLIENTS)]
        writer.write(Exchange(number, model, replies, aggregate=model))
    writer.close()
    return Record(path)


def case(record, score, positives, *, seed=0, accuracy=0.9, named=None, nodes=None):
    """Make a case whose methods all have ``score`` (questions, clients) and name what is above zero."""
    score = np.asarray(score, dtype=np.float64)
    positives = np.asarray(positives, dtype=bool)
    per_round = np.full((len(score), ROUNDS), 0.5)
    scores = make_scores(
        score,
        [f"n{column}" for column in range(score.shape[1])],
        named=named,
        rounds=ROUNDS,
        windows=WINDOWS,
        questions=tuple(f"target {row}" for row in range(len(score))),
        posterior=1 / (1 + np.exp(-score)),
        posterior_high=np.ones_like(score),
        overlap=per_round,
        accuracy=np.full_like(per_round, accuracy),
        checked=np.where(np.arange(ROUNDS) == 0, 0.9, np.nan) * np.ones((len(score), 1)),
    )
    truth = Truth(
        clients=tuple(str(client) for client in range(CLIENTS)),
        classes=("0",),
        counts=np.full((CLIENTS, 1), 10),
        owners=np.array([], dtype=np.str_),
        evaluation=(np.zeros((1, 2)), np.zeros(1)),
        nodes=nodes or {f"n{client}": str(client) for client in range(CLIENTS)},
        targets="",
        positives=positives,
    )
    return make_case(PropertyCase, seed, scores, truth, record)


def judged(*cases):
    found = {item.metric: item for item in PropertyJudge(cases, setting={}, provenance={}).findings()}
    for item in found.values():
        assert item.view == "aggregate"
    return found


def some(*clients):
    flags = np.zeros(CLIENTS, dtype=bool)
    flags[list(clients)] = True
    return flags


def test_f1_precision_and_recall_of_a_known_answer(record):
    """3 of 4 positives named and 1 wrongly: precision and recall 3/4, and so is F1."""
    truth = [some(0, 1, 2, 3)]
    found = judged(case(record, np.where(some(1, 2, 3, 9), 1.0, -1.0)[None], truth))
    assert found["f1"].value == pytest.approx(0.75)
    assert found["precision"].value == pytest.approx(0.75)
    assert found["recall"].value == pytest.approx(0.75)
    assert found["f1"].headline
    assert found["f1"].n == CLIENTS
    assert found["f1"].chance == pytest.approx(2 * 0.2 / 1.2), "naming everybody"
    assert found["recall"].chance == pytest.approx(4 / 20)
    assert found["false-alarms"].value == pytest.approx(1 / 16)
    assert found["f1"].low < 0.75 < found["f1"].high


@pytest.mark.long
def test_right_names_are_a_leak_and_random_names_are_none(record):
    draw = np.random.default_rng(0)
    truth = [some(*draw.choice(CLIENTS, 4, replace=False)) for _ in range(6)]
    right = judged(case(record, np.where(truth, 1.0, -1.0), truth))
    assert right["f1"].verdict == LEAK
    assert right["recall-at-far"].value == 1
    leaks = 0
    for seed in range(20):
        guess = np.random.default_rng(seed).permuted(np.where(truth, 1.0, -1.0), axis=1)
        found = judged(case(record, guess, truth))
        assert found["f1"].null["low"] <= found["f1"].null["value"] <= found["f1"].null["high"]
        leaks += found["f1"].verdict == LEAK
    assert leaks <= 2


def test_naming_everybody_is_no_leak(record):
    found = judged(case(record, np.ones((3, CLIENTS)), [some(0, 1)] * 3))
    assert found["f1"].value == pytest.approx(found["f1"].chance)
    assert found["f1"].verdict == NO_EVIDENCE
    assert found["recall"].verdict == NO_EVIDENCE


def test_a_null_run_claims_nothing(record):
    found = judged(case(record, -np.ones((2, CLIENTS)), np.zeros((2, CLIENTS))))
    assert found["f1"].value is None
    assert found["f1"].verdict == NOT_APPLICABLE
    assert found["false-alarms"].value == 0
    assert found["false-alarms"].n == 2 * CLIENTS
    assert all(item.verdict != LEAK for item in found.values())


def test_false_alarms_are_those_for_what_nobody_has(record):
    score = np.stack([np.where(some(0, 1), 1.0, -1.0), np.where(some(5), 1.0, -1.0)])
    found = judged(case(record, score, [some(0, 1), some()]))
    assert found["false-alarms"].value == pytest.approx(1 / CLIENTS)
    assert found["f1"].value == 1, "questions that nobody answers do not count as missed"


def test_detectors_at_chance_claim_nothing(record):
    truth = [some(0, 1, 2, 3)] * 5
    found = judged(case(record, np.where(truth, 1.0, -1.0), truth, accuracy=0.51))
    assert found["f1"].verdict == NO_EVIDENCE
    assert "at chance in every round" in found["f1"].reason
    assert found["recall-at-far"].verdict == NO_EVIDENCE
    assert found["f1"].p < 0.001, "what the names are worth is still said"


def test_clients_that_were_not_seen_are_neither_right_nor_wrong(record):
    score = np.where(some(0, 1), 1.0, -1.0)
    score[[2, 3]] = np.nan
    found = judged(case(record, score[None], [some(0, 1, 2)]))
    assert found["f1"].value == 1
    assert found["f1"].n == CLIENTS - 2


@pytest.mark.parametrize("nodes", [0, CLIENTS])
def test_where_no_client_was_seen_there_is_no_value(record, nodes):
    """Neither in a record without nodes, nor in one whose nodes never took part."""
    unseen = case(record, np.full((2, nodes), np.nan), [some(0, 1), some(2)])
    found = judged(unseen)
    assert {*found} == {"f1"}
    assert (found["f1"].value, found["f1"].verdict, found["f1"].headline) == (None, NOT_APPLICABLE, True)
    assert "no client took part" in found["f1"].reason
    json.dumps(found["f1"].to_dict(), allow_nan=False)


def test_a_seed_in_which_no_client_was_seen_says_nothing(record):
    truth = [some(0, 1, 2, 3)]
    whole = case(record, np.where(some(0, 1, 2, 9), 1.0, -1.0)[None], truth)
    unseen = case(record, np.full((1, CLIENTS), np.nan), truth, seed=1)
    alone, both = judged(whole), judged(whole, unseen)
    for metric in ("f1", "precision", "recall"):
        for number in ("value", "low", "high", "n", "here_low", "p"):
            assert getattr(both[metric], number) == getattr(alone[metric], number), (metric, number)
    assert both["f1"].series["stability"] == alone["f1"].series["stability"]


def test_recall_at_false_alarms_needs_scores_above_the_negatives(record):
    """One of 16 negatives scores above all positives but one: at 5 % none of 16 may pass."""
    score = np.linspace(-2, -1, CLIENTS)
    score[[0, 1, 2]] = 1.0
    score[3], score[10] = 5.0, 3.0
    found = judged(case(record, score[None], [some(0, 1, 2, 3)]))
    assert found["recall-at-far"].value == pytest.approx(0.25)


def test_several_nodes_of_one_client_are_one_client(record):
    nodes = {f"n{client}": str(client) for client in range(CLIENTS)} | {"n19": "0"}
    found = judged(case(record, np.where(some(19), 1.0, -1.0)[None], [some(0)], nodes=nodes))
    assert found["f1"].value == 1
    assert found["f1"].n == CLIENTS - 1


def test_seeds_are_pooled_and_their_spread_widens_the_interval(record):
    truth = [some(0, 1, 2, 3)]
    good = np.where(some(0, 1, 2, 3), 1.0, -1.0)[None]
    bad = np.where(some(0, 9, 10, 11), 1.0, -1.0)[None]
    found = judged(case(record, good, truth, seed=0), case(record, bad, truth, seed=1))
    assert found["f1"].value == pytest.approx(2 * 5 / 16)
    assert found["f1"].seed_sd == pytest.approx(0.75 / np.sqrt(2))
    assert found["f1"].low < found["f1"].here_low < 5 / 8


def test_a_metric_in_plaintext_that_tells_is_found(tmp_path):
    truth = [some(0, 1, 2, 3)]
    telling = write_record(tmp_path / "t", metric=lambda client: 5.0 + client if client < 4 else client / 100)
    score = -np.ones((1, CLIENTS))
    found = judged(case(telling, score, truth))["plaintext"]
    assert found.value == 1
    assert found.verdict == LEAK
    assert found.selected_after_the_fact
    assert found.label.endswith("loss")
    draw = np.random.default_rng(1).random(CLIENTS)
    silent = write_record(tmp_path / "s", metric=lambda client: float(draw[client]))
    assert judged(case(silent, score, truth))["plaintext"].verdict == NO_EVIDENCE


def test_the_series_of_the_figures_are_whole(record):
    from fedattack.report.validate import validate_findings

    truth = [some(0, 1), some()]
    found = PropertyJudge([case(record, np.where(truth, 1.0, -1.0), truth)], setting={}, provenance={}).findings()
    validate_findings([item.to_dict() for item in found])
    series = found[0].series
    assert series["methods"]["rounds"] == list(WINDOWS)
    assert series["methods"]["methods"]["PROLIN"]["f1"] == [1.0, 1.0]
    assert series["overlap"]["checked_rounds"] == [1]
    assert sum(item["positive"] for item in series["posteriors"]) == 2
    assert series["stability"]["methods"]["REG"] == [1.0, 1.0]


def test_truth_that_does_not_answer_the_questions_is_refused(record):
    with pytest.raises(DataError, match="answer 1 questions and the truth answers 2"):
        case(record, np.ones((1, CLIENTS)), [some(), some()])
    with pytest.raises(DataError, match="in the record but not in the truth"):
        case(record, np.ones((1, CLIENTS)), [some()], nodes={"n0": "0"})


def test_a_reply_of_a_node_that_the_truth_does_not_name_is_refused(record):
    """The scores may be of fewer nodes than those that replied."""
    first = [f"n{client}" for client in range(CLIENTS - 1)]
    fewer = case(record, np.ones((1, CLIENTS - 1)), [some(0)], nodes={node: node.removeprefix("n") for node in first})
    with pytest.raises(DataError, match=f"^node n{CLIENTS - 1} is in the record but not in the truth \\(seed 0\\)"):
        PropertyJudge([fewer], setting={}, provenance={}).findings()


def slow_recall(score, truth):
    """Recall above the threshold that 5 % of the negatives reach or pass, with numpy's own quantile."""
    threshold = np.quantile(score[~truth], 0.95, method="higher")
    return (score[truth] > threshold).sum()


def slow_area(sent, truth):
    """How far from one half the most telling metric is, pair by pair."""
    distances = []
    for values in sent.values():
        areas = []
        for positive in truth:
            wins = [float(a > b) + 0.5 * (a == b) for a in values[positive] for b in values[~positive]]
            areas.append(np.mean(wins))
        distances.append(abs(np.mean(areas) - 0.5))
    return max(distances)


@pytest.mark.parametrize("seed", range(4))
def test_p_is_the_share_of_all_exchanges_of_clients(seed):
    """The oracle goes through all 6! ways to say who is who, with the same exchange for all questions."""
    rng = np.random.default_rng(seed)
    truth = np.array([[1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]], dtype=bool)
    score = rng.integers(-3, 4, size=truth.shape) + 1.5 * truth
    named = score > 0.5
    sent = {"loss": rng.integers(4, size=6) + truth[0], "norm": rng.random(6)}
    found = judged(drawn.case_of(score, named, truth, seed, sent))

    hits, recalls, areas = [], [], []
    for who in permutations(range(6)):
        exchanged = truth[:, who]
        hits.append((named & exchanged).sum())
        recalls.append(slow_recall(score, exchanged))
        areas.append(slow_area(sent, exchanged))
    for metric, statistics in (("f1", hits), ("recall-at-far", recalls), ("plaintext", areas)):
        exact = np.mean(np.array(statistics) >= statistics[0] - 1e-9)
        draws = 9_999 if exact < 0.25 else 199
        allowed = 5 * np.sqrt(exact * (1 - exact) / draws) + 2 / draws
        assert found[metric].p == pytest.approx(exact, abs=allowed), metric
    assert found["precision"].p == found["recall"].p == found["f1"].p
    assert found["recall-at-far"].value == recalls[0] / truth.sum()
    assert found["plaintext"].value == pytest.approx(0.5 + areas[0])


def test_a_client_that_is_named_again_and_again_is_one_coincidence(record):
    """One client of 20 has the property in all five questions, and is named in all of them: p is 1/20."""
    truth = np.stack([some(7)] * 5)
    found = judged(case(record, np.where(truth, 1.0, -1.0), truth))["f1"]
    assert found.value == 1
    assert found.p == pytest.approx(1 / 20, abs=0.01)


def test_three_clients_are_too_few_to_tell():
    truth = np.eye(3, dtype=bool)
    found = judged(drawn.case_of(np.where(truth, 1.0, -1.0), truth, truth, 0, {"loss": np.arange(3.0)}))
    assert found["f1"].verdict == found["recall-at-far"].verdict == found["plaintext"].verdict == TOO_FEW
    assert "p = 0.17, and 0.05 is needed" in found["f1"].reason


def test_several_runs_have_an_interval_about_these_runs_too(record):
    from fedattack.audit.intervals import clopper_pearson

    truth = [some(0, 1, 2, 3)]
    good = np.where(some(0, 1, 2, 9), 1.0, -1.0)[None]
    two = judged(case(record, good, truth, seed=0), case(record, good, truth, seed=1))
    assert (two["recall"].here_low, two["recall"].here_high) == pytest.approx(clopper_pearson(6, 8))
    low, high = clopper_pearson(6, 10)
    assert (two["f1"].here_low, two["f1"].here_high) == pytest.approx((2 * low / (1 + low), 2 * high / (1 + high)))
    assert judged(case(record, good, truth))["f1"].here_low is None


def test_few_clients_that_a_metric_tells_apart_leave_its_area_uncertain(tmp_path):
    telling = write_record(tmp_path / "r", metric=lambda client: float(client))
    found = judged(case(telling, -np.ones((1, CLIENTS)), [some(0, 1, 2, 3)]))["plaintext"]
    assert found.value == found.high == 1
    assert 0.2 < found.low < 0.5, "four clients, and two metrics to choose among"


@pytest.mark.slow
def test_false_alarms_are_rare_and_real_names_are_found():
    """Nulls of many kinds: names at random, always the same ones, overlapping questions, 3 clients, 3 seeds."""
    false = list(measured("null", drawn.NULLS, drawn.judged, 25, seed=5))
    for metric in ("f1", "recall-at-far", "plaintext"):
        of_metric = [row for row in false if row["finding"] == metric]
        alarms, n = sum(row["alarms"] for row in of_metric), sum(row["of"] for row in of_metric)
        assert n >= 200
        assert alarms <= stats.binom.ppf(0.999, n, 0.05), metric
        assert all(row["leaks"] <= stats.binom.ppf(0.9999, row["of"], 0.05) for row in of_metric)
    power = {name: drawn.POWERS[name] for name in ("signal of 1 deviation, 3 seeds",)}
    found = {row["finding"]: row for row in measured("power", power, drawn.judged, 10, seed=5)}
    assert found["f1"]["leaks"] >= 9
