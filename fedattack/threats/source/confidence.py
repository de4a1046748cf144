"""How sure source inference is of whom it names: a posterior whose temperature is fitted on other targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from fedattack.audit.summaries import reliability
from fedattack.threats.source.case import Floats, Rows, SourceCase, credits_of
from fedattack.threats.source.sia import posterior

# The stream of a seed's random numbers that halves targets.
_FOLDS = 2


@dataclass(frozen=True)
class Confidence:
    """How sure the attack was of some targets (n,) of a case: of each client, and rightly; γ was fitted on others."""

    case: SourceCase
    rows: Rows
    beliefs: Floats
    right: Floats
    gamma: float

    @property
    def named(self) -> Rows:
        """(n,): whom it named."""
        return np.asarray(self.beliefs.argmax(axis=1))

    @property
    def sure(self) -> Floats:
        """(n,): how sure it was of them."""
        return np.asarray(self.beliefs.max(axis=1))


def calibrate(case: SourceCase) -> list[Confidence]:
    """Calibrate γ on one half of the targets and state confidence on the other, both ways."""
    draw = np.random.default_rng((case.seed, _FOLDS))
    rows = draw.permutation(case.counted)
    combined, prior = case.combined, case.log_prior
    parts = []
    for test, fit in ((rows[::2], rows[1::2]), (rows[1::2], rows[::2])):
        if len(fit) and len(test):
            gamma = fit_gamma(combined[fit], prior, case.owner[fit])
            # With a prior the posterior may name another client than the scores alone.
            named = credits_of(combined[test] / gamma + (prior - prior.max()))
            right = named[np.arange(len(test)), case.owner[test]]
            parts.append(Confidence(case, test, posterior(combined[test], prior, gamma), right, gamma))
    return parts


def fit_gamma(combined: Floats, log_prior: Floats, owner: Rows) -> float:
    """Fit the temperature γ of the posterior by maximum likelihood of the true owners.

    This uses the truth, so it belongs to the auditor: an attacker would use γ = 1. It changes how sure the posterior
    is, never whom it names.
    """

    def loss(log_gamma: float) -> float:
        belief = posterior(combined, log_prior, float(np.exp(log_gamma)))
        return -float(np.log(np.maximum(belief[np.arange(len(owner)), owner], 1e-300)).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded").x))


def measure_reliability(parts: Sequence[Confidence]) -> dict[str, Any]:
    """Hold stated confidence against success; empty where there is none."""
    if not parts:
        return {}
    sure = np.concatenate([part.sure for part in parts])
    right = np.concatenate([part.right for part in parts])
    return {**reliability(sure, right), "gamma": float(np.median([part.gamma for part in parts]))}


def separate_beliefs(parts: Sequence[Confidence]) -> tuple[Floats, Floats]:
    """Return how sure the attack is of each target's holder, and of all other clients that were seen."""
    holders: list[NDArray[np.float64]] = [np.zeros(0)]
    others: list[NDArray[np.float64]] = [np.zeros(0)]
    for part in parts:
        known = ~np.isnan(part.case.combined[part.rows])
        places = np.arange(len(part.rows)), part.case.owner[part.rows]
        holders.append(part.beliefs[places])
        known[places] = False
        others.append(part.beliefs[known])
    return np.concatenate(holders), np.concatenate(others)
