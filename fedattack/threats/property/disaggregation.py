"""Who of the participants had the property: from sums of features over changing groups of clients to decisions.

PROLIN (Kerkouche et al. 2023), Sections 5.1 and 5.2.3 to 5.2.4, with its comparisons. Throughout, ``A`` (rounds,
clients) says with which weight a client takes part in a round's sum, zero where it does not; ``G`` (rounds,) are the
sums of the clients' features under the round's detector.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RIDGE = 5.0
"""λ of the weighted ridge regression (Section 6.3.1)."""


@dataclass(frozen=True)
class Densities:
    """Normal densities of a feature with (+) and without (−) the property, each (rounds, clients)."""

    plus_mean: Array
    plus_sd: Array
    minus_mean: Array
    minus_sd: Array

    def of(self, rounds: int, clients: NDArray[np.int64]) -> "Densities":
        """Keep the first rounds and some clients."""
        return Densities(
            plus_mean=self.plus_mean[:rounds, clients],
            plus_sd=self.plus_sd[:rounds, clients],
            minus_mean=self.minus_mean[:rounds, clients],
            minus_sd=self.minus_sd[:rounds, clients],
        )


def overlap(plus_mean: float, plus_sd: float, minus_mean: float, minus_sd: float) -> float:
    """Return the overlapping coefficient (OVL) of two normal densities, in 0 … 1."""
    if min(plus_sd, minus_sd) <= 0:
        return float(plus_mean == minus_mean)
    return NormalDist(plus_mean, plus_sd).overlap(NormalDist(minus_mean, minus_sd))


def least_squares(A: Array, G: Array) -> Array:
    """Return OLS's expected features (clients,), those of least norm where ``A`` leaves a choice."""
    if not len(A):
        return np.zeros(A.shape[1])
    return np.asarray(np.linalg.lstsq(A, G, rcond=None)[0])


def weighted_ridge(A: Array, G: Array, v: Array, ridge: float = RIDGE) -> Array:
    """Return argmin_x Σ_r v_r (G_r − A_r x)² + λ‖x‖² (equation 10), shape (clients,)."""
    weighted = A * v[:, None]
    return np.asarray(np.linalg.solve(weighted.T @ A + ridge * np.eye(A.shape[1]), weighted.T @ G))


def baseline_votes(A: Array, products: Array, offsets: Array) -> Array:
    """Return the share of the rounds' detectors that take a client's mean update for positive (Lam et al. 2021).

    The least-squares updates W~ = A⁺B are never formed: a linear detector needs only their products with its weights.

    Parameters
    ----------
    A
        (rounds, clients).
    products
        (rounds, rounds): ⟨weights of round r's detector, sum of updates of round q⟩.
    offsets
        (rounds, clients): constants of the detectors, less what a client's feature is compared with.

    Returns
    -------
    ndarray
        (clients,), in 0 … 1.
    """
    if not len(A):
        return np.zeros(A.shape[1])
    features = np.linalg.pinv(A) @ products.T + offsets.T
    return np.asarray((features > 0).mean(axis=1))


