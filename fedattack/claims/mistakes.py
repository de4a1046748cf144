"""What common mistakes cost: the ε that is claimed, and the one that is so. Each row is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedattack.claims.accounting import configured
from fedattack.claims.claim import Claim, classical_sigma, make_claim
from fedattack.privacy import gaussian_epsilon
from fedattack.privacy.gaussian import epsilon_of

DELTA = 1e-5
"""δ of all rows."""


@dataclass(frozen=True)
class Mistake:
    """One row of the table.

    Attributes
    ----------
    name
        What goes wrong.
    example
        The numbers that it is computed for.
    claimed, true
        ε as whoever makes the mistake has it, and as it is; infinite where nothing is guaranteed.
    why
        What the mistake overlooks.
    """

    name: str
    example: str
    claimed: float
    true: float
    why: str


def mistakes() -> list[Mistake]:
    """Compute the table."""
    return [
        low_sensitivity(),
        classical_formula(),
        per_round(),
        weights(),
        reset_engine(),
        noise_first(),
        left_out(),
        secagg_range(),
    ]


def low_sensitivity(clip: float = 1.0, sensitivity: float = 1e-4, epsilon: float = 10.0) -> Mistake:
    """State a sensitivity below the clipping norm, as Flower's ``LocalDpMod`` takes it."""
    claim = _claim("flower-localdp", clip=clip, sensitivity=sensitivity, epsilon=epsilon)
    return Mistake(
        "sensitivity below the clipping norm",
        f"LocalDpMod({clip:g}, {sensitivity:g}, {epsilon:g}, {DELTA:g}), one message",
        epsilon,
        _message(claim),
        f"two clipped updates may be {2 * clip:g} apart",
    )


def classical_formula(epsilon: float = 10.0) -> Mistake:
    """Use the classical formula for ε above 1, which it is not proved for."""
    mu = 1 / classical_sigma(1.0, epsilon, DELTA)
    return Mistake(
        "classical formula above ε = 1",
        f"σ = Δ·√(2 ln(1.25/δ))/ε for ε = {epsilon:g}, Δ right, one message",
        epsilon,
        epsilon_of(mu, DELTA),
        "it is proved for ε up to 1",
    )


def per_round(epsilon: float = 1.0, rounds: int = 100) -> Mistake:
    """Quote the ε of one round for the whole run."""
    multiplier = 2 / _mu_of(epsilon)
    run = gaussian_epsilon(multiplier, "replace", rounds, DELTA)
    return Mistake(
        "ε of a round quoted for the run",
        f"Gaussian noise, ε = {epsilon:g} a message, {rounds} rounds",
        epsilon,
        run.high,
        "each round tells something more",
    )


def weights(multiplier: float = 2.0, clients: int = 10, share: float = 0.5) -> Mistake:
    """Divide the noise by the number of clients, and weigh them by examples."""
    numbers = {"noise_multiplier": multiplier, "clients": clients}
    equal = _message(_claim("central-gaussian", **numbers))
    weighted = _message(_claim("central-gaussian", **numbers, weights="examples", largest_share=share))
    return Mistake(
        "weighted mean, noise for an equal one",
        f"noise multiplier {multiplier:g}, {clients} clients, of which one has {share:.0%} of the examples; one round",
        equal,
        weighted,
        f"that client moves the mean by C·{share:g}, and not by C/{clients}",
    )


def reset_engine(multiplier: float = 1.0, rate: float = 0.01, steps: int = 100, rounds: int = 50) -> Mistake:
    """Make the privacy engine anew in each round, and report the ε of the last."""
    claim = _claim("dp-sgd", noise_multiplier=multiplier, sampling=rate, steps=steps, rounds=rounds)
    found = configured(claim)
    if found.message is None or found.run is None:
        raise AssertionError("the noise is known")
    return Mistake(
        "privacy engine made anew in each round",
        f"DP-SGD, noise multiplier {multiplier:g}, sampling {rate:g}, {steps} steps a round, {rounds} rounds",
        found.message.high,
        found.run.high,
        "a new engine forgets the rounds before",
    )


def noise_first(multiplier: float = 4.0, norm: float = 20.0) -> Mistake:
    """Add noise before clipping: what is clipped afterwards has bounded nothing."""
    return Mistake(
        "noise added before clipping",
        f"noise of {multiplier:g}·C, then clipped to C; updates of norm {norm:g}·C; one message",
        gaussian_epsilon(multiplier, "replace", 1, DELTA).high,
        gaussian_epsilon(multiplier / norm, "replace", 1, DELTA).high,
        f"the updates are {2 * norm:g}·C apart when the noise comes; scaling both by a number that hardly varies, as "
        "clipping does in a model of many parameters, hides nothing",
    )


def left_out(multiplier: float = 4.0) -> Mistake:
    """Send buffers or integer tensors as they are."""
    return Mistake(
        "buffers or integers left out",
        f"noise of {multiplier:g}·C on the weights, batch norm's means and counters as they are; one message",
        gaussian_epsilon(multiplier, "replace", 1, DELTA).high,
        math.inf,
        "a number without noise tells two data sets apart for sure",
    )


def secagg_range(clip: float = 8.0, entries: int = 62_006, multiplier: float = 4.0) -> Mistake:
    """Take SecAgg+'s range for a clipping norm: it clips each entry, and not the update."""
    norm = clip * math.sqrt(entries)
    return Mistake(
        "SecAgg+'s clipping at ±8 taken for a norm",
        f"noise of {multiplier:g}·{clip:g}, a model of {entries:,} parameters; one message",
        gaussian_epsilon(multiplier, "replace", 1, DELTA).high,
        gaussian_epsilon(multiplier * clip / norm, "replace", 1, DELTA).high,
        f"entries within ±{clip:g} leave a norm of {norm:,.0f}",
    )


def _claim(mechanism: str, **values: object) -> Claim:
    return make_claim("mistakes", **{"mechanism": mechanism, "epsilon": 1.0, "delta": DELTA, "rounds": 1, **values})


def _message(claim: Claim) -> float:
    found = configured(claim).message
    if found is None:
        raise AssertionError("the noise is known")
    return found.high


def _mu_of(epsilon: float) -> float:
    from dp_accounting import get_sigma_gaussian

    return 1 / float(get_sigma_gaussian(epsilon, DELTA))
