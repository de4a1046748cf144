"""Lower bounds on ε from one run beside jax_privacy's auditing, on the same scores of canaries with a fair coin each.

The scores are those of a Gaussian mechanism, whose ε is known: a bound is told as the share of it that it shows. Each
may be too high in one of twenty runs. Bounds that assume nothing stand beside each other, and bounds that assume a
shape. Those of jax_privacy that assume one are its trade-off curve of a Gaussian mechanism (Mahloujifar et al. 2024),
and its bound by the best threshold.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.claims.canaries.bounds import SampledNull, bound_by_extremes, bound_by_ranks, bound_by_shape
from fedattack.claims.tester import LEVEL
from fedattack.privacy.gaussian import epsilon_of
from tests.benchmarks.peers.getting import JAX_PRIVACY, PeerMissingError, load_file
from tests.benchmarks.peers.rows import Method, Row, beside, by_value, missing_row

DELTA = 1e-5
RUNS = 10
CANARIES = (200, 1000)
SHIFTS = (0.5, 1.0, 2.0, 4.0)
"""Standard deviations by which a canary that is in stands above one that is out."""

FREE, SHAPED = "ours, by guesses", "ours, by shape"

Floats = NDArray[np.float64]
Bound = Callable[[Floats, NDArray[np.bool_]], float]


def _bound_by_shape(scores: Floats, included: NDArray[np.bool_]) -> float:
    inside, null = scores[included], SampledNull(scores[~included])
    return max(0.0, bound_by_shape(inside, null, DELTA), bound_by_ranks(inside, null, DELTA))


OURS: dict[str, Bound] = {
    FREE: lambda scores, included: bound_by_extremes(scores, included, DELTA)[0],
    SHAPED: _bound_by_shape,
}


def peer_bounds(peers: Path | None) -> dict[str, tuple[Bound, str]]:
    """Return jax_privacy's bounds, and which of ours each is held against.

    Raises
    ------
    PeerMissingError
        If they cannot be had or imported.
    """
    module = load_file(JAX_PRIVACY.find(peers) / "jax_privacy" / "auditing.py")
    half = module.Split(seed=0)
    error = 1 - LEVEL

    def audited(name: str, **options: Any) -> Bound:
        def bound(scores: Floats, included: NDArray[np.bool_]) -> float:
            auditor = module.CanaryScoreAuditor(scores[included], scores[~included])
            return float(getattr(auditor, name)(error, DELTA, **options))

        return bound

    return {
        "one run, all thresholds": (audited("epsilon_one_run"), FREE),
        "one run, half for the threshold": (audited("epsilon_one_run", threshold_strategy=half), FREE),
        "f-DP, all thresholds": (audited("epsilon_one_run_fdp"), SHAPED),
        "f-DP, half for the threshold": (audited("epsilon_one_run_fdp", threshold_strategy=half), SHAPED),
        "Gaussian, best threshold": (audited("epsilon_from_gdp"), SHAPED),
        "Clopper-Pearson, best threshold": (audited("epsilon_clopper_pearson"), SHAPED),
    }


def rows(peers: Path | None, runs: int = RUNS) -> Iterator[Row]:
    """Yield the share of ε that each bound shows, and by how much that of ours is above it."""
    theirs: dict[str, tuple[Bound, str]] = {}
    missing = ""
    try:
        theirs = {f"jax_privacy, {name}": bound for name, bound in peer_bounds(peers).items()}
    except PeerMissingError as cause:
        missing = str(cause)
    for count in CANARIES:
        for shift in SHIFTS:
            epsilon = epsilon_of(shift, DELTA)
            setting = f"{count} canaries, ε = {epsilon:.1f}"
            draws = [_draw(count, shift, seed) for seed in range(runs)]
            shares: dict[str, list[float]] = {}
            for name, bound in {**OURS, **{name: bound for name, (bound, _) in theirs.items()}}.items():
                method = Method(name, f"{runs} runs")
                shares[name] = [100 * method.run(bound, *draw) / epsilon for draw in draws]
                value, low, high = by_value(shares[name], (0.0, np.inf))
                row: Row = {"setting": setting, "method": name, "unit": "%", "budget": method.budget}
                row |= {"value": value, "low": low, "high": high, "seconds": method.typical_seconds()}
                if name in theirs:
                    ours = theirs[name][1]
                    apart = [mine - other for mine, other in zip(shares[ours], shares[name], strict=True)]
                    row |= beside(f"{ours}, less this", apart)
                yield row
            if missing:
                yield missing_row(setting, "jax_privacy", missing)


def _draw(count: int, shift: float, seed: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Draw coins, and what a Gaussian mechanism shows of them."""
    rng = np.random.default_rng(seed)
    included = rng.random(count) < 0.5
    return rng.normal(size=count) + shift * included, included
