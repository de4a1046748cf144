import numpy as np
import pytest

from fedattack.claims.recorded import looking
from fedattack.claims.recorded.draws import GaussianDraws, LaplaceDraws
from fedattack.claims.recorded.looking import SHARES, look, rank_of, scale_at_most

GAUSSIAN = GaussianDraws()


def test_it_is_what_numpy_says(monkeypatch):
    monkeypatch.setattr(looking, "_BLOCK", 70)
    rng = np.random.default_rng(0)
    sent, received = rng.normal(size=(2, 10, 100)).astype(np.float32)
    update = sent.astype(np.float64) - received
    allowed = np.abs(update) + np.finfo(np.float32).eps * np.maximum(np.abs(sent), np.abs(received))
    seen = look(sent, received, GAUSSIAN, 300)
    assert seen.size == seen.ranked == 1000
    assert seen.square == pytest.approx((update**2).sum())
    assert seen.total == pytest.approx((allowed**2).sum())
    assert look(sent, received, LaplaceDraws(), 1).total == pytest.approx(allowed.sum())
    ranked = np.sort(allowed.reshape(-1))
    assert seen.at == pytest.approx([ranked[9], ranked[99], ranked[499]])
    np.testing.assert_allclose(seen.head.values, update.reshape(-1)[:300], rtol=1e-6)
    assert seen.moved
    assert seen.finite


def test_ranks_are_those_of_entries_that_are_spread(monkeypatch):
    monkeypatch.setattr(looking, "_BLOCK", 64)
    monkeypatch.setattr(looking, "_RANKED", 100)
    sent = np.arange(1.0, 1001.0)
    seen = look(sent, None, GAUSSIAN, 5)
    assert seen.ranked == 100
    taken = sent[::10] * (1 + np.finfo(np.float64).eps)
    assert seen.at == pytest.approx([taken[rank_of(share, 100) - 1] for share in SHARES])


def test_a_gradient_is_the_update():
    sent = np.array([3.0, 4.0])
    assert look(sent, None, GAUSSIAN, 2).square == 25


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_told(value):
    sent = np.array([1.0, value], dtype=np.float32)
    assert not look(sent, np.zeros(2, np.float32), GAUSSIAN, 2).finite


def test_the_bound_holds_and_is_close():
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(500):
        seen = look(rng.normal(0, 2.0, 2000), np.zeros(2000), GAUSSIAN, 1)
        bound = scale_at_most(seen, GAUSSIAN, 0.0125)
        assert bound < 2.4
        wrong += bound < 2.0
    assert 0 < wrong < 45


def test_a_few_large_entries_do_not_hide_how_small_most_are():
    rng = np.random.default_rng(2)
    sent = rng.normal(0, 1e-3, 5000)
    sent[:500] += 100
    seen = look(sent, np.zeros(5000), GAUSSIAN, 1)
    assert scale_at_most(seen, GAUSSIAN, 1e-6) < 2e-3


def test_many_zeros_are_no_noise():
    sent = np.zeros(5000)
    sent[1000:] = np.random.default_rng(3).normal(0, 1.0, 4000)
    assert scale_at_most(look(sent, np.zeros(5000), GAUSSIAN, 1), GAUSSIAN, 1e-6) < 1e-10


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_noise_that_rounding_swallows_is_not_held_against_a_client(dtype):
    """Noise of a tenth of the last place of what is sent: what is left of it is all zeros."""
    received = np.full(3000, 1.5, dtype)
    sigma = float(np.finfo(dtype).eps) / 10
    sent = (received + np.random.default_rng(4).normal(0, sigma, 3000)).astype(dtype)
    assert not (sent - received).any()
    assert scale_at_most(look(sent, received, GAUSSIAN, 1), GAUSSIAN, 1e-3) > sigma
