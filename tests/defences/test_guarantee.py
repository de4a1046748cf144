"""ε and δ against the exact ones of the Gaussian mechanism, and a simulation of the Laplace one's privacy loss."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from fedattack.base.errors import ConfigError
from fedattack.defences import in_words, update_privacy
from fedattack.defences.guarantee import list_hazards


def settings(**changes):
    return {"defence": "dp-gaussian", "defence-strength": 4.0, "defence-clip": 0.5, "dp-delta": 1e-5, **changes}


def exact_epsilon(multiplier: float, rounds: int, delta: float) -> float:
    """The Gaussian mechanism, composed: N(0, 1) against N(μ, 1) with μ = √rounds / σ (Balle & Wang 2018)."""
    mu = math.sqrt(rounds) / multiplier

    def excess(epsilon: float) -> float:
        log_part = epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)
        return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(log_part) - delta

    return optimize.brentq(excess, 0, 200)


@pytest.mark.parametrize("rounds", [1, 20])
def test_two_arbitrary_updates_are_two_norms_apart(rounds):
    spent = update_privacy(settings(), rounds=rounds)
    exact = exact_epsilon(4.0 / (2 * 0.5), rounds, 1e-5)
    assert spent.epsilon_run == pytest.approx(exact, rel=1e-9)
    assert spent.epsilon_run >= spent.epsilon_round
    assert (rounds == 1) == (spent.epsilon_run == spent.epsilon_round)
    halved = update_privacy(settings(**{"defence-clip": 0.25}), rounds=rounds)
    assert halved.epsilon_run < spent.epsilon_run


@pytest.mark.parametrize("moved", [1, 4, 400])
def test_the_bound_of_laplace_holds_however_the_difference_is_spread(moved):
    """The privacy loss of a difference of norm 2C over so many entries: its tail is no more than δ allows.

    δ(ε) = E[(1 − e^(ε − L))⁺], with L the loss under the first of the two laws.
    """
    clip, scale, delta = 0.5, 1.2, 1e-2
    spent = update_privacy(
        settings(**{"defence": "dp-laplace", "defence-clip": clip, "defence-strength": scale, "dp-delta": delta}),
        rounds=1,
    )
    draw = np.random.default_rng(0)
    shift = 2 * clip / math.sqrt(moved)
    noise = draw.laplace(scale=scale, size=(400_000 // max(moved // 4, 1), moved))
    loss = ((np.abs(noise + shift) - np.abs(noise)) / scale).sum(axis=1)
    found = np.maximum(1 - np.exp(spent.epsilon_run - loss), 0).mean()
    assert found <= delta


@pytest.mark.parametrize(
    "change",
    [
        {"defence-strength": 0.0},
        {"defence-clip": 0.0},
        {"defence": "sparsify", "defence-strength": 0.5},
        {"defence": "soteria", "defence-strength": 0.5},
        {"defence": "none"},
    ],
)
def test_no_finite_guarantee_is_said_where_that_is_the_truth(change):
    spent = update_privacy(settings(**change), rounds=3)
    assert (spent.epsilon_round, spent.epsilon_run) == (math.inf, math.inf)
    assert in_words(spent) == "no finite guarantee"


def test_a_guarantee_in_words_has_all_three_numbers():
    spent = update_privacy(settings(), rounds=20)
    assert in_words(spent) == (
        f"ε = {spent.epsilon_round:.3g} a round, ε = {spent.epsilon_run:.3g} for the whole run, δ = 1e-05"
    )


@pytest.mark.parametrize("change", [{"dp-delta": 0.0}, {"dp-delta": 1.5}, {"defence-clip": -1}])
def test_bad_numbers_are_refused(change):
    with pytest.raises(ConfigError):
        update_privacy(settings(**change), rounds=1)


def test_only_what_was_looked_at_is_called_checked():
    assert [hazard.what for hazard in list_hazards(own_noise=False) if hazard.checked] == []
    found = list_hazards(own_noise=True, plaintext=["loss", "num-examples"])
    assert [hazard.what for hazard in found if hazard.checked] == [
        "Randomness of the noise",
        "Numbers sent with the update",
    ]
    assert [hazard.checked for hazard in found] == sorted((hazard.checked for hazard in found), reverse=True)
    assert "loss, num-examples" in found[1].why


def test_every_hazard_is_named_in_either_case():
    names = {hazard.what for hazard in list_hazards(own_noise=False)}
    assert names == {hazard.what for hazard in list_hazards(own_noise=True, plaintext=[])}
    assert {"Floating point", "Time and size of messages", "Tuning and early stopping"} <= names
