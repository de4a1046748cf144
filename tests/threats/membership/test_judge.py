"""The judge of membership inference: known answers, whom it deals non-members to, nulls, and bad input."""

import json
from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom

from fedattack.attacks import ATTACKS, Knowledge, Scores, Targets, read_knowledge
from fedattack.audit.finding import LEAK, NO_EVIDENCE, NOT_APPLICABLE
from fedattack.audit.reach import Prepared
from fedattack.audit.roc import tpr_at
from fedattack.audit.significance import DRAWS, correct_findings
from fedattack.audit.truth import NOBODY, SEVERAL, Privacy, Truth, read_truth
from fedattack.base.errors import DataError
from fedattack.record import Record
from fedattack.record.folder import find_parts
from fedattack.report import validate_findings
from fedattack.threats.membership import blind, judge
from fedattack.threats.membership.case import AggregateCase, MembershipCase, pair_owners
from fedattack.threats.membership.judge import AggregateMembershipJudge, MembershipJudge
from tests.benchmarks.calibration import membership as calibration
from tests.worlds.attacked import audit_folder
from tests.worlds.cases import change_case, make_case
from tests.worlds.federation import write_run, write_sums_run

K = 5
CLASSES = 3
SEEDS = [0, 1, 2, 3, 4]
LEAKY = ("tpr-at-1pct-fpr", "auc", "balanced-accuracy", "epsilon-implied")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """What is most of a judge's time is made short: the forest that sees no model, and the draws of nulls."""
    monkeypatch.setattr(blind, "_TREES", 10)
    monkeypatch.setattr(judge, "_NULL_DRAWS", 40)


def case(
    *,
    shift,
    n=100,
    nobody=900,
    seed=0,
    rounds=2,
    methods=("fedmia", "loss-series"),
    nodes=None,
    marked=False,
    attack="membership",
    columns=K,
) -> MembershipCase:
    """Normal scores, larger by ``shift`` for a client's own examples; ``marked`` examples give members away."""
    draw = np.random.default_rng((7, seed))
    owner = draw.permutation(np.concatenate([np.arange(n) % K, np.full(nobody, -1)]))
    labels = draw.integers(CLASSES, size=n + nobody)
    x = draw.normal(size=(n + nobody, 4)).astype(np.float32)
    if marked:
        x[owner >= 0, 0] += 3.0
    column = np.minimum(owner, columns - 1)
    member = (column[:, None] == np.arange(columns)) & (owner >= 0)[:, None]
    arrays = {"labels": labels}
    for method in methods:
        arrays[f"score/{method}"] = draw.normal(size=(n + nobody, columns)) + shift * member
    arrays["per_round"] = np.stack([arrays["score/fedmia"]] * rounds).astype(np.float32)
    named = [f"node{index}" for index in range(columns)]
    facts = {"clients": named, "rounds": [*range(1, rounds + 1)], "methods": [*methods], "targets": "", "trained": 0}
    truth = Truth(
        clients=tuple(map(str, range(K))),
        classes=tuple("abc"),
        counts=np.full((K, CLASSES), 10),
        owners=np.array([str(index) if index >= 0 else NOBODY for index in owner]),
        evaluation=(np.zeros((1, 4), dtype=np.float32), np.zeros(1, dtype=np.int64)),
        nodes={f"node{index}": str(index) for index in range(K)} if nodes is None else nodes,
        targets="",
    )
    kind = MembershipCase if attack == "membership" else AggregateCase
    view = "individual" if attack == "membership" else "aggregate"
    known = Knowledge(targets=Targets(x, labels))
    return make_case(kind, seed, Scores(attack, arrays, facts), truth, SimpleNamespace(view=view), known)


def judged(*cases, by=MembershipJudge) -> dict:
    findings = by(cases, setting={"a": 1}, provenance={"b": 2}).findings()
    validate_findings(json.loads(json.dumps([finding.to_dict() for finding in findings])))
    return {finding.metric: finding for finding in findings}


def with_nodes_in(single, order):
    """The same scores, of nodes in another order."""
    arrays = {}
    for name, values in single.scores.arrays.items():
        arrays[name] = values if name == "labels" else values[..., order]
    named = [single.scores.facts["clients"][column] for column in order]
    return change_case(
        single, scores=replace(single.scores, arrays=arrays, facts={**single.scores.facts, "clients": named})
    )


def with_owners(single, owners, **changes):
    return change_case(single, truth=replace(single.truth, owners=owners, **changes))


def test_findings_do_not_depend_on_the_order_of_nodes():
    assert judged(with_nodes_in(case(shift=1.0), [3, 0, 4, 1, 2])) == judged(case(shift=1.0))


