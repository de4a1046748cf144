import itertools

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from sklearn.linear_model import LinearRegression, Ridge

from fedattack.threats.property.disaggregation import (
    RIDGE,
    Densities,
    Joint,
    baseline_votes,
    least_squares,
    overlap,
    posterior,
    weighted_ridge,
)


def problem(seed, *, rounds, clients, sampled, positive, spread=(0.7, 1.6), shift=2.0):
    """Draw weights, sums and densities as PROLIN's model has them; returns A, G, v, densities and the truth."""
    draw = np.random.default_rng(seed)
    chosen = draw.random((rounds, clients)).argpartition(sampled - 1, axis=1)[:, :sampled]
    A = np.zeros((rounds, clients))
    np.put_along_axis(A, chosen, draw.uniform(0.4, 1.8, (rounds, sampled)), axis=1)
    A[np.arange(clients) % rounds, np.arange(clients)] = 1.0  # nobody is never there
    truth = np.zeros(clients, dtype=bool)
    truth[draw.choice(clients, positive, replace=False)] = True

    def table(low, high):
        return draw.uniform(low, high, (rounds, clients))

    densities = Densities(
        plus_mean=table(0.6 * shift, 1.2 * shift),
        plus_sd=table(*spread),
        minus_mean=-table(0.6 * shift, 1.2 * shift),
        minus_sd=table(*spread),
    )
    X = np.where(
        truth,
        draw.normal(densities.plus_mean, densities.plus_sd),
        draw.normal(densities.minus_mean, densities.minus_sd),
    )
    return A, (A * X).sum(axis=1), draw.uniform(0, 1, rounds), densities, truth


def joint_of(seed, **sizes):
    A, G, v, densities, truth = problem(seed, **sizes)
    return Joint(A, G, v, densities, weighted_ridge(A, G, v)), truth


def corners(clients):
    return [np.array(corner) for corner in itertools.product((False, True), repeat=clients)]


def test_weighted_ridge_is_scikit_learns():
    A, G, v, _, _ = problem(0, rounds=30, clients=8, sampled=3, positive=2)
    expected = Ridge(alpha=RIDGE, fit_intercept=False, solver="cholesky").fit(A, G, sample_weight=v).coef_
    np.testing.assert_allclose(weighted_ridge(A, G, v), expected, rtol=1e-9)
    assert RIDGE == 5.0


def test_rounds_of_no_weight_do_not_count():
    A, G, v, _, _ = problem(1, rounds=20, clients=6, sampled=3, positive=2)
    v[::2] = 0
    np.testing.assert_allclose(weighted_ridge(A, G, v), weighted_ridge(A[1::2], G[1::2], v[1::2]), rtol=1e-9)


def test_least_squares_is_scikit_learns_and_the_shortest_where_there_is_a_choice():
    A, G, _, _, _ = problem(2, rounds=30, clients=8, sampled=3, positive=2)
    np.testing.assert_allclose(least_squares(A, G), LinearRegression(fit_intercept=False).fit(A, G).coef_, rtol=1e-9)
    few, sums = A[:4], G[:4]
    np.testing.assert_allclose(least_squares(few, sums), np.linalg.pinv(few) @ sums, atol=1e-12)
    np.testing.assert_allclose(few @ least_squares(few, sums), sums)


@pytest.mark.parametrize(
    ("densities", "expected"),
    [
        ((0.0, 1.0, 0.0, 1.0), 1.0),
        ((1.0, 1.0, -1.0, 1.0), 2 * stats.norm.cdf(-1)),
        ((2.0, 2.0, -2.0, 2.0), 2 * stats.norm.cdf(-1)),
        ((50.0, 1.0, -50.0, 1.0), 0.0),
        ((1.0, 0.0, 1.0, 2.0), 1.0),
        ((1.0, 0.0, 2.0, 0.0), 0.0),
    ],
)
def test_overlaps_known_in_closed_form(densities, expected):
    assert overlap(*densities) == pytest.approx(expected, abs=1e-12)


def test_overlap_of_unequal_spreads_is_the_integral_of_the_lower_density():
    plus, minus = stats.norm(0.7, 0.4), stats.norm(-0.2, 1.5)
    grid = np.linspace(-15, 15, 300_001)
    expected = np.trapezoid(np.minimum(plus.pdf(grid), minus.pdf(grid)), grid)
    assert overlap(0.7, 0.4, -0.2, 1.5) == pytest.approx(expected, abs=1e-6)


