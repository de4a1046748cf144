import numpy as np
import pytest

from fedattack.claims.recorded import looking
from fedattack.claims.recorded.draws import GaussianDraws, LaplaceDraws
from fedattack.claims.recorded.looking import SHARES, look, rank_of

GAUSSIAN = GaussianDraws()


@pytest.mark.parametrize("draws", [GAUSSIAN, LaplaceDraws()], ids=["gaussian", "laplace"])
def test_it_is_what_numpy_says(monkeypatch, draws):
    monkeypatch.setattr(looking, "_BLOCK", 70)
    rng = np.random.default_rng(0)
    sent, received = rng.normal(size=(2, 10, 100)).astype(np.float32)
    update = sent.astype(np.float64) - received
    allowed = np.abs(update) + np.finfo(np.float32).eps * np.maximum(np.abs(sent), np.abs(received))
    seen = look(sent, received, draws, 0.01)
    assert seen.size == 1000
    assert seen.square == pytest.approx((update**2).sum())
    ranked = np.sort(allowed.reshape(-1))
    bounds = [((ranked**draws.power).sum() / draws.least_sum(1000, 0.01)) ** (1 / draws.power)]
    bounds += [ranked[rank - 1] / draws.least_at(rank, 1000, 0.01) for rank in (10, 100, 500)]
    assert seen.bound == pytest.approx(min(bounds))
    assert seen.moved
    assert seen.finite


def test_ranks_are_those_of_entries_that_are_spread(monkeypatch):
    monkeypatch.setattr(looking, "_BLOCK", 64)
    monkeypatch.setattr(looking, "_RANKED", 100)
    sent = 1.02 ** np.arange(1000)
    taken = sent[::10] * (1 + np.finfo(np.float64).eps)
    ranks = [rank_of(share, 100) for share in SHARES]
    assert ranks == [1, 10, 50]
    # The first rank is too low to tell anything.
    bounds = [taken[rank - 1] / GAUSSIAN.least_at(rank, 100, 0.01) for rank in ranks[1:]]
    assert look(sent, None, GAUSSIAN, 0.01).bound == pytest.approx(min(bounds))


def test_a_gradient_is_the_update():
    sent = np.array([3.0, 4.0])
    assert look(sent, None, GAUSSIAN, 0.01).square == 25


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_told(value):
    sent = np.array([1.0, value], dtype=np.float32)
    assert not look(sent, np.zeros(2, np.float32), GAUSSIAN, 0.01).finite


def test_the_bound_holds_and_is_close():
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(500):
        bound = look(rng.normal(0, 2.0, 2000), np.zeros(2000), GAUSSIAN, 0.0125).bound
        assert bound < 2.4
        wrong += bound < 2.0
    assert 0 < wrong < 45


def test_a_few_large_entries_do_not_hide_how_small_most_are():
    rng = np.random.default_rng(2)
    sent = rng.normal(0, 1e-3, 5000)
    sent[:500] += 100
    assert look(sent, np.zeros(5000), GAUSSIAN, 1e-6).bound < 2e-3


def test_many_zeros_are_no_noise():
    sent = np.zeros(5000)
    sent[1000:] = np.random.default_rng(3).normal(0, 1.0, 4000)
    assert look(sent, np.zeros(5000), GAUSSIAN, 1e-6).bound < 1e-10


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_noise_that_rounding_swallows_is_not_held_against_a_client(dtype):
    """Noise of a tenth of the last place of what is sent: what is left of it is all zeros."""
    received = np.full(3000, 1.5, dtype)
    sigma = float(np.finfo(dtype).eps) / 10
    sent = (received + np.random.default_rng(4).normal(0, sigma, 3000)).astype(dtype)
    assert not (sent - received).any()
    assert look(sent, received, GAUSSIAN, 1e-3).bound > sigma