@dataclass(frozen=True)
class Joint:
    """PROLIN's optimisation problem (Section 5.2.4) for one feature with normal densities.

    minimise γ1·L_ml + γ2·L_reg + γ3·L_lstsq over τ ∈ [0, 1]^N and one feature X_ri for each time that a client took
    part. For fixed X each best τ_i is 0 or 1, so the optimum is at a corner. For τ at a corner the best X is that of a
    convex quadratic, whose value has a closed form. The search goes over corners by single changes and swaps. It ends
    where no alternation of the two steps could begin to improve.

    The paper balances the γ anew in each of its 20,000 to 80,000 gradient steps (MTAdam) to make progress. With exact
    steps there is nothing to balance, and all are 1 here: L_ml is in nats, and λ and v weigh the rest.

    Attributes
    ----------
    A, G
        As in the module; every client takes part at least once.
    v
        (rounds,): weights 1 − OVL.
    densities
        Of the features.
    expected
        (clients,): ridge's expected features.
    gammas
        γ1, γ2, γ3.
    """

    A: Array
    G: Array
    v: Array
    densities: Densities
    expected: Array
    gammas: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @cached_property
    def _share(self) -> Array:
        """(rounds, clients): 1/|R(i)| where the client took part."""
        present = self.A > 0
        return np.asarray(present / present.sum(axis=0))

    def solve(self, start: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], float]:
        """Search from ``start`` and from nobody, and return the better τ (clients,) and its objective."""
        from_start = self._descend(start.copy())
        from_nobody = self._descend(np.zeros_like(start))
        return min(from_start, from_nobody, key=lambda solution: solution[1])

    def gains(self, tau: NDArray[np.bool_]) -> Array:
        """Return by how much the objective is better with than without each client (clients,), the others as in τ."""
        gains = np.empty(len(tau))
        for client in range(len(tau)):
            other = tau.copy()
            other[client] = False
            without = self.least(other)
            other[client] = True
            gains[client] = without - self.least(other)
        return gains

    def _descend(self, tau: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], float]:
        best = self.least(tau)
        improved = True
        while improved:
            improved = False
            for change in self._changes(tau):
                tau[change] = ~tau[change]
                value = self.least(tau)
                if value < best - 1e-9 * abs(best):
                    best, improved = value, True
                    if len(change) > 1:
                        break  # the swaps were listed for another τ
                else:
                    tau[change] = ~tau[change]
        return tau, best

    @staticmethod
    def _changes(tau: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
        singles = list(np.arange(len(tau))[:, None])
        swaps = map(np.array, product(np.flatnonzero(tau), np.flatnonzero(~tau)))
        return [*singles, *swaps]

    def _reduce(self, tau: NDArray[np.bool_]) -> tuple[Array, tuple[Array, ...]]:
        """Reduce the quadratic in X to one multiplier a client and one a round (both blocks are diagonal)."""
        d, (g1, g2, g3) = self.densities, self.gammas
        mean = np.where(tau, d.plus_mean, d.minus_mean)
        variance = np.where(tau, d.plus_sd, d.minus_sd) ** 2 / g1
        off_client = self.expected - (self._share * mean).sum(axis=0)
        off_round = self.G - (self.A * mean).sum(axis=1)
        on_client = 1 / (2 * g2) + (self._share**2 * variance).sum(axis=0)
        # v may be 0: the round's multiplier is then 0 as well
        weight = 2 * g3 * self.v
        on_round = weight / (1 + weight * (self.A**2 * variance).sum(axis=1))
        cross = self._share * self.A * variance
        return variance, (off_client, off_round, on_client, on_round, cross)

    @staticmethod
    def _multipliers(
        off_client: Array, off_round: Array, on_client: Array, on_round: Array, cross: Array
    ) -> tuple[Array, Array]:
        schur = np.diag(on_client) - (cross * on_round[:, None]).T @ cross
        client = np.linalg.solve(schur, off_client - cross.T @ (on_round * off_round))
        return np.asarray(client), np.asarray(on_round * (off_round - cross @ client))

    def least(self, tau: NDArray[np.bool_]) -> float:
        """Return the least objective over X for τ at a corner."""
        variance, reduced = self._reduce(tau)
        client, rounds = self._multipliers(*reduced)
        constant = np.where(self.A > 0, np.log(2 * np.pi * variance * self.gammas[0]), 0.0).sum() / 2
        return float((reduced[0] @ client + reduced[1] @ rounds) / 2 + self.gammas[0] * constant)


def posterior(
    A: Array,
    G: Array,
    densities: Densities,
    share: float,
    weights: Array,
    lasting: tuple[float, float] = (0.0, 0.0),
    *,
    sweeps: int = 200,
    burn_in: int = 100,
    generator: np.random.Generator,
) -> Array:
    """Return each client's probability to have the property, given the sums: PROLIN's model without its maximisation.

    A sum of independent normal features is normal, so single features need not be reconstructed. With S = the
    participants, G_r ~ N(Σ_S A μ^τ, Σ_S A² σ^τ²), and τ has the prior ``share``. A client's own examples make its
    features differ from other clients' in the same direction round after round. A share ``lasting`` of the variance is
    therefore common to all of a client's rounds; without it the posterior would be too sure with every round. τ and the
    lasting parts are sampled together (Gibbs). Many weightings of the rounds go side by side: prefixes, or resampled
    rounds.

    Parameters
    ----------
    A, G, densities
        As in the module.
    share
        Prior probability that a client has the property.
    weights
        (k, rounds): how often each round counts in each of k problems; zero leaves it out.
    lasting
        The size of the lasting part, with and without the property, as a share of the variance, each in 0 … 1. It comes
        on top of each round's own spread: auxiliary clients vary less than real ones, and a posterior that took the
        part out of that spread was sure of wrong answers.
    sweeps, burn_in
        Passes over all clients, and how many of them are not counted.
    generator
        Of the sampler's draws.

    Returns
    -------
    ndarray
        (k, clients), in 0 … 1; the prior where a client takes part in no round that counts.
    """
    problems, clients = len(weights), A.shape[1]
    present, parts = [], []
    mean, variance = np.zeros((problems, len(A))), np.zeros((problems, len(A)))
    for client in range(clients):
        rows = np.flatnonzero(A[:, client] > 0)
        weight, at = A[rows, client], (rows, client)
        without = _Contribution.of(weight, densities.minus_mean[at], densities.minus_sd[at], lasting[1])
        with_it = _Contribution.of(weight, densities.plus_mean[at], densities.plus_sd[at], lasting[0])
        present.append(rows)
        parts.append((without, with_it))
        mean[:, rows] += without.mean
        variance[:, rows] += without.variance
    tau = np.zeros((problems, clients), dtype=int)
    effect = np.zeros((problems, clients))
    total = np.zeros((problems, clients))
    prior = np.log(share / (1 - share))
    for sweep in range(sweeps):
        # Sharp features make single changes all but impossible: the likelihood is turned on gradually, so that the
        # sampler does not settle on the first clients that explain a part.
        heat = min(1.0, ((sweep + 1) / max(burn_in, 1)) ** 3)
        for client in generator.permutation(clients):
            rows, (without, with_it) = present[client], parts[client]
            count = heat * weights[:, rows]
            has, shift = tau[:, client, None] == 1, effect[:, client, None]
            rest = G[rows] - mean[:, rows] + np.where(has, with_it.shift_by(shift), without.shift_by(shift))
            others = variance[:, rows] - np.where(has, with_it.variance, without.variance)
            evidence_without, centre_without, spread_without = without.explain(rest, others, count)
            evidence_with, centre_with, spread_with = with_it.explain(rest, others, count)
            odds = np.clip(prior + evidence_with - evidence_without, -700, 700)
            chance = 1 / (1 + np.exp(-odds))
            drawn = generator.random(problems) < chance
            noise = generator.standard_normal(problems)
            tau[:, client] = drawn
            effect[:, client] = np.where(
                drawn, centre_with + spread_with * noise, centre_without + spread_without * noise
            )
            has, shift = drawn[:, None], effect[:, client, None]
            mean[:, rows] = G[rows] - rest + np.where(has, with_it.shift_by(shift), without.shift_by(shift))
            variance[:, rows] = others + np.where(has, with_it.variance, without.variance)
            if sweep >= burn_in:
                total[:, client] += chance
    return np.asarray(total / (sweeps - burn_in))


@dataclass(frozen=True)
class _Contribution:
    """A client's part in its rounds' sums, with or without the property: mean, lasting sd and variance, (rounds,)."""

    mean: Array
    lasting: Array
    variance: Array

    @classmethod
    def of(cls, weight: Array, mean: Array, sd: Array, lasting: float) -> "_Contribution":
        return cls(weight * mean, weight * sd * np.sqrt(lasting), (weight * sd) ** 2)

    def shift_by(self, effect: Array) -> Array:
        return self.mean + effect * self.lasting

    def explain(self, rest: Array, others: Array, count: Array) -> tuple[Array, Array, Array]:
        """Return the log evidence of the sums without the others, and centre and spread of the lasting part.

        The lasting part, standard normal beforehand, is integrated out. It is drawn afterwards.
        """
        left, precision = rest - self.mean, count / (others + self.variance)
        spread = 1 / (1 + (precision * self.lasting * self.lasting).sum(axis=1))
        pull = (precision * self.lasting * left).sum(axis=1)
        fit = -(precision * left * left).sum(axis=1) - (count * np.log(others + self.variance)).sum(axis=1)
        evidence = (fit + spread * pull**2 + np.log(spread)) / 2
        return evidence, spread * pull, np.sqrt(spread)
