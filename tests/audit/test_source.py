import numpy as np
import pytest

from fedattack.attacks import Scores
from fedattack.attacks.sia import combine_rounds
from fedattack.audit.source import SourceCase, credits_of, fit_gamma, judge_source
from fedattack.audit.truth import Truth
from fedattack.errors import DataError

K = 5
CLASSES = 2


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
    scores = Scores(
        "sia",
        {
            "losses": losses,
            "combined": combine_rounds(losses),
            "log_prior": np.log(np.full(K, 1 / K)),
            "labels": draw.integers(CLASSES, size=n + null),
        },
        {"clients": [f"node{index}" for index in range(K)], "rounds": list(range(1, rounds + 1))},
    )
    truth = Truth(
        clients=tuple(map(str, range(K))),
        classes=("a", "b"),
        counts=np.array([[size // 2, size - size // 2] for size in sizes]),
        owners=np.array([str(index) if index >= 0 else "" for index in owner]),
        evaluation=(np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)),
        nodes={f"node{index}": str(index) for index in range(K)} if nodes is None else nodes,
        targets="",
    )
    return SourceCase(seed, scores, truth)


def judged(*cases: SourceCase) -> dict:
    return {finding.metric: finding for finding in judge_source(cases, setting={"a": 1}, provenance={"b": 2})}


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


def test_false_alarms_stay_below_the_level():
    alarms = sum(judged(case(hits=0.0, seed=seed))["asr"].verdict == "leak" for seed in range(60))
    assert alarms <= 3


def test_the_best_round_and_the_worst_client_are_marked_and_corrected():
    found = judged(case(hits=0.5, rounds=7))
    best, last = found["asr-best-round"], found["asr-last-round"]
    assert best.selected_after_the_fact
    assert best.comparisons == 7
    assert best.low < last.low  # the same rate in every round, a wider interval
    assert found["asr-worst-client"].selected_after_the_fact
    assert found["asr-worst-client"].comparisons == K


def test_seeds_are_pooled_and_their_spread_counts():
    found = judged(case(hits=0.3, seed=0), case(hits=0.6, seed=1), case(hits=0.9, seed=2))["asr"]
    assert found.seeds == [0, 1, 2]
    assert found.n == 600
    assert found.seed_sd == pytest.approx(0.24, abs=0.04)
    assert found.high - found.low > 0.4  # three seeds that differ say little, however many targets they have


def test_the_size_prior_is_the_share_of_the_largest_client():
    found = judged(case(hits=0.5, sizes=(40, 40, 200, 40, 40)))["asr"]
    assert found.baselines == {"always naming the largest client": pytest.approx(1 / K)}


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
    arrays = {
        "losses": losses[None],
        "combined": combine_rounds(losses[None]),
        "log_prior": np.log(np.full(clients, 1 / clients)),
        "labels": labels,
    }
    truth = Truth(
        clients=tuple(map(str, range(clients))),
        classes=tuple(map(str, range(classes))),
        counts=counts,
        owners=np.array([str(client) for client in range(clients) for _ in range(each)] + [""] * clients * each),
        evaluation=(np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)),
        nodes={f"node{index}": str(index) for index in range(clients)},
        targets="",
    )
    facts = {"clients": [f"node{index}" for index in range(clients)], "rounds": [1]}
    return SourceCase(seed, Scores("sia", arrays, facts), truth)


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
    arrays = {
        **single.scores.arrays,
        "losses": split,
        "combined": combine_rounds(split),
        "log_prior": np.log(np.full(K + 1, 1 / (K + 1))),
    }
    facts = {**single.scores.facts, "clients": [*single.scores.facts["clients"], "node0-again"]}
    truth = Truth(**{**vars(single.truth), "nodes": {**single.truth.nodes, "node0-again": "0"}})
    again = judged(SourceCase(0, Scores("sia", arrays, facts), truth))["asr"]
    assert again.value == judged(single)["asr"].value
    assert again.chance == pytest.approx(1 / K)


def test_memorised_records_are_a_leak_beyond_labels():
    assert judged(case(hits=0.8))["asr-beyond-labels"].verdict == "leak"


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


def test_owners_that_were_never_sampled_are_left_out_rather_than_missed():
    whole = case(hits=1.0)
    losses = whole.scores.arrays["losses"].copy()
    losses[:, :, 0] = np.nan
    arrays = {**whole.scores.arrays, "losses": losses, "combined": combine_rounds(losses)}
    found = judged(SourceCase(0, Scores("sia", arrays, whole.scores.facts), whole.truth))["asr"]
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
    scores = Scores(
        "sia",
        {
            **original.scores.arrays,
            "losses": original.scores.arrays["losses"][:, order],
            "combined": original.scores.arrays["combined"][order],
            "labels": original.scores.arrays["labels"][order],
        },
        original.scores.facts,
    )
    truth = Truth(**{**vars(original.truth), "owners": original.truth.owners[order]})
    shuffled = SourceCase(0, scores, truth)
    assert judged(shuffled)["asr"].value == judged(original)["asr"].value