def test_examples_of_whole_numbers_are_judged_as_those_of_reals_are():
    """A forest that sees examples alone is given them: tokens, and rows in which a number is missing or infinite."""
    reals = case(shift=3.0)
    x = reals.knowledge.targets.x.round()
    tokens = Targets(x.astype(np.int64), reals.knowledge.targets.y)
    whole = change_case(reals, knowledge=Knowledge(targets=tokens))
    same = change_case(reals, knowledge=Knowledge(targets=replace(tokens, x=x)))
    assert judged(whole) == judged(same)
    x = x.copy()
    x[0, 0], x[1, 1] = np.nan, np.inf
    assert judged(change_case(reals, knowledge=Knowledge(targets=replace(tokens, x=x))))["auc"].verdict == LEAK


def test_a_known_shift_is_reported():
    found = judged(case(shift=3.0))
    assert {*found} == {
        "tpr-at-1pct-fpr",
        "tpr-at-0.1pct-fpr",
        "tpr-at-1pct-fpr-elsewhere",
        "auc",
        "worst-client",
        "epsilon-implied",
        "balanced-accuracy",
    }
    assert [name for name, finding in found.items() if finding.headline] == ["tpr-at-1pct-fpr"]
    headline = found["tpr-at-1pct-fpr"]
    # P(N(3, 1) > the 99th percentile of N(0, 1)).
    assert headline.low < 0.75 < headline.high
    assert headline.value == pytest.approx(0.75, abs=0.15)
    assert headline.null["value"] == pytest.approx(0.01, abs=0.01)
    assert headline.chance == 0.01
    assert headline.n == 99, "one member's label is too scarce"
    assert found["auc"].low < 0.983 < found["auc"].high
    assert found["balanced-accuracy"].value == pytest.approx(0.933, abs=0.05)
    assert found["worst-client"].selected_after_the_fact
    assert found["worst-client"].comparisons == K
    for metric in LEAKY:
        assert found[metric].verdict == LEAK, metric
    assert "fewer" not in headline.reason
    assert "too few non-members for this rate" in found["tpr-at-0.1pct-fpr"].reason
    assert found["tpr-at-0.1pct-fpr"].low == 0, "the rate of so few non-members is not known"
    assert found["tpr-at-0.1pct-fpr"].verdict == LEAK, "and yet it is no accident"
    assert headline.p == pytest.approx(1 / (1 + DRAWS))
    assert "members and non-members exchanged within each client and label" in headline.reason


def test_scores_without_a_shift_are_no_leak():
    found = judged(case(shift=0.0, seed=1), case(shift=0.0, seed=2))
    found = {finding.metric: finding for finding in correct_findings([*found.values()])}
    assert found["tpr-at-1pct-fpr"].value == pytest.approx(0.01, abs=0.02)
    for metric, finding in found.items():
        assert finding.verdict == NO_EVIDENCE, metric
    assert found["auc"].low < 0.5 < found["auc"].high
    assert found["balanced-accuracy"].value == pytest.approx(0.5, abs=0.08)
    assert found["epsilon-implied"].low == 0


@pytest.mark.slow
def test_seeds_are_put_together_and_their_spread_is_part_of_the_interval():
    one, two = case(shift=0.5, seed=0), case(shift=3.5, seed=1)
    found = judged(one, two)
    headline = found["tpr-at-1pct-fpr"]
    assert headline.n == 198
    assert headline.seed_sd > 0.3
    assert headline.high - headline.low > 0.5, "two seeds that differ so much say little of a third"
    assert headline.low < headline.here_low < headline.value < headline.here_high < headline.high
    assert judged(one)["tpr-at-1pct-fpr"].here_low is None
    titles = {entry["client"] for entry in headline.series["per_client"]}
    assert titles == {f"{client} (seed {seed})" for client in range(K) for seed in (0, 1)}


@pytest.mark.parametrize("nobody", [900, 60])
def test_non_members_have_the_labels_that_the_members_have_client_by_client(nobody):
    """A client's members are mostly of one class."""
    single = case(shift=0.0, n=90, nobody=nobody)
    owners = single.truth.owners
    labels = single.scores.arrays["labels"]
    draw = np.random.default_rng(0)
    for row in np.flatnonzero(owners != NOBODY):
        labels[row] = int(owners[row]) % CLASSES if draw.random() < 0.8 else draw.integers(CLASSES)
    members, others = single.dealt
    assert set(owners[members.rows]) == {str(client) for client in range(K)}
    assert (owners[members.rows] == np.array([single.clients[column] for column in members.columns])).all()
    assert (owners[others.rows] == NOBODY).all()
    assert len(set(members.rows.tolist())) == len(members)
    assert len(set(others.rows.tolist())) == len(others)
    times = len(others) // len(members)
    of_members = Counter(zip(members.columns.tolist(), labels[members.rows].tolist(), strict=True))
    of_others = Counter(zip(others.columns.tolist(), labels[others.rows].tolist(), strict=True))
    assert of_others == {pair: times * count for pair, count in of_members.items()}
    assert times == (1 if nobody == 60 else times)
    if nobody == 900:
        assert len(members) == 90
        assert times > 1


