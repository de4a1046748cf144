"""PROLIN with several features a round: t > 1, through the detector's output (Kerkouche et al. 2023, Section 5.2.2).

The feature extractor g_r projects an update onto t directions, the first of them the linear detector's. The non-linear
part h_r is the log odds of two normal densities of these features. Each density has a covariance of its own, so that
h_r also tells properties that change how updates spread. Densities in t dimensions would need too many shadow updates.
The likelihood is therefore that of the detector's output h_r(g_r(Δ)), normal with and without the property.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.threats.property.disaggregation import Array, least_squares, weighted_ridge

_ALTERNATIONS = 20
_STEPS = 100


@dataclass(frozen=True)
class FeatureDetector:
    """h_r∘g_r for one property in one round.

    Attributes
    ----------
    weights, offset
        (t, size), (t,): g_r(Δ) = weights Δ + offset.
    plus_mean, plus_covariance, minus_mean, minus_covariance
        (t,), (t, t): of the features, which make up h_r.
    output
        Mean and standard deviation of h_r's output with the property, and without it.
    """

    weights: NDArray[np.float32]
    offset: Array
    plus_mean: Array
    plus_covariance: Array
    minus_mean: Array
    minus_covariance: Array
    output: tuple[float, float, float, float]

    @classmethod
    def fit(cls, weights: Tensor, fitting: Sequence[Array], unseen: Sequence[Array]) -> "FeatureDetector":
        """Scale the features to unit spread, fit h_r on ``fitting`` and its output's densities on ``unseen`` clients.

        Both are projections (clients, t) with and without the property.
        """
        middle = (fitting[0].mean(axis=0) + fitting[1].mean(axis=0)) / 2
        spread = np.sqrt((fitting[0].var(axis=0) + fitting[1].var(axis=0)) / 2)
        scale = 1 / np.where(spread > 0, spread, 1.0)
        plus, minus = (fitting[0] - middle) * scale, (fitting[1] - middle) * scale
        # a little of the identity keeps features that hardly vary from deciding alone
        ridge = 1e-3 * np.eye(len(middle))
        detector = cls(
            weights=(torch.as_tensor(scale, dtype=torch.float32)[:, None] * weights.cpu()).numpy(),
            offset=-middle * scale,
            plus_mean=plus.mean(axis=0),
            plus_covariance=np.atleast_2d(np.cov(plus.T)) + ridge,
            minus_mean=minus.mean(axis=0),
            minus_covariance=np.atleast_2d(np.cov(minus.T)) + ridge,
            output=(0.0, 1.0, 0.0, 1.0),
        )
        with_it = detector.output_of((unseen[0] - middle) * scale)
        without = detector.output_of((unseen[1] - middle) * scale)
        plus_moments = float(with_it.mean()), float(max(with_it.std(), 1e-6))
        minus_moments = float(without.mean()), float(max(without.std(), 1e-6))
        return replace(detector, output=(*plus_moments, *minus_moments))

    def output_of(self, features: Array) -> Array:
        """Return h_r (…,) of features (…, t): log odds of the property."""
        # takes seconds to import, in every worker, and with one feature nobody needs it
        from scipy.stats import multivariate_normal

        plus = multivariate_normal(self.plus_mean, self.plus_covariance).logpdf(features)
        minus = multivariate_normal(self.minus_mean, self.minus_covariance).logpdf(features)
        return np.asarray(plus - minus)


def decide_by_features(
    A: Array, products: Array, v: Array, detectors: Sequence[FeatureDetector]
) -> dict[str, tuple[Array, NDArray[np.bool_]]]:
    """Decide by PROLIN, REG, OLS and BASELINE; returns scores (clients,) and decisions by method.

    Parameters
    ----------
    A
        (rounds, clients): participation; every client takes part at least once.
    products
        (rounds, rounds, t): ⟨weights of round r's features, sum of updates of round q⟩.
    v
        (rounds,): weights of the rounds.
    detectors
        One for each round.
    """
    offsets = _stacked(detectors, "offset")
    rounds = np.arange(len(A))
    G = products[rounds, rounds] + A.sum(axis=1, keepdims=True) * offsets
    expected = np.stack([weighted_ridge(A, column, v) for column in G.T], axis=1)
    ordinary = np.stack([least_squares(A, column) for column in G.T], axis=1)
    mean_updates = np.einsum("nq,rqt->rnt", np.linalg.pinv(A), products) + offsets[:, None]
    share = (A > 0) / (A > 0).sum(axis=0)
    answers = {}
    for name, features in (("REG", expected), ("OLS", ordinary)):
        outputs = np.stack([detector.output_of(features).reshape(-1) for detector in detectors])
        score = (share * outputs).sum(axis=0)
        answers[name] = (score, score > 0)
    named = [detector.output_of(values) > 0 for detector, values in zip(detectors, mean_updates, strict=True)]
    votes = np.mean(named, axis=0)
    answers["BASELINE"] = (votes, votes > 0.5)
    answers["PROLIN"] = _joint(A, G, v, expected, detectors, answers["REG"][1])
    return answers


def _stacked(detectors: Sequence[FeatureDetector], name: str) -> Array:
    return np.stack([getattr(detector, name) for detector in detectors])


def _joint(
    A: Array, G: Array, v: Array, expected: Array, detectors: Sequence[FeatureDetector], start: NDArray[np.bool_]
) -> tuple[Array, NDArray[np.bool_]]:
    """Alternate between features X (L-BFGS: h_r makes the problem non-convex) and τ, each best given the other."""
    rounds, clients = np.nonzero(A)
    weights = torch.as_tensor(A[rounds, clients])[:, None]
    row, column = torch.as_tensor(rounds), torch.as_tensor(clients)
    often = torch.as_tensor((A > 0).sum(axis=0), dtype=torch.float64)[:, None]
    sums, wanted, trust = torch.as_tensor(G), torch.as_tensor(expected), torch.as_tensor(v)[:, None]
    plus = _Normal.of(_stacked(detectors, "plus_mean"), _stacked(detectors, "plus_covariance"), row)
    minus = _Normal.of(_stacked(detectors, "minus_mean"), _stacked(detectors, "minus_covariance"), row)
    output = torch.as_tensor(_stacked(detectors, "output"))[row]

    def likelihoods(X: Tensor) -> tuple[Tensor, Tensor]:
        """Log densities of each client's outputs with and without the property, (clients,) each."""
        odds = plus.log_density(X) - minus.log_density(X)
        both = []
        for mean, sd in (output[:, :2].T, output[:, 2:].T):
            single = -0.5 * ((odds - mean) / sd) ** 2 - sd.log()
            both.append(torch.zeros(len(often), dtype=torch.float64).index_add(0, column, single))
        return both[0], both[1]

    tau = torch.as_tensor(start)
    X = wanted[column].clone()
    for _ in range(_ALTERNATIONS):
        X = X.detach().requires_grad_()
        optimiser = torch.optim.LBFGS([X], max_iter=_STEPS, line_search_fn="strong_wolfe")

        def objective(X: Tensor = X, tau: Tensor = tau, optimiser: torch.optim.LBFGS = optimiser) -> Tensor:
            optimiser.zero_grad()
            with_it, without = likelihoods(X)
            mean = torch.zeros_like(wanted).index_add(0, column, X) / often
            sum_of = torch.zeros_like(sums).index_add(0, row, weights * X)
            loss = -torch.where(tau, with_it, without).sum()
            loss = loss + ((mean - wanted) ** 2).sum() + (trust * (sums - sum_of) ** 2).sum()
            loss.backward()
            return loss

        optimiser.step(objective)
        with torch.no_grad():
            with_it, without = likelihoods(X)
        changed = with_it > without
        if torch.equal(changed, tau):
            break
        tau = changed
    return (with_it - without).numpy(), tau.numpy()


@dataclass(frozen=True)
class _Normal:
    """A normal density of t features for each participation."""

    mean: Tensor
    factor: Tensor
    constant: Tensor

    @classmethod
    def of(cls, means: Array, covariances: Array, rows: Tensor) -> "_Normal":
        mean = torch.as_tensor(means)
        factor = torch.linalg.cholesky(torch.as_tensor(covariances))
        constant = factor.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        return cls(mean[rows], factor[rows], constant[rows])

    def log_density(self, X: Tensor) -> Tensor:
        """Log densities (participations,) of X (participations, t), without the constant that all share."""
        white = torch.linalg.solve_triangular(self.factor, (X - self.mean)[..., None], upper=False)[..., 0]
        density: Tensor = -0.5 * (white**2).sum(dim=1) - self.constant
        return density
