"""How often the tester of mechanisms says too much, and how much of the true ε it finds.

``python -m tests.benchmarks.claims`` tests mechanisms whose ε is known, 1,000 times each, with 10,000 draws at
δ = 1e-5. It prints a row for each: how often the bound was above the true ε (5 % are allowed), its share of the true ε
on average, and how often it reached 60 % of it. Numbers in brackets are 95 % intervals. It takes a quarter of an hour
on one core; ``--runs 100`` takes less.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from fedattack.audit.intervals import clopper_pearson
from fedattack.claims.mechanisms import Mechanism, mechanism_of
from fedattack.claims.tester import Measured, Play, measure
from fedattack.privacy.gaussian import epsilon_of, sampled_epsilon

DELTA = 1e-5
EPSILONS = (1.0, 2.0, 4.0)
SIZE = 8
BATCH = 32
"""Examples in a step of DP-SGD."""

ENOUGH = 0.6

Arrays = Mapping[str, NDArray[Any]]
Draw = Callable[[Arrays, np.random.Generator, int], Arrays]


@dataclass(frozen=True)
class Known:
    """A mechanism whose ε is known."""

    name: str
    epsilon: float
    mechanism: Mechanism
    play: Play


def clipped(update: Arrays, clip: float, power: int = 2) -> dict[str, NDArray[Any]]:
    """Scale an update down to an L1 or L2 norm."""
    norm = sum(float((np.abs(array) ** power).sum()) for array in update.values()) ** (1 / power)
    scale = min(1.0, clip / norm) if norm else 1.0
    return {name: array * scale for name, array in update.items()}


def gaussian(sigma: float) -> Draw:
    """Clip to norm 1, and add Gaussian noise."""

    def draw(update: Arrays, rng: np.random.Generator, count: int) -> Arrays:
        return {name: a + rng.normal(0, sigma, (count, *a.shape)) for name, a in clipped(update, 1.0).items()}

    return draw


def laplace(scale: float) -> Draw:
    """Clip to an L1 norm of 1, and add Laplace noise."""

    def draw(update: Arrays, rng: np.random.Generator, count: int) -> Arrays:
        return {name: a + rng.laplace(0, scale, (count, *a.shape)) for name, a in clipped(update, 1.0, 1).items()}

    return draw


def dp_sgd(multiplier: float, rate: float = 1.0) -> Draw:
    """Take a step of DP-SGD in which the update is the gradient of one example, drawn with a probability."""

    def draw(update: Arrays, rng: np.random.Generator, count: int) -> Arrays:
        others = np.random.default_rng(0)  # the same examples in each draw
        taken = rng.random(count) < rate
        sent = {}
        for name, gradient in clipped(update, 1.0).items():
            rest = others.normal(0, 0.05, (BATCH - 1, *gradient.shape)).sum(axis=0)
            noise = rng.normal(0, multiplier, (count, *gradient.shape))
            coins = taken.reshape(-1, *[1] * gradient.ndim)
            sent[name] = (coins * gradient + rest + noise) / BATCH
        return sent

    return draw


def solved(epsilon_at: Callable[[float], float], epsilon: float) -> float:
    """Return the noise at which a mechanism has this ε."""
    log = optimize.brentq(lambda log: epsilon_at(math.exp(log)) - epsilon, math.log(0.05), math.log(20), xtol=1e-10)
    return math.exp(log)


def known() -> Iterator[Known]:
    """Give all mechanisms."""
    removed = Play(relation="add-remove", delta=DELTA)
    for epsilon in EPSILONS:
        sigma = solved(lambda s: epsilon_of(2 / s, DELTA), epsilon)
        yield Known("Gaussian", epsilon, mechanism_of(gaussian(sigma), size=SIZE), Play(delta=DELTA))
        # Its ε at δ is 2/b + 2 ln(1 − δ).
        scale = 2 / (epsilon - 2 * math.log1p(-DELTA))
        yield Known("Laplace", epsilon, mechanism_of(laplace(scale), size=SIZE), Play(delta=DELTA))
        noise = solved(lambda z: epsilon_of(1 / z, DELTA), epsilon)
        yield Known("DP-SGD step", epsilon, mechanism_of(dp_sgd(noise), size=SIZE), removed)
        for rate in (0.5, 0.25, 0.1):
            noise = solved(lambda z, rate=rate: sampled_epsilon(1 / z, rate, DELTA), epsilon)
            inside = Play(relation="add-remove", delta=DELTA, inside=rate)
            yield Known(f"sampled inside, {rate:g}", epsilon, mechanism_of(dp_sgd(noise, rate), size=SIZE), inside)
        noise = solved(lambda z: sampled_epsilon(1 / z, 0.1, DELTA), epsilon)
        outside = Play(relation="add-remove", delta=DELTA, rate=0.1)
        yield Known("sampled outside, 0.1", epsilon, mechanism_of(dp_sgd(noise), size=SIZE), outside)


def row(case: Known, runs: int) -> dict[str, Any]:
    """Test one mechanism so many times."""
    found: list[Measured] = [measure(case.mechanism, case.play, seed=seed) for seed in range(runs)]
    bounds = np.array([each.bound.draw for each in found])
    above, enough = int((bounds > case.epsilon).sum()), int((bounds >= ENOUGH * case.epsilon).sum())
    shares = bounds / case.epsilon
    return {
        "mechanism": case.name,
        "epsilon": case.epsilon,
        "runs": runs,
        "above": above / runs,
        "above_interval": clopper_pearson(above, runs),
        "share": float(shares.mean()),
        "share_interval": [float(end) for end in np.quantile(shares, [0.025, 0.975])],
        "reached_60": enough / runs,
        "reached_60_interval": clopper_pearson(enough, runs),
        "by_counting_alone": float(np.mean([each.counting for each in found]) / case.epsilon),
        "by_shape": float(np.mean([each.method != "counting" for each in found])),
    }


def main() -> None:
    """Print a line of the table for each mechanism, and at the end all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    rows = []
    print("| mechanism | ε | bound above ε | share of ε found | reached 60 % | by counting alone |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    for case in known():
        line = row(case, runs)
        rows.append(line)
        low, high = line["above_interval"]
        least, most = line["share_interval"]
        print(
            f"| {line['mechanism']} | {line['epsilon']:g} | {line['above']:.1%} ({low:.1%}–{high:.1%}) | "
            f"{line['share']:.0%} ({least:.0%}–{most:.0%}) | {line['reached_60']:.1%} | "
            f"{line['by_counting_alone']:.0%} |",
            flush=True,
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
