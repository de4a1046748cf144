from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from fedattack.attacks import Knowledge, ModelKnowledge, PartialRecords, Targets
from fedattack.audit.finding import LEAK, NO_EVIDENCE, NOT_APPLICABLE, TOO_FEW
from fedattack.audit.truth import Attributes, Truth
from fedattack.base.errors import DataError
from fedattack.report.validate import validate_findings
from fedattack.threats.attribute.case import IMPUTATION, MAJORITY, AttributeCase, lower_bound
from fedattack.threats.attribute.judge import AttributeJudge
from fedattack.threats.attribute.optimum import DecodedClient
from tests.attacks.listed import tables_of
from tests.benchmarks.calibration.attribute import NULLS, POWERS
from tests.benchmarks.calibration.attribute import judged as judged_in
from tests.benchmarks.calibration.drawn import measured
from tests.threats.attribute import contract
from tests.threats.attribute.filled import make_scores
from tests.worlds.cases import make_case

N = 200
LINEAR = ModelKnowledge(spec="linear", input_shape=(3,), classes=1, loss="mse")


def values(ones=40, n=N):
    return (np.arange(n) < ones).astype(int)


def case(decisions, truth, *, seed=0, auxiliary=None, names=("no", "yes"), beside=(), attack="aia", **told):
    """A case whose methods are the names in ``decisions``; public columns say nothing of the attribute."""
    truth, n = np.asarray(truth), len(truth)
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 3)).astype(np.float32)
    x[:, 2] = 0
    owners = np.array([str(row % 4) for row in range(n)])
    domain = np.arange(len(names), dtype=np.float32)[:, None]
    partial = PartialRecords(x, draw.normal(size=n).astype(np.float32), owners, (2,), domain, tuple(names))
    scores = make_scores(attack, decisions, values=names, targets=partial.fingerprint, **told)
    told = Truth(
        clients=("0", "1", "2", "3"),
        classes=("0",),
        counts=np.full((4, 1), n // 4),
        owners=np.array([], dtype=np.str_),
        evaluation=(np.zeros((1, 3)), np.zeros(1)),
        nodes={},
        targets=partial.fingerprint,
        attributes=Attributes(truth, tuple(names), tuple(owners.tolist()), "sex"),
    )
    known = Knowledge(model=LINEAR, partial=partial, auxiliary=auxiliary)
    return make_case(AttributeCase, seed, scores, told, SimpleNamespace(view="individual"), known, beside)


def preferring(name):
    return type("Preferring", (AttributeJudge,), {"method": name})


def judged(*cases, judge=AttributeJudge):
    findings = judge(cases, setting={}, provenance={}).findings()
    validate_findings([finding.to_dict() for finding in findings])
    return {finding.metric: finding for finding in findings}


def flipped(truth, count, start=0):
    wrong = truth.copy()
    wrong[start : start + count] = 1 - wrong[start : start + count]
    return wrong


def test_a_known_answer():
    """20 % have the value; 10 of these 40 and 6 of the others are missed."""
    truth = values()
    answers = flipped(flipped(truth, 10), 6, start=100)
    found = judged(case({"local": answers}, truth))
    assert found["accuracy"].value == pytest.approx(184 / 200)
    assert found["accuracy"].chance == 0.5
    assert found["accuracy"].baselines == {MAJORITY: 0.8}
    assert found["excess"].value == pytest.approx(12.0), "184 right where the majority is right for 160"
    assert found["excess"].verdict == LEAK
    assert found["excess"].headline
    assert found["balanced-accuracy"].value == pytest.approx((30 / 40 + 154 / 160) / 2)
    assert found["rare-recall"].value == pytest.approx(30 / 40)
    assert found["rare-recall"].chance == pytest.approx(36 / 200), "how often it is named"
    assert "(yes)" in found["rare-recall"].label
    assert found["rare-recall"].n == 40
    table = {row["method"]: row for row in found["excess"].series["attributes"]["methods"]}
    assert table[MAJORITY]["baseline"]
    assert table[MAJORITY]["balanced"] == 0.5
    assert table["local"]["excess"] == pytest.approx(12.0)
    clients = {entry["client"]: entry["value"] for entry in found["accuracy"].series["per_client"]}
    expected = {str(c): float((answers == truth)[np.arange(N) % 4 == c].mean()) for c in range(4)}
    assert clients == pytest.approx(expected)


def test_the_tables_give_the_headline_again(tmp_path):
    truth = values()
    answers = flipped(flipped(truth, 10), 6, start=100)
    said = np.where(np.arange(N) % 50 == 0, -1, answers)
    cases = [case({"local": answers}, truth), case({"local": said}, values(60), seed=1)]
    judge = AttributeJudge(cases, setting={}, provenance={})
    excess = judge.findings()[0]
    tables = tables_of(judge.listed(), tmp_path)
    assert contract.headline(tables) == (pytest.approx(excess.value), excess.n)
    assert {row["true value"] for row in tables["records"]} == {"no", "yes"}
    assert sum(row["answered"] == "no" for row in tables["records"]) == 4
    assert {row["seed"] for row in tables["clients"]} == {"0", "1"}
    assert {row["client"] for row in tables["clients"]} == {"0", "1", "2", "3"}


def test_the_column_is_named_in_labels_and_in_the_series():
    found = judged(case({"local": values(35)}, values()))
    assert all("sex" in found[name].label for name in ("excess", "accuracy", "balanced-accuracy", "rare-recall"))
    assert found["excess"].series["asked"] == {"column": "sex", "values": ["no", "yes"]}


def test_beliefs_in_the_rarest_value_have_a_roc_and_bins():
    truth = values()
    sure = np.where(truth == 1, 0.9, 0.2)
    beliefs = np.stack([1 - sure, sure], axis=1)
    found = judged(case({"local": truth}, truth, beliefs=beliefs[None]))
    series = found["accuracy"].series
    assert series["asked"]["rarest"] == "yes"
    assert set(series["roc"]["value"]) == {1.0}, "all that have the value are above all that have not"
    assert (sum(series["scores"]["positive"]), sum(series["scores"]["negative"])) == (40, 160)


def test_naming_the_majority_is_no_leak_however_accurate():
    truth = values(10)
    found = judged(case({"cos": np.zeros(N, int)}, truth))
    assert found["accuracy"].value == 0.95
    assert found["excess"].value == 0
    assert {found[name].verdict for name in ("excess", "accuracy", "balanced-accuracy", "rare-recall")} == {NO_EVIDENCE}
    assert found["balanced-accuracy"].value == 0.5


@pytest.mark.parametrize("seed", range(5))
def test_answers_that_have_nothing_to_do_with_the_truth_are_no_leak(seed):
    draw = np.random.default_rng(seed)
    truth, answers = draw.integers(0, 2, N), draw.integers(0, 2, N)
    found = judged(case({"cos": answers}, truth))
    assert {found[name].verdict for name in ("excess", "accuracy", "balanced-accuracy")} == {NO_EVIDENCE}


@pytest.mark.slow
def test_the_best_baseline_is_the_bar_imputation_included():
    draw = np.random.default_rng(1)
    truth = draw.integers(0, 2, N)
    attacked = case({"cos": flipped(truth, 10)}, truth)
    # public records of which the label is the attribute
    y = draw.integers(0, 2, 300).astype(np.float32)
    public = Targets(np.c_[draw.normal(size=(300, 2)), y].astype(np.float32), y)
    partial = attacked.knowledge.partial
    partial.y[:] = truth
    known = Knowledge(model=LINEAR, partial=partial, auxiliary=public)
    found = judged(make_case(AttributeCase, 0, attacked.scores, attacked.truth, attacked.record, known))
    assert found["accuracy"].baselines[IMPUTATION] == 1.0
    assert found["excess"].value == pytest.approx(-5.0)
    assert found["excess"].verdict == NO_EVIDENCE
    assert found["excess"].series["attributes"]["best_baseline"] == IMPUTATION
    assert found["excess"].series["attributes"]["imputed_by"] != []


def test_scores_of_baselines_are_bars_and_those_of_other_attacks_stand_in_the_table():
    truth = values(100)
    bars = make_scores("attribute-baselines", {"stats": flipped(truth, 10)})
    other = make_scores("ara", {"cos": flipped(truth, 4)})
    found = judged(case({"local": truth}, truth, beside=(other, bars)))
    assert found["excess"].value == pytest.approx(5.0)
    assert "accuracy-stats" not in found
    assert found["accuracy"].baselines == {MAJORITY: 0.5, "stats": 0.95}
    table = {row["method"]: row for row in found["excess"].series["attributes"]["methods"]}
    assert table["ara: cos"]["excess"] == pytest.approx(3.0)
    assert {name for name, row in table.items() if row["baseline"]} == {MAJORITY, "stats"}
    with pytest.raises(DataError, match="the decisions of ara have shape"):
        case({"local": truth}, truth, beside=(make_scores("ara", {"cos": truth[:9]}),))


def test_membership_is_judged_where_records_lay_among_others():
    truth = values()
    members, decoys = np.full(N, 0.9), np.full(N, 0.1)
    members[:20], decoys[:10] = 0.2, 0.7
    members[20:30] = np.nan
    clients = (np.arange(N) % 4).astype(str)
    told = {"members": members, "decoys": decoys, "decoy_clients": clients}
    found = judged(case({"cos": truth}, truth, attack="ara", **told))
    assert found["membership"].value == pytest.approx((170 + 190) / 390)
    assert found["membership"].chance == pytest.approx(200 / 390)
    assert found["membership"].verdict == LEAK
    guess = np.random.default_rng(0).random((2, N))
    guessed = {"members": guess[0], "decoys": guess[1], "decoy_clients": clients}
    nothing = judged(case({"cos": truth}, truth, attack="ara", **guessed))
    assert nothing["membership"].verdict == NO_EVIDENCE
    assert "membership" not in judged(case({"cos": truth}, truth))


def test_the_headline_is_fixed_in_advance_and_others_stand_beside_it():
    truth = values(100)
    found = judged(case({"Last returned": truth, "local": flipped(truth, 50)}, truth), judge=preferring("local"))
    assert found["accuracy"].value == 0.75
    assert found["accuracy-last-returned"].value == 1.0
    assert [item.metric for item in found.values() if item.headline] == ["excess"]
    with pytest.raises(DataError, match="have the methods cos; expected local"):
        judged(case({"cos": truth}, truth), judge=preferring("local"))


def test_no_answer_counts_as_the_majority_and_is_told():
    truth = values()
    answers = np.where(np.arange(N) % 2 == 0, truth, -1)
    found = judged(case({"cos": answers}, truth))
    assert found["accuracy"].value == pytest.approx((100 + 80) / 200)
    assert "100 examples without an answer" in found["accuracy"].reason


def test_seeds_are_pooled():
    truth = values(100)
    found = judged(*(case({"cos": flipped(truth, 10 * seed)}, truth, seed=seed) for seed in (1, 2, 3)))
    assert found["excess"].n == 3 * N
    assert found["excess"].value == pytest.approx(40.0)
    assert found["excess"].seed_mean == pytest.approx(40.0)
    assert found["excess"].seed_sd == pytest.approx(5.0)
    single = judged(case({"cos": flipped(truth, 20)}, truth))
    assert found["excess"].high - found["excess"].low > 2 * 5.0
    assert single["excess"].seed_sd is None


def test_beliefs_of_the_headline_are_checked():
    truth = values(100)
    sure = np.tile([0.25, 0.75], (N, 1))
    beliefs = np.stack([1 - sure, sure])
    found = judged(case({"other": truth, "cos": np.ones(N, int)}, truth, beliefs=beliefs), judge=preferring("cos"))
    reliability = found["accuracy"].series["reliability"]
    assert (reliability["confidence"], reliability["accuracy"], reliability["count"]) == ([0.75], [0.5], [N])


def test_more_values_than_two_and_a_value_that_nobody_has():
    truth = np.arange(N) % 3
    found = judged(case({"cos": np.where(truth == 2, 0, truth)}, truth, names=("a", "b", "c", "never")))
    assert found["accuracy"].chance == 0.25
    assert found["balanced-accuracy"].value == pytest.approx(2 / 3)
    assert found["balanced-accuracy"].chance == pytest.approx(1 / 3)
    assert found["rare-recall"].value == 0.0


def test_proposition_3_is_stated_for_least_squares_and_checked():
    truth = values(60)
    losses = np.zeros((1, N, 2))
    losses[0, np.arange(N), truth] = 0.01
    losses[0, np.arange(N), 1 - truth] = 9.0
    clients = []
    for client in range(4):
        weights = {"local": 1.0 if client else None}
        clients.append(DecodedClient(str(client), N // 4, 5, "messages", 3, 3, 0.3, weights))
    answers = flipped(truth, 20, start=100)
    found = judged(case({"local": answers}, truth, losses=losses, clients=tuple(clients)))
    bound = found["bound"]
    assert bound.value == pytest.approx(0.96)
    assert bound.n == 150, "one client's model is not known"
    assert "for 0 of 3 clients" in bound.reason
    assert bound.verdict == NOT_APPLICABLE
    assert list(bound.baselines.values()) == [pytest.approx(0.9)]
    kept = judged(case({"local": truth}, truth, losses=losses, clients=tuple(clients)))
    assert "for 3 of 3 clients" in kept["bound"].reason


def test_the_bound_is_the_proposition_s():
    assert lower_bound(0.5, 0.1, 1.0) == pytest.approx(0.6)
    assert lower_bound(0.9, 0.1, 1.0) == pytest.approx(0.8)
    assert lower_bound(0.5, 0.0, -2.0) == 1.0
    assert lower_bound(0.3, 5.0, 0.0) == pytest.approx(0.4)


def test_scores_that_do_not_fit_the_truth_are_refused():
    truth = values()
    for wrong in (truth[:-1], truth + 1):
        with pytest.raises(DataError, match=r"have shape .*; expected \(1, 200\)"):
            case({"cos": wrong}, truth)
    whole = case({"cos": truth}, truth)
    without = Truth(**(vars(whole.truth) | {"attributes": None}))
    with pytest.raises(DataError, match=r"that is missing in truth/attributes.npz"):
        make_case(AttributeCase, 0, whole.scores, without, whole.record, whole.knowledge)


@pytest.mark.slow
def test_nothing_is_seldom_a_leak():
    """240 drawings of runs in which no answer comes from an update."""
    worlds = (
        "answers lean by client",
        "answers lean by client, unequal, a value rare",
        "answers lean by client, 3 clients",
        "answers equal a guess",
        "a guess altered by client",
        "another guess as good",
    )
    leaks, told = {}, 0
    for row in measured("null", {name: NULLS[name] for name in worlds}, judged_in, 40, seed=0):
        leaks[row["finding"]] = leaks.get(row["finding"], 0) + row["leaks"]
        told += row["alarms"] * (row["finding"] == "membership")
    assert max(leaks.values()) <= stats.binom.isf(0.001, 240, 0.05), leaks
    assert told >= stats.binom.ppf(0.001, 240, 0.01), "p ≤ 0.05 does occur"


@pytest.mark.slow
def test_what_is_there_is_a_leak():
    worlds = (
        "all values known, 3 clients, 20 examples",
        "80 % known of a quarter of the clients",
        "a fifth known beside a guess",
        "commonest value known of 9 in 10 clients",
    )
    for row in measured("power", {name: POWERS[name] for name in worlds}, judged_in, 10, seed=0):
        if row["finding"] == "excess":
            assert row["leaks"] >= 5, row


def test_one_value_only_says_nothing():
    found = judged(case({"cos": np.arange(N) % 2}, np.zeros(N, int)))
    assert {found[name].verdict for name in ("excess", "accuracy", "balanced-accuracy", "rare-recall")} == {TOO_FEW}


def test_membership_is_exchanged_within_each_client():
    """All of one client are taken for members, and nobody of another."""
    truth = values()
    members = np.where(np.arange(N) % 4 == 0, 0.9, 0.1)
    told = {"members": members, "decoys": members, "decoy_clients": (np.arange(N) % 4).astype(str)}
    within = judged(case({"cos": truth}, truth, attack="ara", **told))["membership"]
    assert within.p == 1, "within each client all answers are the same"
    untold = {"members": members, "decoys": np.full(N, 0.1)}
    assert "membership" not in judged(case({"cos": truth}, truth, attack="ara", **untold))


def test_these_runs_and_runs_like_them_are_told_apart():
    truth = values(100)
    several = judged(*(case({"cos": flipped(truth, 20 * seed, start=60)}, truth, seed=seed) for seed in (1, 2, 3)))
    for name in ("excess", "accuracy", "balanced-accuracy", "rare-recall"):
        finding = several[name]
        assert finding.low <= finding.here_low < finding.value < finding.here_high <= finding.high
    assert judged(case({"cos": truth}, truth))["excess"].here_low is None


def test_the_same_folder_has_the_same_p():
    truth = values(100)
    first, second = [judged(case({"cos": flipped(truth, 85)}, truth)) for _ in range(2)]
    assert first["excess"].p == second["excess"].p < 0.9