def test_a_rare_label_does_not_cost_the_non_members_of_the_others():
    single = case(shift=0.0)
    labels = single.scores.arrays["labels"].copy()
    labels[np.flatnonzero(single.owner >= 0)[:3]] = 7
    labels[np.flatnonzero(single.owner < 0)[:2]] = 7
    single = change_case(single, scores=replace(single.scores, arrays={**single.scores.arrays, "labels": labels}))
    members, others = single.dealt
    assert len(members) > 80
    assert len(others) > 600


def test_labels_alone_tell_nothing():
    """Each client's members are of one class, and scores follow the class alone."""
    single = case(shift=0.0, nobody=1500)
    owners, labels = single.truth.owners, single.scores.arrays["labels"]
    held = owners != NOBODY
    labels[held] = owners[held].astype(int) % CLASSES
    own_class = labels[:, None] == np.arange(K) % CLASSES
    single.scores.arrays["score/fedmia"][:] += 4.0 * own_class
    found = judged(single)
    assert found["tpr-at-1pct-fpr"].verdict == NO_EVIDENCE
    assert found["auc"].low < 0.5 < found["auc"].high


def with_origins(single, share=1.0):
    """Targets of nobody that come from the clients in turn, but for a part of which this is not known."""
    nobody = np.flatnonzero(single.truth.owners == NOBODY)
    origins = np.full(len(single.truth.owners), "", dtype="<U9")
    known = nobody[: int(share * len(nobody))]
    origins[known] = [str(index % K) for index in range(len(known))]
    return change_case(single, truth=replace(single.truth, origins=origins))


def test_non_members_come_from_the_same_client():
    single = with_origins(case(shift=0.0))
    members, others = single.dealt
    assert single.same_client
    assert (single.truth.origins[others.rows] == others.columns.astype(str)).all()
    labels = single.scores.arrays["labels"]
    of_members = Counter(zip(members.columns.tolist(), labels[members.rows].tolist(), strict=True))
    of_others = Counter(zip(others.columns.tolist(), labels[others.rows].tolist(), strict=True))
    times = len(others) // len(members)
    assert of_others == {pair: times * count for pair, count in of_members.items()}
    assert len(members) > 80
    assert "non-members come from the data of the same clients" in judged(single)["tpr-at-1pct-fpr"].reason


@pytest.mark.parametrize(("share", "words"), [(0.0, "not known whose data"), (0.05, "too few non-members come")])
def test_without_a_client_s_own_data_the_headline_says_what_cannot_be_told(share, words):
    plain = case(shift=0.0)
    single = with_origins(plain, share)
    assert not single.same_client
    for pairs, as_before in zip(single.dealt, plain.dealt, strict=True):
        np.testing.assert_array_equal(pairs.rows, as_before.rows)
        np.testing.assert_array_equal(pairs.columns, as_before.columns)
    reason = judged(single)["tpr-at-1pct-fpr"].reason
    assert words in reason
    assert "cannot be told apart from its single examples" in reason


def test_sites_alone_are_no_leak_where_origins_are_known():
    """A client's scores are high for all of its data."""
    single = with_origins(case(shift=0.0))
    homes = np.where(single.truth.owners == NOBODY, single.truth.origins, single.truth.owners)
    single.scores.arrays["score/fedmia"][:] += 4.0 * (homes[:, None] == np.arange(K).astype(str))
    found = judged(single)
    for metric in ("tpr-at-1pct-fpr", "tpr-at-1pct-fpr-elsewhere", "auc", "worst-client", "balanced-accuracy"):
        assert found[metric].verdict == NO_EVIDENCE, metric
    assert found["tpr-at-1pct-fpr-elsewhere"].value > 0.5, "whose data it is, but not who trained on it"
    unknown = change_case(single, truth=replace(single.truth, origins=np.full(1000, "")))
    assert judged(unknown)["auc"].verdict == LEAK


@pytest.mark.parametrize("world", ["labels alone informative", "sites alone informative, origins known"])
@pytest.mark.slow
def test_models_that_know_nothing_are_seldom_called_a_leak(world):
    count = 20
    rows = calibration.measured("null", {world: calibration.NULLS[world]}, calibration.judged, count, 0)
    alarms = {row["finding"]: row["alarms"] for row in rows}
    assert len(alarms) == 8, "seven findings, and the report"
    for metric, found in alarms.items():
        assert found <= binom.ppf(0.999, count, 0.05), metric


