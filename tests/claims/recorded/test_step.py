"""Servers that do more with a noisy mean than to take it as the next model."""

import numpy as np
import pytest

from fedattack.claims.check import check_claim
from fedattack.claims.finding import CONSISTENT, CONTRADICTED, UNCHECKED
from fedattack.claims.recorded.step import Regression
from tests.claims.recorded.runs import adam, seen, with_momentum, write_run
from tests.claims.recorded.test_recorded import CENTRAL, SERVER, claim


@pytest.fixture
def check(tmp_path):
    def checked(run, **values):
        write_run(tmp_path / "record", run, seed=1)
        return check_claim(claim(**values), record=tmp_path / "record")

    return checked


@pytest.mark.parametrize("rate", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("aggregate", [False, True], ids=["replies", "sums"])
def test_a_server_learning_rate_is_no_missing_noise(check, rate, aggregate):
    run = SERVER.with_other(moves=with_momentum(0.0, rate), aggregate=aggregate)
    if aggregate:
        run = run.with_other(server_clips=False, weights="examples")
    recorded, missing = seen(check(run, **CENTRAL))
    assert missing.verdict == UNCHECKED
    assert recorded.verdict != CONTRADICTED
    assert "moves" in missing.reason
    assert any("a step of 1" in text for text in missing.assumes)


@pytest.mark.parametrize("rate", [0.003, 0.01, 0.03, 0.05, 0.1, 0.2, 1.0])
@pytest.mark.parametrize("noise", [0.1, 0.01])
def test_adam_is_not_contradicted(check, rate, noise):
    values = {**CENTRAL, "noise_multiplier": 10 * noise}
    recorded, missing = seen(check(SERVER.with_other(moves=adam(rate), central=noise, rounds=5), **values))
    assert missing.verdict == UNCHECKED
    assert recorded.verdict != CONTRADICTED


def test_momentum_that_makes_up_for_a_small_step(check):
    """On the whole the model moves as far as the means, and its noise is a tenth."""
    run = SERVER.with_other(moves=with_momentum(0.9, 0.1), rounds=8)
    recorded, missing = seen(check(run, **CENTRAL))
    assert missing.verdict == UNCHECKED
    assert recorded.verdict != CONTRADICTED


def test_momentum_beside_a_step_of_1(check):
    _, missing = seen(check(SERVER.with_other(moves=with_momentum(0.5, 1.0), rounds=5), **CENTRAL))
    assert missing.verdict == CONSISTENT


def test_too_little_noise_is_found_beside_momentum(check):
    run = SERVER.with_other(moves=with_momentum(0.5, 1.0), central=0.01, rounds=5)
    _, missing = seen(check(run, **CENTRAL))
    assert missing.verdict == CONTRADICTED


def test_noise_that_a_small_step_would_explain(check):
    """Noise of 0.8 σ hides whether the step is 0.8."""
    _, missing = seen(check(SERVER.with_other(central=0.08), **CENTRAL))
    assert missing.verdict == UNCHECKED
    assert "the replies do not rule out that the server moves by 0.8" in missing.reason


@pytest.mark.parametrize("seed", range(4))
def test_noise_that_repeats_is_no_momentum(tmp_path, seed):
    """Whichever mean fits best in the first round, which has no other to compare with."""
    write_run(tmp_path / "record", SERVER.with_other(central_seed=seed + 7), seed)
    _, missing = seen(check_claim(claim(**CENTRAL), record=tmp_path / "record"))
    assert "in round 2 its noise is that of round 1" in missing.reason


def test_a_server_without_noise(check):
    _, missing = seen(check(SERVER.with_other(central=1e-12), **CENTRAL))
    assert missing.verdict == CONTRADICTED


def regression(movements, noise=0.0):
    rng = np.random.default_rng(1)
    last = None
    for mean, moved in movements:
        fit = Regression(last)
        fit.add("a", mean, (moved + rng.normal(0, noise, mean.size)).astype(np.float32))
        last = fit.now
    return fit.step()


def test_known_coefficients():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0, 1, (2, 10_000))
    assert regression([(first, 0.5 * first)]).size == pytest.approx(0.5)
    noisy = regression([(first, 0.5 * first)], noise=2.0)
    assert noisy.error == pytest.approx(2 / np.sqrt((first**2).sum()), rel=0.05)
    assert abs(noisy.size - 0.5) < 4 * noisy.error
    momentum = regression([(first, 0.3 * first), (second, 0.3 * second + 0.9 * 0.3 * first)], noise=0.1)
    assert abs(momentum.size - 0.3) < 4 * momentum.error < 0.01


def test_what_nothing_tells():
    mean = np.ones(10_000)
    for movements in ([(mean, mean), (mean, mean)], [(0 * mean, mean)], [(mean, np.inf * mean)]):
        step = regression(movements)
        assert step.error == np.inf
        assert step.least == 0
        assert not step.is_not_one