def test_baseline_is_every_detectors_vote_on_the_reconstructed_updates():
    draw = np.random.default_rng(4)
    A, _, _, _, _ = problem(4, rounds=12, clients=5, sampled=2, positive=1)
    sums, weights, offsets = draw.normal(size=(12, 40)), draw.normal(size=(12, 40)), draw.normal(size=12)
    updates = np.linalg.pinv(A) @ sums
    naive = [np.mean([weights[r] @ update + offsets[r] > 0 for r in range(12)]) for update in updates]
    votes = baseline_votes(A, weights @ sums.T, offsets)
    np.testing.assert_array_equal(votes, naive)
    assert 0 < votes.mean() < 1


def objective(joint, tau, X):
    """Section 5.2.4 at any τ and X, as the paper writes it."""
    there, d = joint.A > 0, joint.densities
    with np.errstate(divide="ignore"):
        plus = np.log(tau) + np.where(there, stats.norm.logpdf(X, d.plus_mean, d.plus_sd), 0).sum(axis=0)
        minus = np.log1p(-tau) + np.where(there, stats.norm.logpdf(X, d.minus_mean, d.minus_sd), 0).sum(axis=0)
    means = np.where(there, X, 0).sum(axis=0) / there.sum(axis=0)
    squares = (joint.v * (joint.G - (joint.A * X).sum(axis=1)) ** 2).sum()
    parts = [-np.logaddexp(plus, minus).sum(), ((means - joint.expected) ** 2).sum(), squares]
    return float(np.dot(joint.gammas, parts))


@pytest.mark.parametrize("gammas", [(1.0, 1.0, 1.0), (0.3, 2.0, 5.0)])
def test_the_least_objective_is_what_a_minimiser_finds(gammas):
    A, G, v, densities, truth = problem(8, rounds=12, clients=5, sampled=3, positive=2)
    v[:4] = 0
    joint = Joint(A, G, v, densities, weighted_ridge(A, G, v), gammas=gammas)
    for tau in (truth, ~truth, np.ones(5, dtype=bool)):
        there = A > 0

        def at(flat, tau=tau, there=there):
            X = np.zeros(A.shape)
            X[there] = flat
            return objective(joint, tau.astype(float), X)

        found = optimize.minimize(at, np.zeros(int(there.sum())), method="BFGS", options={"gtol": 1e-6})
        assert joint.least(tau) == pytest.approx(found.fun, abs=1e-6)


def test_the_solver_finds_the_best_corner():
    """Against all 2^8 corners; single changes and swaps are a local search, so nearly always is what is asked."""
    optimal = 0
    for seed in range(40):
        joint, _ = joint_of(100 + seed, rounds=10, clients=8, sampled=3, positive=2, shift=0.8)
        tau, value = joint.solve(joint.expected > 0)
        assert value == pytest.approx(joint.least(tau), rel=1e-9)
        best = min(joint.least(corner) for corner in corners(8))
        assert value >= best - 1e-9
        optimal += value <= best + 1e-9
    assert optimal >= 36


def adam(joint, start, *, steps, lr):
    """PROLIN's own way: Adam over X and τ together, τ projected to [0, 1]; returns the least objective met."""
    A, G, v, expected = (torch.as_tensor(value) for value in (joint.A, joint.G, joint.v, joint.expected))
    d = {name: torch.as_tensor(value) for name, value in vars(joint.densities).items()}
    there = A > 0
    share = there / there.sum(dim=0)
    tau = torch.as_tensor(start, dtype=torch.float64).requires_grad_()
    X = expected.expand(A.shape).clone().requires_grad_()
    optimiser = torch.optim.Adam([tau, X], lr=lr)
    best = np.inf

    def log_density(mean, sd):
        return torch.where(there, -0.5 * ((X - mean) / sd) ** 2 - sd.log() - 0.5 * np.log(2 * np.pi), 0).sum(dim=0)

    for step in range(steps):
        optimiser.zero_grad()
        plus = tau.clamp_min(1e-12).log() + log_density(d["plus_mean"], d["plus_sd"])
        minus = (1 - tau).clamp_min(1e-12).log() + log_density(d["minus_mean"], d["minus_sd"])
        loss = -torch.logaddexp(plus, minus).sum()
        loss = loss + (((share * X).sum(dim=0) - expected) ** 2).sum()
        loss = loss + (v * (G - (A * X).sum(dim=1)) ** 2).sum()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            tau.clamp_(0, 1)
        if step % 100 == 0 or step > steps - 10:
            # what is minimised keeps τ a hair's breadth off 0 and 1
            now = tau.detach().numpy()
            best = min(best, *(objective(joint, at, X.detach().numpy()) for at in (now, (now > 0.5).astype(float))))
    return best


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_the_solver_is_never_worse_than_adam_from_the_same_start(seed):
    joint, _ = joint_of(200 + seed, rounds=24, clients=8, sampled=3, positive=2, shift=0.8)
    start = joint.expected > 0
    _, value = joint.solve(start)
    for tau in (start.astype(float), np.full(8, 0.5)):
        assert value <= adam(joint, tau, steps=1_500, lr=0.02) + 1e-6