@pytest.mark.slow
def test_a_small_leak_of_many_members_is_seen():
    with calibration.quick():
        rows = [*calibration.measured("power", calibration.POWER, calibration.judged, 2, 0)]
    leaks = {(row["world"], row["finding"]): row["leaks"] for row in rows}
    for world in calibration.POWER:
        assert leaks[world, "tpr-at-1pct-fpr"] == 2
        assert leaks[world, "auc"] == 2


def test_targets_that_several_clients_hold_are_left_out_and_counted():
    single = case(shift=3.0)
    owners = single.truth.owners.copy()
    held = np.flatnonzero(owners != NOBODY)
    owners[held[:30]] = SEVERAL
    several = with_owners(single, owners, shared={int(row): ("0", "1") for row in held[:30]})
    members, others = several.dealt
    assert not {*held[:30].tolist()} & {*members.rows.tolist(), *others.rows.tolist()}
    headline = judged(several)["tpr-at-1pct-fpr"]
    assert headline.n == 70
    assert headline.series["membership_targets"] == {
        "a seen client holds": 70,
        "nobody holds": 900,
        "several clients hold": 30,
    }


def test_clients_that_were_never_seen_have_no_members():
    single = case(shift=3.0, nodes={f"node{index}": str(index) for index in range(K - 1)})
    for name in ("score/fedmia", "score/loss-series", "per_round"):
        single.scores.arrays[name][..., K - 1] = np.nan
    headline = judged(single)["tpr-at-1pct-fpr"]
    assert headline.n == 80
    assert [entry["client"] for entry in headline.series["per_client"]] == sorted(
        (entry["client"] for entry in headline.series["per_client"]),
        key=lambda name: -{entry["client"]: entry["value"] for entry in headline.series["per_client"]}[name],
    )
    assert {entry["client"] for entry in headline.series["per_client"]} == {"0", "1", "2", "3"}


def test_a_client_s_several_nodes_are_one_client():
    """Its first node was seen in the first round, its second one afterwards."""
    nodes = {"node0": "0", "node1": "0", "node2": "1", "node3": "2", "node4": "3"}
    single = case(shift=0.0, nodes=nodes)
    values = single.scores.arrays["score/fedmia"]
    values[:10, 0], values[10:20, 1] = np.nan, np.nan
    values[20:30, :2] = np.nan
    merged = single.scores_of("fedmia")
    assert merged.shape == (1000, 4)
    np.testing.assert_array_equal(merged[:10, 0], values[:10, 1])
    np.testing.assert_array_equal(merged[10:20, 0], values[10:20, 0])
    assert np.isnan(merged[20:30, 0]).all()
    np.testing.assert_allclose(merged[30:, 0], values[30:, :2].mean(axis=1))
    np.testing.assert_array_equal(merged[:, 1:], values[:, 2:])
    assert judged(single)["tpr-at-1pct-fpr"].verdict == NO_EVIDENCE


def test_a_node_that_the_truth_does_not_know_is_refused():
    single = case(shift=0.0, nodes={"node0": "0"})
    with pytest.raises(DataError, match="node node1 is in the record but not in the truth"):
        judged(single)


def test_members_are_also_held_against_other_clients_members():
    single = case(shift=3.0)
    found = judged(single)["tpr-at-1pct-fpr-elsewhere"]
    pairs = single.elsewhere
    members, _ = single.dealt
    np.testing.assert_array_equal(pairs.rows, members.rows)
    np.testing.assert_array_equal(pairs.columns, (members.columns + 1) % K)
    scores = single.scores_of("fedmia")
    assert found.value == pytest.approx(tpr_at(members.of(scores), pairs.of(scores), 0.01).value)
    assert "the larger of two: who holds what exchanged within each label; " in found.reason
    # Who is asked of everybody scores high with each client: only the common non-members tell it apart.
    for name in ("score/fedmia", "score/loss-series"):
        own = single.scores.arrays[name]
        own[single.truth.owners != NOBODY] += 3.0
        own[members.rows, members.columns] -= 3.0
    blurred = judged(single)
    assert blurred["tpr-at-1pct-fpr"].verdict == LEAK
    assert blurred["tpr-at-1pct-fpr-elsewhere"].verdict == NO_EVIDENCE


def test_the_only_client_is_not_held_against_itself():
    single = case(shift=3.0, columns=1)
    found = judged(with_owners(single, np.where(single.truth.owners == NOBODY, NOBODY, "0")))
    assert found["tpr-at-1pct-fpr"].value > 0.5
    assert "tpr-at-1pct-fpr-elsewhere" not in found


