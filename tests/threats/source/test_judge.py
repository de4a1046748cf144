from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedattack.attacks import Scores
from fedattack.audit.truth import NOBODY, SEVERAL, Truth
from fedattack.base.errors import DataError
from fedattack.threats.source.case import SourceCase, credits_of
from fedattack.threats.source.confidence import fit_gamma
from fedattack.threats.source.judge import SourceJudge
from fedattack.threats.source.sia import combine_likelihoods, combine_rounds
from tests.threats.source import likely
from tests.worlds.cases import change_case, make_case

K = 5
CLASSES = 2


def source_case(seed: int, scores: Scores, truth: Truth) -> SourceCase:
    return make_case(SourceCase, seed, scores, truth, SimpleNamespace(view="individual"))


def make_scores(losses, labels) -> Scores:
    """Make scores of losses (rounds, targets, clients), of clients with the same prior."""
    return likely.make_scores(losses, labels, [f"node{n}" for n in range(losses.shape[2])])


def truth_of(counts, owners, **changes) -> Truth:
    """Say who holds what, of counts (clients, classes)."""
    clients, classes = counts.shape
    known = {
        "clients": tuple(map(str, range(clients))),
        "classes": tuple(map(str, range(classes))),
        "counts": counts,
        "owners": np.array(owners),
        "evaluation": (np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)),
        "nodes": {f"node{index}": str(index) for index in range(clients)},
        "targets": "",
    }
    return Truth(**known | changes)


def with_losses(single: SourceCase, losses, **arrays) -> SourceCase:
    """Return the same case with other losses, and other arrays of its scores."""
    arrays = {**single.scores.arrays, "losses": losses, "combined": combine_rounds(losses), **arrays}
    return change_case(single, scores=replace(single.scores, arrays=arrays))