def test_gains_are_differences_of_the_objective_and_agree_with_the_decision():
    joint, _ = joint_of(10, rounds=24, clients=8, sampled=3, positive=2)
    tau, value = joint.solve(joint.expected > 0)
    gains = joint.gains(tau)
    np.testing.assert_array_equal(gains > 0, tau)
    for client in range(8):
        other = tau.copy()
        other[client] = ~tau[client]
        assert abs(gains[client]) == pytest.approx(joint.least(other) - value)


def enumerated(A, G, densities, share, weights=None, lasting=(0.0, 0.0)):
    """Sum over all 2^N assignments, each round's or all rounds' sums being normal."""
    rounds, clients = A.shape
    weights = np.ones(rounds) if weights is None else weights
    assignments = np.array(corners(clients))
    logs = []
    for tau in assignments:
        mean = np.where(tau, densities.plus_mean, densities.minus_mean)
        sd = np.where(tau, densities.plus_sd, densities.minus_sd)
        stays = np.where(tau, *lasting)
        alone = (A**2 * sd**2).sum(axis=1)
        common = A * sd * np.sqrt(stays)
        # counting a round twice halves its own noise and adds a constant for each repeat
        at = weights > 0
        covariance = common @ common.T + np.diag(alone / np.where(at, weights, 1.0))
        left = G - (A * mean).sum(axis=1)
        log = stats.multivariate_normal.logpdf(left[at], np.zeros(at.sum()), covariance[np.ix_(at, at)])
        log -= 0.5 * ((weights[at] - 1) * np.log(2 * np.pi * alone[at]) + np.log(weights[at])).sum()
        logs.append(log + tau.sum() * np.log(share) + (~tau).sum() * np.log(1 - share))
    chances = np.exp(np.array(logs) - np.max(logs))
    return chances @ assignments / chances.sum()


def sampled_posterior(A, G, densities, share, weights=None, lasting=(0.0, 0.0), seed=0, sweeps=1_500):
    rows = np.ones((1, len(A))) if weights is None else weights
    return posterior(
        A, G, densities, share, rows, lasting, sweeps=sweeps, burn_in=100, generator=np.random.default_rng(seed)
    )


@pytest.mark.parametrize("lasting", [(0.0, 0.0), (0.5, 0.5), (0.8, 0.2), (0.0, 0.9)])
@pytest.mark.slow
def test_the_posterior_is_that_of_enumeration(lasting):
    for seed in range(2):
        A, G, _, densities, _ = problem(300 + seed, rounds=10, clients=6, sampled=3, positive=2, shift=0.7)
        expected = enumerated(A, G, densities, 0.3, lasting=lasting)
        got = sampled_posterior(A, G, densities, 0.3, lasting=lasting)[0]
        np.testing.assert_allclose(got, expected, atol=0.05)
        assert ((expected > 0.05) & (expected < 0.95)).any(), "an instance that is decided anyway tests nothing"


def test_each_problem_has_its_own_rounds():
    """Prefixes, resampled rounds and repeated rounds side by side give what each gives alone."""
    A, G, _, densities, _ = problem(310, rounds=10, clients=6, sampled=3, positive=2, shift=0.7)
    rows = np.array([[1.0] * 5 + [0.0] * 5, [1.0] * 10, [2.0, 0.0] * 5, [0.0] * 10])
    got = sampled_posterior(A, G, densities, 0.3, rows)
    for weights, chances in zip(rows[:3], got, strict=False):
        np.testing.assert_allclose(chances, enumerated(A, G, densities, 0.3, weights), atol=0.04)
    np.testing.assert_allclose(got[3], 0.3, atol=1e-12)