def test_a_client_s_null_has_its_members_labels():
    """Client 0 gives all of its label a high score, members or not: nobody is exposed by that."""
    single = case(shift=0.0, n=500, nobody=2000)
    arrays = dict(single.scores.arrays)
    arrays["labels"] = np.where(single.owner >= 0, single.owner, np.arange(2500) % K)
    arrays["score/fedmia"] = arrays["score/fedmia"].copy()
    arrays["score/fedmia"][arrays["labels"] == 0, 0] += 3.0
    found = judged(change_case(single, scores=replace(single.scores, arrays=arrays)))["worst-client"]
    assert "(0)" in found.label
    assert found.null["value"] == pytest.approx(0.05, abs=0.02), "one in a hundred of all, five of its own"
    assert found.verdict == NO_EVIDENCE


def test_rounds_are_matched_by_their_numbers():
    """One seed lacks the first round: its first one is the other seed's second."""
    full, late = case(shift=0.0, seed=0, rounds=2), case(shift=0.0, seed=1, rounds=1)
    full.scores.arrays["per_round"][1] = np.nan
    late = change_case(late, scores=replace(late.scores, facts={**late.scores.facts, "rounds": [2]}))
    late.scores.arrays["per_round"][0] = np.where(late.owner >= 0, 9.0, 0.0)[:, None]
    curve = judged(full, late)["tpr-at-1pct-fpr"].series["per_round"]
    assert curve["rounds"] == [1, 2]
    assert curve["value"][0] < 0.2
    assert curve["value"][1] == 1.0


def test_what_the_examples_alone_tell_is_no_leak():
    """Members look unlike non-members, and scores follow the looks."""
    found = judged(case(shift=1.0, marked=True))
    assert found["auc"].baselines["examples alone, without any model"] > 0.9
    assert "what the examples alone tell" in found["auc"].reason
    assert found["auc"].verdict == NO_EVIDENCE
    assert found["tpr-at-1pct-fpr"].verdict == NO_EVIDENCE
    plain = judged(case(shift=3.0))["auc"]
    assert plain.baselines["examples alone, without any model"] == pytest.approx(0.5, abs=0.1)


def test_the_forest_sees_a_sample_of_many_targets(monkeypatch):
    """Whole seeds until there are enough, and no more of one seed than that; the finding says how many."""
    monkeypatch.setattr(blind, "_ENOUGH", 150)
    seeds = [case(shift=0.0, n=100, nobody=300, seed=seed, marked=True) for seed in SEEDS]
    sampled = blind.Blind(seeds)
    assert [of_seed.seed for of_seed, _, _ in sampled.sample] == [0, 1]
    for of_seed, *seen in sampled.sample:
        assert [len(pairs) for pairs in seen] == [min(len(pairs), 150) for pairs in of_seed.dealt]
    assert sampled.area.value > 0.9
    members, others = sampled.sides.pooled
    seen = f"the examples of {len(members)} members and {len(others)} non-members, and no model"
    assert seen in judged(*seeds)["auc"].reason
    monkeypatch.setattr(blind, "_ENOUGH", 60)
    (of_seed, members, _), *rest = blind.Blind(seeds).sample
    assert not rest
    assert len(members) == 60
    assert {*members.rows} < {*of_seed.dealt[0].rows}
    monkeypatch.setattr(blind, "_ENOUGH", 10**6)
    assert len(blind.Blind(seeds).sample) == len(SEEDS)
    assert "sees only the examples, and no model" in judged(*seeds)["auc"].reason


def test_each_method_is_compared_and_an_adaptive_one_has_a_finding_of_its_own():
    methods = ("fedmia", "likelihood-ratio", "likelihood-ratio-adaptive", "loss-series")
    single = case(shift=3.0, methods=methods)
    single.scores.arrays["score/likelihood-ratio"][:] = 0.5
    found = judged(single)
    headline = found["tpr-at-1pct-fpr"]
    assert [row["method"] for row in headline.series["membership_methods"]] == [
        "FedMIA: loss and cosine, against the other clients",
        "likelihood ratio: loss, against shadow models of the attacker's",
        "likelihood ratio, shadows put through the clients' defence",
        "loss, mean over rounds",
    ]
    assert [*headline.baselines] == ["loss, mean over rounds"], "what looks at the asked client alone"
    row = headline.series["membership_methods"][1]
    assert row["tpr_1pct"]["value"] == 0
    assert row["auc"]["value"] == 0.5
    assert found["tpr-at-1pct-fpr-adaptive"].verdict == LEAK
    assert not found["tpr-at-1pct-fpr-adaptive"].headline