def case(
    *, hits: float, n: int = 200, null: int = 200, seed: int = 0, rounds: int = 3, sizes=(40,) * K, nodes=None
) -> SourceCase:
    """Scores that name the true owner of a share ``hits`` of the members, and a random client of all others."""
    draw = np.random.default_rng(100 + seed)
    owner = np.concatenate([np.arange(n) % K, np.full(null, -1)])
    guess = draw.integers(K, size=n + null)
    right = np.arange(n + null) < round(hits * n)
    named = np.where(right & (owner >= 0), owner, guess)
    losses = np.stack([np.where(np.arange(K) == named[:, None], 0.1, 1.0 + draw.random((n + null, K)))] * rounds)
    truth = truth_of(
        np.array([[size // 2, size - size // 2] for size in sizes]),
        [str(index) if index >= 0 else "" for index in owner],
        **({} if nodes is None else {"nodes": nodes}),
    )
    return source_case(seed, make_scores(losses, draw.integers(CLASSES, size=n + null)), truth)


def judged(*cases: SourceCase) -> dict:
    return {finding.metric: finding for finding in SourceJudge(cases, setting={"a": 1}, provenance={"b": 2}).findings()}


def test_ties_are_shared_and_absent_clients_stay_absent():
    scores = np.array([[1.0, 1.0, 0.0], [0.0, np.nan, 2.0], [-np.inf, np.nan, -np.inf], [3.0, 3.0, 3.0]])
    expected = [[0.5, 0.5, 0], [0, np.nan, 1], [0.5, np.nan, 0.5], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(credits_of(scores), expected)


def test_a_known_success_rate_is_reported():
    found = judged(case(hits=0.5))["asr"]
    # Half are hit by design; of the other half, a random client is right for one in K.
    assert found.value == pytest.approx(0.5 + 0.5 / K, abs=0.06)
    assert found.low < found.value < found.high
    assert found.n == 200
    assert found.chance == pytest.approx(1 / K)
    assert found.null["value"] == pytest.approx(1 / K, abs=0.06)
    assert found.null["n"] == 200
    assert found.verdict == "leak"
    assert found.headline
    assert not found.selected_after_the_fact


def test_random_scores_are_no_leak():
    found = judged(case(hits=0.0))
    for metric in ("asr", "asr-last-round", "asr-best-round", "asr-worst-client"):
        assert found[metric].verdict == "no evidence", metric


def test_the_best_round_and_the_worst_client_are_marked_and_corrected():
    found = judged(case(hits=0.5, rounds=7))
    best, last = found["asr-best-round"], found["asr-last-round"]
    assert best.selected_after_the_fact
    assert best.comparisons == 7
    assert best.value == last.value  # the same in every round: there is nothing to choose
    assert found["asr-worst-client"].selected_after_the_fact
    assert found["asr-worst-client"].comparisons == K


@pytest.mark.slow
def test_seeds_are_pooled_and_their_spread_counts():
    found = judged(case(hits=0.3, seed=0), case(hits=0.6, seed=1), case(hits=0.9, seed=2))["asr"]
    assert found.seeds == [0, 1, 2]
    assert found.n == 600
    assert found.seed_sd == pytest.approx(0.24, abs=0.04)
    assert found.high - found.low > 0.4  # three seeds that differ say little, however many targets they have


def by_labels(seen: int, seed: int) -> SourceCase:
    """Clients that hold labels unequally, and an attack that names the likeliest holder of a label and no more.

    Only the first ``seen`` of ten clients were ever sampled.
    """
    draw = np.random.default_rng(seed)
    clients, classes, each = 10, 10, 100
    shares = draw.dirichlet(np.full(classes, 0.3), size=clients)
    counts = np.array([draw.multinomial(400, share) for share in shares])
    member_labels = np.concatenate([draw.choice(classes, size=each, p=row / row.sum()) for row in counts])
    null_labels = draw.choice(classes, size=clients * each, p=counts.sum(axis=0) / counts.sum())
    labels = np.concatenate([member_labels, null_labels])
    losses = 1.0 - counts[:, labels].T / 400
    losses[:, seen:] = np.nan
    owners = [str(client) for client in range(clients) for _ in range(each)] + [""] * clients * each
    return source_case(seed, make_scores(losses[None], labels), truth_of(counts, owners))


@pytest.mark.parametrize("seen", [10, 5, 3])
def test_success_by_labels_alone_is_told_from_memorised_records(seen):
    """Also when some clients were never sampled: their records are on neither side of the comparison."""
    found = judged(*[by_labels(seen, seed) for seed in range(4)])
    assert found["asr"].verdict == "leak"
    beyond = found["asr-beyond-labels"]
    assert beyond.null["value"] == pytest.approx(beyond.value, abs=0.04)
    assert beyond.verdict == "no evidence"


def test_a_restarted_client_does_not_compete_with_itself():
    """A SuperNode that comes back has another id: its two nodes are one client."""
    single = case(hits=0.8, rounds=2)
    losses = single.scores.arrays["losses"]
    split = np.concatenate([losses, np.full((*losses.shape[:2], 1), np.nan)], axis=-1)
    split[1, :, K], split[1, :, 0] = split[1, :, 0], np.nan
    scores = likely.make_scores(split, single.scores.arrays["labels"], [*single.found.clients, "node0-again"])
    truth = Truth(**{**vars(single.truth), "nodes": {**single.truth.nodes, "node0-again": "0"}})
    again = judged(source_case(0, scores, truth))["asr"]
    assert again.value == judged(single)["asr"].value
    assert again.chance == pytest.approx(1 / K)


def test_gamma_is_the_maximum_likelihood_temperature():
    draw = np.random.default_rng(1)
    scores = draw.normal(size=(4000, K)) * 3
    belief = np.exp(scores / 2.0)
    belief /= belief.sum(axis=1, keepdims=True)
    owner = np.array([draw.choice(K, p=row) for row in belief])
    assert fit_gamma(scores, np.zeros(K), owner) == pytest.approx(2.0, rel=0.1)


def test_calibration_is_measured_on_targets_that_gamma_was_not_fitted_on():
    series = judged(case(hits=0.5, n=1000))["asr"].series
    assert series["reliability"]["ece"] < 0.1
    assert sum(series["reliability"]["count"]) == 1000
    assert len(series["most_exposed"]) == 10
    values = [entry["value"] for entry in series["per_client"]]
    assert values == sorted(values, reverse=True)


def test_a_single_target_is_judged_without_calibration():
    """There is no other one on which γ could be fitted."""
    found = judged(case(hits=1.0, n=1, null=20))["asr"]
    assert (found.value, found.n) == (1, 1)
    assert not found.series.get("reliability")


def test_owners_that_were_never_sampled_are_left_out_rather_than_missed():
    whole = case(hits=1.0)
    losses = whole.scores.arrays["losses"].copy()
    losses[:, :, 0] = np.nan
    found = judged(with_losses(whole, losses))["asr"]
    assert found.n == 160
    assert found.value == 1.0
    assert found.chance == pytest.approx(1 / (K - 1))


def test_a_node_without_truth_is_refused_by_name():
    with pytest.raises(DataError, match="node node3 is in the record but not in the truth"):
        judged(case(hits=0.5, nodes={f"node{index}": str(index) for index in range(3)}))


def test_the_order_of_targets_and_clients_does_not_matter():
    """A pipeline that leaks the order, say by ties going to the first, would change its value here."""
    original = case(hits=0.4)
    order = np.random.default_rng(3).permutation(400)
    arrays = original.scores.arrays
    shuffled = with_losses(original, arrays["losses"][:, order], labels=arrays["labels"][order])
    shuffled = change_case(shuffled, truth=replace(original.truth, owners=original.truth.owners[order]))
    assert judged(shuffled)["asr"].value == judged(original)["asr"].value


def partly_seen(seed: int, *, sampled: int = 2, rounds: int = 4, broken: bool = False) -> SourceCase:
    """Random losses of few values, so that many tie, of clients of which few are sampled in a round."""
    draw = np.random.default_rng((seed, 5))
    each, null = 6, 40
    owners = [str(client) for client in range(K) for _ in range(each)] + [NOBODY] * null
    order = draw.permutation(len(owners))
    losses = draw.choice([0.0, 0.5, 1.0, np.inf], p=[0.3, 0.3, 0.3, 0.1], size=(rounds, len(owners), K))
    for single in losses:
        single[:, draw.permutation(K)[sampled:]] = np.nan
    if broken:
        losses[draw.random(losses.shape) < 0.2] = np.nan
    truth = truth_of(np.arange(2, 2 * K + 2).reshape(K, 2), np.array(owners)[order])
    return source_case(seed, make_scores(losses, draw.integers(CLASSES, size=len(owners))), truth)


def by_hand(cases, scores_of) -> dict:
    """Success, chance, size prior and n, one target at a time; ``scores_of`` gives each case's (targets, clients)."""
    hits, chances, largest = [], [], []
    for single in cases:
        scores = scores_of(single)
        there = [client for client in range(K) if not all(np.isnan(row[client]) for row in scores)]
        sizes = {client: int(single.truth.counts[client].sum()) for client in there}
        for row, name in zip(scores, single.truth.owners.tolist(), strict=True):
            seen = [client for client in range(K) if not np.isnan(row[client])]
            if name == NOBODY or int(name) not in seen:
                continue
            best = max(row[client] for client in seen)
            winners = [client for client in seen if row[client] == best]
            hits.append(1 / len(winners) if int(name) in winners else 0.0)
            chances.append(1 / len(seen))
            largest.append(float(int(name) == max(sizes, key=sizes.get)))
    return {"value": np.mean(hits), "chance": np.mean(chances), "largest": np.mean(largest), "n": len(hits)}


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("rounds", [1, 4])
def test_clients_that_were_not_sampled_are_neither_right_nor_wrong(broken, rounds):
    """With ``broken``, clients give no number for some targets: they are not seen there, and nowhere else."""
    cases = [partly_seen(seed, broken=broken, rounds=rounds) for seed in (0, 1)]
    found = judged(*cases)
    ways = {
        "asr": lambda single: combine_rounds(single.losses),
        "asr-likelihood": lambda single: combine_likelihoods(single.losses),
        "asr-last-round": lambda single: -[*single.losses][-1],
    }
    for metric, scores_of in ways.items():
        expected = by_hand(cases, scores_of)
        got = found[metric]
        assert got.n == expected["n"], metric
        assert got.value == pytest.approx(expected["value"]), metric
        assert got.chance == pytest.approx(expected["chance"]), metric
        assert got.baselines["always naming the largest client"] == pytest.approx(expected["largest"]), metric
    assert 0 < found["asr"].n < 2 * 6 * K or rounds == 4
    series = found["asr"].series
    for number, got in zip(series["per_round"]["rounds"], series["per_round"]["value"], strict=True):
        expected = by_hand(cases, lambda single, number=number: -[*single.losses][number - 1])
        assert got == pytest.approx(expected["value"])
        assert series["per_round"]["chance"][number - 1] == pytest.approx(expected["chance"])
    reliability = series["reliability"]
    assert sum(reliability["count"]) == found["asr"].n
    right = np.dot(reliability["accuracy"], reliability["count"]) / found["asr"].n
    assert right == pytest.approx(found["asr"].value, abs=1e-9)
    assert [entry["n"] for entry in series["combining"]][-2:] == [found["asr"].n, found["asr-likelihood"].n]
    per_client = {entry["client"]: entry for entry in series["per_client"]}
    assert sum(entry["n"] for entry in per_client.values()) == found["asr"].n


def shared_by(single: SourceCase, shared: dict) -> SourceCase:
    owners = single.truth.owners.copy()
    owners[list(shared)] = SEVERAL
    return change_case(single, truth=replace(single.truth, owners=owners, shared=shared))


def test_targets_of_several_owners_are_judged_apart():
    """Every target is named rightly; some are said to be held by a second client, and some by two wrong ones."""
    single = case(hits=1.0, n=200, null=300)
    # With all others in turn: no exchange of clients does as well.
    right = {row: (str(row % K), str((row + 1 + row // 10) % K)) for row in range(0, 40, 2)}
    wrong = {row: (str((row + 1) % K), str((row + 2 + row // 10) % K)) for row in range(1, 20, 2)}
    found = judged(shared_by(single, right | wrong))
    assert found["asr"].n == 170
    assert found["asr"].value == 1.0
    assert found["asr"].null["n"] == 300
    assert "30 targets that several clients hold are judged separately" in found["asr"].reason
    assert found["asr"].series["targets"] == {
        "one client holds": 170,
        "nobody holds": 300,
        "several clients hold": 30,
        "a client holds that was never seen": 0,
    }
    apart = found["asr-shared"]
    assert apart.n == 30
    assert apart.value == pytest.approx(20 / 30)
    assert apart.chance == pytest.approx(2 / K)
    assert apart.null["value"] == pytest.approx(2 / K, abs=0.09)
    assert apart.null["n"] == 300
    assert apart.verdict == "leak"
    assert sum(entry["n"] for entry in found["asr"].series["per_client"]) == 170


def test_naming_any_of_several_owners_at_random_is_no_leak():
    shared = {row: (str(row % K), str((row + 2) % K), str((row + 3) % K)) for row in range(150)}
    apart = judged(*[shared_by(case(hits=0.0, n=200, seed=seed), shared) for seed in range(3)])["asr-shared"]
    assert apart.value == pytest.approx(3 / K, abs=0.08)
    assert apart.chance == pytest.approx(3 / K)
    assert apart.verdict == "no evidence"


def test_ties_among_the_owners_of_a_target_count_as_naming_one():
    single = case(hits=1.0, n=40)
    single.scores.arrays["losses"][:, :10] = 0.3  # all clients tie
    tied = with_losses(single, single.scores.arrays["losses"])
    found = judged(shared_by(tied, dict.fromkeys(range(10), ("0", "3"))))
    assert found["asr-shared"].value == pytest.approx(2 / K)


def test_of_several_owners_those_that_were_seen_count():
    single = case(hits=1.0, n=40)
    losses = single.scores.arrays["losses"].copy()
    losses[:, :, [0, 1]] = np.nan
    found = judged(shared_by(with_losses(single, losses), {2: ("2", "0"), 3: ("3", "1"), 5: ("0", "1")}))
    assert found["asr-shared"].n == 2
    assert found["asr-shared"].chance == pytest.approx(1 / (K - 2))
    assert found["asr-shared"].value == 1.0


def test_a_seed_in_which_no_owner_was_seen_says_nothing():
    whole, empty = case(hits=1.0, seed=0), case(hits=1.0, seed=1)
    losses = empty.scores.arrays["losses"].copy()
    losses[:, :, :4] = np.nan
    owners = np.where(empty.truth.owners == "4", "3", empty.truth.owners)
    found = judged(whole, change_case(with_losses(empty, losses), truth=replace(empty.truth, owners=owners)))
    assert found["asr"].n == 200
    assert found["asr"].series["targets"]["a client holds that was never seen"] == 200


def test_a_truth_about_another_number_of_targets_is_refused():
    single = case(hits=1.0)
    with pytest.raises(DataError, match="owners of 399 targets, the scores are of 400"):
        change_case(single, truth=replace(single.truth, owners=single.truth.owners[:-1]))


def test_a_prior_that_changes_who_is_named_is_judged_by_whom_it_names():
    """With hopeless scores and a sure prior the posterior is right as often as its favourite owns the target."""
    single = case(hits=0.0)
    prior = np.log(np.array([0.96, 0.01, 0.01, 0.01, 0.01]))
    flat = np.full_like(single.scores.arrays["losses"], 0.7)
    reliability = judged(with_losses(single, flat, log_prior=prior))["asr"].series["reliability"]
    assert np.dot(reliability["accuracy"], reliability["count"]) / sum(reliability["count"]) == pytest.approx(1 / K)
    assert reliability["accuracy"] == [pytest.approx(1 / K)]


def test_the_surest_answers_are_listed_right_or_wrong():
    single = case(hits=0.5)
    listed = judged(single)["asr"].series["most_exposed"]
    assert len(listed) == 10
    assert [answer["posterior"] for answer in listed] == sorted([a["posterior"] for a in listed], reverse=True)
    for answer in listed:
        assert answer["right"] == (answer["client"] == single.truth.owners[answer["record"]])
    wrong = judged(case(hits=0.0))["asr"].series["most_exposed"]
    assert not all(answer["right"] for answer in wrong)


@pytest.mark.slow
def test_the_success_is_taken_apart_into_what_each_null_adds():
    """Members are named in every second case, and others at random, so that nothing but examples is left."""
    finding = judged(case(hits=0.5, n=1000, null=1000))["asr"]
    explained = finding.series["explained"]
    points = {part["part"]: part["value"] for part in explained["parts"]}
    assert [*points] == ["guessing", "labels", "site or examples"]
    assert sum(points.values()) == pytest.approx(finding.value)
    assert points["guessing"] == pytest.approx(1 / K)
    assert points["labels"] == pytest.approx(0.0, abs=0.03)
    assert "cannot be told apart without held-out examples of the clients" in finding.reason


def test_of_held_out_examples_those_of_the_same_client_and_label_count():
    """By hand: one label, client 0 has two targets and two held-out examples, client 1 has a target and none."""
    owners = np.array(["0", "0", "1", "", ""])
    named = [0, 1, 1, 0, 1]
    losses = np.where(np.arange(2) == np.array(named)[:, None], 0.1, 1.0)[None]
    truth = truth_of(np.array([[2], [1]]), owners, origins=np.array(["", "", "", "0", "0"]))
    found = judged(source_case(0, make_scores(losses, np.zeros(5, dtype=np.int64)), truth))
    beyond = found["asr-beyond-site"]
    assert (beyond.value, beyond.n) == (0.5, 2)
    assert (beyond.null["value"], beyond.null["n"]) == (0.5, 2)
    assert "2 targets have such a counterpart" in beyond.reason
    assert beyond.verdict == "too few to tell"
    explained = found["asr"].series["explained"]
    assert explained["n"] == 2
    assert [(part["part"], part["value"]) for part in explained["parts"]] == [
        ("guessing", 0.5),
        ("labels", 0.0),
        ("site", 0.0),
        ("examples", 0.0),
    ]
    assert "asr-beyond-site" not in judged(case(hits=0.5))


def test_targets_of_a_regression_are_alike_by_tenths_of_their_labels():
    single = case(hits=0.0)
    regression = with_losses(single, single.scores.arrays["losses"], labels=np.linspace(-1, 1, 400))
    assert np.bincount(regression.cells).tolist() == [40] * 10
    found = judged(regression)
    assert found["asr-worst-client"].verdict == "no evidence"
    assert "asr-beyond-labels" not in found