def test_who_took_part_in_no_round_keeps_the_prior():
    A, G, _, densities, _ = problem(320, rounds=12, clients=6, sampled=3, positive=2)
    absent = np.zeros((len(A), 1))
    wider = Densities(*(np.concatenate([values, values[:, :1]], axis=1) for values in vars(densities).values()))
    got = sampled_posterior(np.concatenate([A, absent], axis=1), G, wider, 0.2, sweeps=300)[0]
    assert got[6] == pytest.approx(0.2)
    np.testing.assert_allclose(got[:6], enumerated(A, G, densities, 0.2), atol=0.1)


def test_features_that_last_make_the_posterior_less_sure():
    A, G, _, densities, truth = problem(330, rounds=40, clients=6, sampled=3, positive=2, shift=0.7)
    sure = sampled_posterior(A, G, densities, 0.3, sweeps=500)[0]
    less = sampled_posterior(A, G, densities, 0.3, lasting=(0.9, 0.9), sweeps=500)[0]
    assert sure[truth].min() > 0.9
    assert np.abs(less - 0.5).mean() < np.abs(sure - 0.5).mean()


def synthetic(seed, *, rounds, positive, mean, sd, clients=50, sampled=10):
    """Draw the issue's aggregates: equal clients, features ±mean of one spread; returns A, G, v, densities, truth."""
    draw = np.random.default_rng((seed, 77))
    A = np.zeros((rounds, clients))
    np.put_along_axis(A, draw.random(A.shape).argpartition(sampled - 1, axis=1)[:, :sampled], 1.0, axis=1)
    truth = np.zeros(clients, dtype=bool)
    truth[draw.choice(clients, positive, replace=False)] = True
    X = draw.normal(np.where(truth, mean, -mean), sd, size=A.shape)
    full = np.full(A.shape, float(mean))
    spread = np.full(A.shape, float(sd))
    v = np.full(rounds, 1 - overlap(mean, sd, -mean, sd))
    return A, (A * X).sum(axis=1), v, Densities(full, spread, -full, spread), truth


def decide(A, G, v, densities, sweeps=150):
    expected = weighted_ridge(A, G, v)
    joint = Joint(A, G, v, densities, expected)
    chances = posterior(A, G, densities, 0.1, np.ones((1, len(A))), sweeps=sweeps, generator=np.random.default_rng(0))
    return {
        "OLS": least_squares(A, G) > 0,
        "REG": expected > 0,
        "PROLIN": joint.solve(expected > 0)[0],
        "posterior": chances[0] > 0.5,
    }


def f1(named, truth):
    return 2 * (named & truth).sum() / (named.sum() + truth.sum())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_well_separated_features_are_taken_apart_by_every_method(seed):
    *given, truth = synthetic(seed, rounds=300, positive=5, mean=10, sd=1)
    for method, named in decide(*given).items():
        assert f1(named, truth) == 1.0, method


@pytest.mark.long
def test_prolin_is_at_least_as_good_as_ridge_at_a_d_prime_of_two():
    """Means ±2, variance 4; 5 of 50 positive, 10 a round; 20 seeds."""
    scores = {rounds: {"REG": [], "PROLIN": []} for rounds in (100, 200, 300)}
    for seed in range(20):
        A, G, v, densities, truth = synthetic(seed, rounds=300, positive=5, mean=2, sd=2)
        for rounds, found in scores.items():
            part, everyone = slice(rounds), np.arange(50)
            expected = weighted_ridge(A[part], G[part], v[part])
            joint = Joint(A[part], G[part], v[part], densities.of(rounds, everyone), expected)
            found["REG"].append(f1(expected > 0, truth))
            found["PROLIN"].append(f1(joint.solve(expected > 0)[0], truth))
    for rounds, found in scores.items():
        assert np.mean(found["PROLIN"]) >= np.mean(found["REG"]), rounds
    assert np.mean(scores[300]["PROLIN"]) > 0.9


@pytest.mark.slow
def test_where_nobody_has_the_property_hardly_anybody_is_named():
    named = {"PROLIN": [], "posterior": []}
    for seed in range(6):
        *given, _ = synthetic(seed, rounds=300, positive=0, mean=2, sd=2)
        decided = decide(*given)
        for method, rates in named.items():
            rates.append(decided[method].mean())
    assert np.mean(named["PROLIN"]) < 0.03
    assert np.mean(named["posterior"]) < 0.01