def test_seeds_of_which_one_lacks_a_method_are_judged_by_what_all_have():
    whole = case(shift=3.0, methods=("fedmia", "rmia", "loss-series"))
    found = judged(whole, case(shift=3.0, seed=1))
    rows = [row["method"] for row in found["tpr-at-1pct-fpr"].series["membership_methods"]]
    assert rows == ["FedMIA: loss and cosine, against the other clients", "loss, mean over rounds"]


@pytest.mark.parametrize("declared", [None, 0.5, 40.0])
def test_the_implied_epsilon_is_held_against_the_declared_one(declared):
    single = case(shift=3.0)
    if declared is not None:
        privacy = Privacy(1.0, 1e-5, 2, (1.0,) * K, (0.1,) * K, (declared,) * K)
        single = change_case(single, truth=replace(single.truth, privacy=privacy))
    found = judged(single)["epsilon-implied"]
    assert found.low > 0.5
    assert ("no ε is declared" in found.reason) == (declared is None)
    assert ("which is below that lower end" in found.reason) == (declared == 0.5)
    assert found.baselines == ({} if declared is None else {"declared ε": declared})


@pytest.mark.parametrize(("n", "nobody"), [(5, 900), (14, 4), (0, 100), (14, 0)])
def test_too_few_targets_give_one_finding_without_a_value(n, nobody):
    found = judged(case(shift=3.0, n=n, nobody=nobody))
    assert [*found] == ["tpr-at-1pct-fpr"]
    headline = found["tpr-at-1pct-fpr"]
    assert (headline.value, headline.verdict, headline.headline) == (None, NOT_APPLICABLE, True)
    assert "fewer than 8 targets" in headline.reason


@pytest.mark.parametrize("n", [8, 9, 12])
def test_the_fewest_targets_are_judged(n):
    found = judged(case(shift=3.0, n=n, nobody=200))
    assert found["tpr-at-1pct-fpr"].n == n


def test_infinite_scores_are_judged():
    """A likelihood of 0 has the logarithm −∞; the order of all others, and so the ROC curve, stays."""
    single, far = case(shift=3.0), case(shift=3.0)
    values = single.scores.arrays["score/fedmia"]
    largest, smallest = np.argmax(values, axis=0), np.argmin(values, axis=0)
    values[largest, np.arange(K)], values[smallest, np.arange(K)] = np.inf, -np.inf
    finite = far.scores.arrays["score/fedmia"]
    finite[largest, np.arange(K)], finite[smallest, np.arange(K)] = 1e6, -1e6
    found, wanted = judged(single), judged(far)
    for metric in LEAKY:
        assert (found[metric].value, found[metric].p) == (wanted[metric].value, wanted[metric].p), metric
    calibrated = found["tpr-at-1pct-fpr"].series["reliability"]
    assert calibrated["ece"] == pytest.approx(0, abs=0.1)


def test_where_fedmia_says_nothing_there_is_no_value():
    single = case(shift=3.0)
    single.scores.arrays["score/fedmia"][:] = np.nan
    single.scores.arrays["per_round"][:] = np.nan
    assert judged(single)["tpr-at-1pct-fpr"].verdict == NOT_APPLICABLE


def test_a_truth_about_another_number_of_targets_is_refused():
    single = case(shift=1.0)
    with pytest.raises(DataError, match="owners of 999 targets, the scores are of 1000"):
        with_owners(single, single.truth.owners[:-1])


def test_a_regression_s_targets_are_all_of_one_class():
    single = case(shift=3.0)
    single.scores.arrays["labels"] = np.random.default_rng(0).normal(size=1000)
    assert (single.labels == 0).all()
    assert judged(single)["tpr-at-1pct-fpr"].n == 100


def test_behind_sums_a_member_is_what_any_client_holds():
    single = case(shift=3.0, attack="membership-aggregate", columns=1)
    owners = single.truth.owners.copy()
    held = np.flatnonzero(owners != NOBODY)
    owners[held[:10]] = SEVERAL
    single = with_owners(single, owners, shared={int(row): ("0", "1") for row in held[:10]})
    found = judged(single, by=AggregateMembershipJudge)
    assert found["tpr-at-1pct-fpr"].n == 99, "what several hold somebody holds, but for one whose label is too scarce"
    assert found["tpr-at-1pct-fpr"].verdict == LEAK
    assert "tpr-at-1pct-fpr-elsewhere" not in found
    assert "worst-client" not in found
    assert "worst-client" not in judged(single, change_case(single, seed=1), by=AggregateMembershipJudge)


AGAINST_CLIENTS = "against other clients' examples"


