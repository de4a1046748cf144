"""How good are bounds by canaries? On runs whose ε is known.

``python -m tests.benchmarks.canaries`` prints two tables:

- client canaries in runs of Flower's own central wrapper, with ``CanaryMod``, whose noise is what is claimed, and a
  tenth of it;
- canary examples in runs of DP-SGD, likewise.

It takes ten minutes on one core; ``--runs 20`` takes less.
"""

from __future__ import annotations

import argparse
import logging
import math
import tempfile
from pathlib import Path

import numpy as np

from fedattack.audit.intervals import clopper_pearson
from fedattack.claims import Claim
from fedattack.claims.accounting import compute_epsilon
from fedattack.claims.canaries import Canaries, CanaryResult, measure_canaries
from fedattack.privacy.gaussian import epsilon_of
from tests.benchmarks.claims import solved
from tests.claims.canaries.flower import Setting, run
from tests.claims.canaries.test_measure import example_claim, examples_run
from tests.claims.canaries.worlds import DELTA, central_claim

CANARIES = 20
ROUNDS = 5
COINS = 200
TENTH = 0.1


def row(name: str, epsilon: float, found: list[CanaryResult], more: list[CanaryResult]) -> None:
    """Print a row: of calibrated runs how many are above and what is found; of the others how many exceed the claim."""
    bounds = np.array([each.bound_run for each in found])
    estimates = np.array([each.estimate for each in found])
    above, exceed = int((bounds > epsilon).sum()), sum(each.bound_run > epsilon for each in more)
    low, high = clopper_pearson(above, len(bounds))
    least, most = np.quantile(bounds / epsilon, [0.025, 0.975])
    print(
        f"| {name} | {epsilon:.3g} | {above} of {len(bounds)} ({low:.1%}–{high:.1%}) | {np.mean(bounds / epsilon):.0%} "
        f"({least:.0%}–{most:.0%}) | {np.median(estimates):.3g} | {exceed} of {len(more)} | "
        f"{np.median([each.bound_run for each in more]):.3g} |",
        flush=True,
    )


def of_clients(claim: Claim, noise: float, seeds: range) -> tuple[list[CanaryResult], list[float]]:
    """Run Flower's wrapper; returns what canaries show, and accuracies."""
    found, accuracies = [], []
    for seed in seeds:
        canaries = Canaries(count=CANARIES, seed=seed, clip=1.0)
        with tempfile.TemporaryDirectory() as folder:
            record, accuracy = run(Path(folder) / "record", Setting(noise, canaries, rounds=ROUNDS, seed=seed))
            found.append(measure_canaries(record, canaries, claim))
        accuracies.append(accuracy)
    return found, accuracies


def without_canaries(noise: float, seeds: range) -> list[float]:
    """Run the same clients with the same noise on their mean, and no canaries; returns accuracies."""
    accuracies = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            setting = Setting(noise, None, rounds=ROUNDS, seed=seed)
            accuracies.append(run(Path(folder) / "record", setting)[1])
    return accuracies


def of_examples(claim: Claim, noise: float, seeds: range) -> list[CanaryResult]:
    """Run DP-SGD clients with canary examples."""
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            world = examples_run(Path(folder) / "record", noise=noise, count=COINS, seed=seed)
            canaries = Canaries(kind="example", count=COINS, seed=seed)
            found.append(measure_canaries(canaries=canaries, claim=claim, **world))
    return found


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    logging.getLogger("flwr").setLevel(logging.ERROR)
    few = max(2, runs // 4)
    print("| canaries | ε | bound above ε | share of ε found | estimate | a tenth: above | a tenth: bound |")
    print("|---|---|---|---|---|---|---|", flush=True)
    costs = []
    for epsilon in (2.0, 4.0, 8.0):
        noise = solved(lambda z, epsilon=epsilon: epsilon_of(math.sqrt(ROUNDS) / z, DELTA), epsilon)
        claim = central_claim(noise, CANARIES + 10, ROUNDS, epsilon=epsilon)
        found, with_them = of_clients(claim, noise, range(runs))
        row(f"{CANARIES} clients", epsilon, found, of_clients(claim, TENTH * noise, range(few))[0])
        costs.append((epsilon, np.mean(with_them), np.mean(without_canaries(noise, range(runs)))))
    for noise in (4.0, 2.0):
        claim = example_claim(noise)
        bounds = compute_epsilon(claim).run
        if bounds is None:
            raise AssertionError("the claim has all numbers")
        calibrated, little = of_examples(claim, noise, range(runs)), of_examples(claim, TENTH * noise, range(few))
        row(f"{COINS} coins", bounds.high, calibrated, little)
    print("\n| ε | accuracy with canaries | without |\n|---|---|---|")
    for epsilon, with_them, without in costs:
        print(f"| {epsilon:g} | {with_them:.1%} | {without:.1%} |")


if __name__ == "__main__":
    main()