@pytest.mark.parametrize("nobody", [0, 7])
def test_without_targets_of_nobody_non_members_are_other_clients_examples(nobody):
    """Perfect scores find all members; and each finding says what they were told from."""
    single = case(shift=50.0, n=300, nobody=nobody)
    found = judged(single)
    headline = found["tpr-at-1pct-fpr"]
    assert (headline.value, headline.verdict, found["auc"].value) == (1.0, LEAK, 1.0)
    assert {*found} == {"tpr-at-1pct-fpr", "tpr-at-0.1pct-fpr", "auc", "worst-client", "balanced-accuracy"}
    assert all(finding.label.endswith(AGAINST_CLIENTS) for finding in found.values())
    assert all(finding.setting == {"a": 1} | judge.NON_MEMBERS for finding in found.values())
    assert headline.reason.startswith("judged against other clients' examples, which is FedMIA's own setting")
    assert "cannot be told apart from its single examples: " in headline.reason


def test_runs_with_targets_of_nobody_are_judged_and_not_pooled_with_others():
    alone, other = judged(case(shift=3.0)), case(shift=3.0, n=100, nobody=0, seed=1)
    both = judged(case(shift=3.0), other)
    assert both["tpr-at-1pct-fpr"].n == alone["tpr-at-1pct-fpr"].n
    assert AGAINST_CLIENTS not in both["tpr-at-1pct-fpr"].label


@pytest.mark.parametrize("skewed", [False, True])
def test_each_target_has_one_part_and_a_client_s_non_members_have_its_members_labels(skewed):
    single = case(shift=0.0, n=300, nobody=0)
    if skewed:
        labels = single.scores.arrays["labels"]
        labels[single.owner == 0] = 0
        labels[single.owner == 1] = 1
    members, others = single.dealt
    assert single.among_clients
    assert len({*members.rows, *others.rows}) == 2 * len(members) == 2 * len(others)
    assert (members.columns == single.owner[members.rows]).all()
    assert (others.columns != single.owner[others.rows]).all()
    assert Counter(single.cells(members)) == Counter(single.cells(others))


def test_behind_sums_there_are_no_other_clients():
    single = case(shift=3.0, nobody=0, attack="membership-aggregate", columns=1)
    assert judged(single, by=AggregateMembershipJudge)["tpr-at-1pct-fpr"].verdict == NOT_APPLICABLE


def pairs_at_most(sizes):
    """Slow and obvious: take one of each of the two owners with most left, until but one owner has any."""
    sizes, pairs = sorted(sizes), 0
    while len(sizes) > 1 and sizes[-2]:
        sizes[-1] -= 1
        sizes[-2] -= 1
        sizes, pairs = sorted(sizes), pairs + 1
    return pairs


@pytest.mark.parametrize("sizes", [[5], [1, 1], [9, 2, 3], [3, 3, 3], [4, 4, 1], [2, 7], [1, 1, 1, 1, 1], [6, 3, 3]])
def test_as_many_pairs_of_different_owners_as_can_be(sizes):
    draw = np.random.default_rng(3)
    owners = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
    first, second = pair_owners(owners, draw)
    assert len(first) == pairs_at_most(sizes)
    assert len({*first, *second}) == 2 * len(first)
    assert (owners[first] != owners[second]).all()


def all_exchanges(single):
    """The area's p by all exchanges, one after the other: who of a client's pairs is its own."""
    members, others = single.dealt
    scores = single.scores_of("fedmia")
    cells = {}
    for flag, pairs in ((True, members), (False, others)):
        for cell, score in zip(single.cells(pairs), pairs.of(scores), strict=True):
            cells.setdefault(cell, []).append((score, flag))
    ways = []
    for cell in cells.values():
        size = sum(flag for _, flag in cell)
        ways.append([{*chosen} for chosen in combinations(range(len(cell)), size)])
    values, as_it_is = [], None
    for chosen in product(*ways):
        inside, outside, same = [], [], True
        for places, cell in zip(chosen, cells.values(), strict=True):
            for place, (score, flag) in enumerate(cell):
                (inside if place in places else outside).append(score)
                same &= flag == (place in places)
        values.append(sum((a > b) + (a == b) / 2 for a in inside for b in outside))
        as_it_is = values[-1] if same else as_it_is
    return np.mean([value >= as_it_is - 1e-9 for value in values])


def test_p_is_that_of_all_exchanges_of_owners():
    single = case(shift=0.8, n=18, nobody=0, seed=2)
    labels = single.scores.arrays["labels"]
    labels[:] = 0
    found = judged(single)["auc"]
    assert found.n == 9
    assert found.p == pytest.approx(all_exchanges(single), abs=4 * np.sqrt(0.25 / DRAWS))


AMONG_CLIENTS = {
    "each client against the others": calibration.World(others=0, relative=True),
    "labels of each client, 3 clients": calibration.World(
        clients=3, others=0, relative=True, by_label=2.0, unequal=True
    ),
}


@pytest.mark.parametrize("name", AMONG_CLIENTS)
def test_who_learned_nothing_is_seldom_a_leak_against_other_clients_examples(name):
    """The declared error is 5 %: of 100 runs more than 13 have p ≤ 0.05 once in 1,000 times."""
    low = Counter()
    with calibration.quick():
        for seed in range(100):
            single = AMONG_CLIENTS[name].case(seed, np.random.default_rng((5, seed)))
            assert single.among_clients
            found = MembershipJudge([single], setting={}, provenance={})
            tests = (found._exchanges.tpr_at(0.01), found._exchanges.area, found._exchanges.best_balanced_accuracy)
            for number, statistic in enumerate(tests):
                low[number] += found._exchanges.significance(statistic, "").p <= 0.05
    assert binom.sf(13, 100, 0.05) < 0.001
    assert max(low.values()) <= 13


@pytest.mark.slow
def test_a_client_s_look_alone_is_no_leak_against_other_clients_examples():
    """Examples that show whose data they are must not make a leak, though scores tell whose they are."""
    single = case(shift=1.5, n=400, nobody=0)
    assert judged(single)["tpr-at-1pct-fpr"].verdict == LEAK
    single.knowledge.targets.x[np.arange(400), 0] += 10.0 * single.owner
    found = judged(single)
    assert found["auc"].verdict == found["tpr-at-1pct-fpr"].verdict == NO_EVIDENCE
    assert found["auc"].baselines["examples alone, without any model"] > 0.95


def test_what_can_be_reached_against_other_clients_examples():
    single = case(shift=0.0, n=100, nobody=0)
    reach = MembershipJudge.reach([Prepared(single.truth, single.knowledge)], 0.05)
    assert reach.least <= 0.001
    assert reach.size.startswith(f"{len(single.dealt[0])} targets")
    assert reach.size.endswith("that other clients hold")
    behind_sums = AggregateMembershipJudge.reach([Prepared(single.truth, single.knowledge)], 0.05)
    assert behind_sums.least == 1.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Some seeds of a federation whose clients memorise random labels."""
    folder = tmp_path_factory.mktemp("run")
    for seed in SEEDS:
        write_run(folder, seed=seed, part=f"seed-{seed}", epochs=20)
    attack_all(folder, "membership")
    return folder


def attack_all(folder, name):
    for part in find_parts(folder):
        known = read_knowledge(part.knowledge)
        ATTACKS[name].run(Record(part.record), known, device="cpu").save(part.scores(name))


def test_a_run_folder_is_attacked_and_judged(run):
    findings = {finding.metric: finding for finding in audit_folder(run, device="cpu")}
    headline = findings["tpr-at-1pct-fpr"]
    assert headline.verdict == LEAK
    assert headline.value > 0.4
    assert headline.seeds == SEEDS
    assert headline.series["per_round"]["rounds"] == [1, 2]
    assert findings["auc"].verdict == LEAK


def test_owners_in_another_order_are_no_leak(run):
    """The attack is as good as before, and its targets are given to clients by lot."""
    draw = np.random.default_rng(0)
    parts = find_parts(run)
    rates = []
    for trial in range(40):
        part = parts[trial % len(parts)]
        truth, scores = read_truth(part.truth), Scores.load(part.scores("membership"))
        shuffled = replace(truth, owners=draw.permutation(truth.owners))
        single = make_case(MembershipCase, 0, scores, shuffled, Record(part.record), read_knowledge(part.knowledge))
        members, others = single.dealt
        values = single.scores_of("fedmia")
        rates.append(tpr_at(members.of(values), others.of(values), 0.01).value)
        if trial < 2:
            found = judged(single)
            for metric in ("tpr-at-1pct-fpr", "tpr-at-0.1pct-fpr", "auc", "balanced-accuracy", "epsilon-implied"):
                assert found[metric].verdict == NO_EVIDENCE, metric
    assert np.mean(rates) == pytest.approx(0.01, abs=0.01)


@pytest.mark.parametrize(("write", "name"), [(write_run, "membership"), (write_sums_run, "membership-aggregate")])
def test_clients_that_learn_nothing_are_no_leak(tmp_path, write, name):
    folder = write(tmp_path, epochs=0)
    attack_all(folder, name)
    findings = audit_folder(folder, device="cpu")
    assert {finding.verdict for finding in findings} == {NO_EVIDENCE}
    auc = next(finding for finding in findings if finding.metric == "auc")
    assert auc.value == pytest.approx(0.5, abs=0.1)
    assert auc.low <= 0.5 <= auc.high
