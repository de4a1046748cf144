"""What the judges of different attacks sum up alike: nulls, how well confidence is kept, and what a mean hides."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import Null
from fedattack.audit.intervals import LEVEL, rate_interval
from fedattack.audit.truth import Truth

BINS = 10
"""Classes of equal width into which confidence is sorted."""

SCORE_BINS = 24
"""Classes of equal width into which scores are sorted."""

# Share of all scores that may lie beyond the edges of a histogram, so that a few far away do not hide the others.
_BEYOND = 0.01
_MOST_PARTS = 100
# One in ten of all targets is among the surest.
_TENTH = 10
_FEWEST_SURE = 5
_TIES = 16
"""Stream of the draws that order targets of which an attack is equally sure."""


def null_of(draws: Sequence[float], n: int) -> Null:
    """Sum up a null's draws: their mean, the interval that holds 95 % of them, and how many targets."""
    low, high = np.quantile(draws, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    mean = fmean(draws)
    return {"value": mean, "low": min(float(low), mean), "high": max(float(high), mean), "n": n}


def null_rate(successes_per_seed: Sequence[float], n_per_seed: Sequence[int], comparisons: int = 1) -> Null | None:
    """Sum up how often a null succeeded, as :func:`~fedattack.audit.intervals.rate_interval` does.

    ``None`` where a seed has no null targets, or there is no seed.
    """
    if not n_per_seed or not all(n_per_seed):
        return None
    low, high = rate_interval(successes_per_seed, n_per_seed, comparisons=comparisons)
    n = sum(n_per_seed)
    return {"value": sum(successes_per_seed) / n, "low": low, "high": high, "n": n}


def histogram(with_it: NDArray[np.float64], without: NDArray[np.float64]) -> dict[str, Any]:
    """Sort the scores (n,), (m,) of what is sought, and of what is not, into bins that both share.

    There are :data:`SCORE_BINS` of equal width between ``edges``; ``positive`` and ``negative`` count the scores in
    each. A hundredth of all scores may lie beyond the edges, and count in the outermost bins. Empty where a group is,
    or where no score is finite.
    """
    both = np.concatenate([with_it, without])
    finite = both[np.isfinite(both)]
    if not len(finite) or not len(with_it) or not len(without):
        return {}
    # Outer scores go into the first and the last bin: nothing is dropped.
    low, high = np.quantile(finite, (_BEYOND / 2, 1 - _BEYOND / 2)).tolist()
    if high <= low:
        high = low + 1
    edges = np.linspace(low, high, SCORE_BINS + 1)
    counts = {"edges": edges.tolist()}
    for name, scores in (("positive", with_it), ("negative", without)):
        bins = np.searchsorted(edges, scores, side="right") - 1
        counts[name] = np.bincount(bins.clip(0, SCORE_BINS - 1), minlength=SCORE_BINS).tolist()
    return counts


def reliability(sure: NDArray[np.float64], right: NDArray[Any]) -> dict[str, Any]:
    """Hold stated confidence (n,) in 0 … 1 against success (n,).

    Returned are mean ``confidence``, ``accuracy`` and ``count`` of each of :data:`BINS` bins that has answers, and the
    expected calibration error ``ece``.
    """
    # A confidence of exactly 1 belongs to the last bin.
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    confidence, accuracy, count = [], [], []
    for index in np.unique(bins):
        inside = bins == index
        confidence.append(float(sure[inside].mean()))
        accuracy.append(float(right[inside].mean()))
        count.append(int(inside.sum()))
    error = 0.0
    for size, stated, correct in zip(count, confidence, accuracy, strict=True):
        # Expected calibration error: Guo et al. 2017, ICML, equation 3, bins weighted by their size.
        error += size * abs(stated - correct)
    return {"confidence": confidence, "accuracy": accuracy, "count": count, "ece": error / len(sure)}


def part_by_label(truth: Truth, labels: NDArray[Any]) -> dict[str, NDArray[np.str_]]:
    """Part targets by their labels (n, …), by name where these have names; those of a regression part nothing."""
    if labels.ndim != 1 or not len(labels) or not np.issubdtype(labels.dtype, np.integer):
        return {}
    # Labels without names, as in a record of somebody else, stand as numbers.
    if labels.min() >= 0 and labels.max() < len(truth.classes):
        return {"label": np.array(truth.classes, dtype=np.str_)[labels]}
    return {"label": labels.astype(np.str_)}


def part_by_client(truth: Truth, clients: Sequence[str]) -> dict[str, NDArray[np.str_]]:
    """Part targets (n,) by the private attributes of the clients that hold them, such as sites."""
    parts = {}
    for attribute, values in truth.private.items():
        of_client = dict(zip(truth.clients, np.array(values.names)[list(values.values)], strict=True))
        parts[attribute] = np.array([of_client.get(client, "unknown") for client in clients], dtype=np.str_)
    return parts


def rate_populations(
    seeds: Iterable[tuple[NDArray[np.float64], Mapping[str, NDArray[np.str_]]]],
) -> list[dict[str, Any]]:
    """Rate each part of the population for ``series["populations"]``, the highest rate of each kind first.

    The intervals are widened for all parts: they hold together. A kind of which there is one part says nothing, and is
    left out, as is one of very many.

    Parameters
    ----------
    seeds
        Of each seed its targets' credit (n,) in [0, 1], and by kind the name of each target's part (n,).
    """
    credit: dict[str, dict[str, list[NDArray[np.float64]]]] = defaultdict(lambda: defaultdict(list))
    for of_seed, parted in seeds:
        for kind, parts in parted.items():
            for name in np.unique(parts).tolist():
                credit[kind][name].append(of_seed[parts == name])
    # A kind with one part compares nothing; one with very many, such as identifiers, is no list for people.
    kinds = {kind: parts for kind, parts in credit.items() if 1 < len(parts) <= _MOST_PARTS}
    # Every part that is shown counts as a comparison.
    comparisons = sum(map(len, kinds.values()))
    entries: list[dict[str, Any]] = []
    for kind, by_name in kinds.items():
        rated = [{"kind": kind, "name": name} | _rate(of_seeds, comparisons) for name, of_seeds in by_name.items()]
        entries += sorted(rated, key=lambda entry: -entry["value"])
    return entries


def _rate(credit: Sequence[NDArray[np.float64]], comparisons: int = 1) -> dict[str, Any]:
    """Rate the credit (n,) of the targets of each seed, none of which lacks targets."""
    hits, sizes = [float(of_seed.sum()) for of_seed in credit], list(map(len, credit))
    low, high = rate_interval(hits, sizes, comparisons=comparisons)
    return {"value": sum(hits) / sum(sizes), "low": low, "high": high, "n": sum(sizes)}


def rate_surest(
    seeds: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], seed: int, chance: float
) -> Mapping[str, Any]:
    """Rate the tenth of the targets of which the attack was surest, for ``series["surest"]``; empty if that is too few.

    The tenth is fixed in advance, and the attack chooses without the truth, so that nothing is to be paid for choosing.
    For each seed it is given how sure the attack was (n,), and whether it was right (n,), in [0, 1]. ``seed`` orders
    targets of which it was equally sure.
    """
    draw = np.random.default_rng((seed, _TIES))
    credit = []
    for sure, right in seeds:
        # Shuffled before a stable sort: ties are broken at random, and not by the order of the targets.
        order = draw.permutation(len(sure))
        order = order[np.argsort(-sure[order], kind="stable")]
        credit.append(right[order[: len(order) // _TENTH]].astype(np.float64))
    if min(map(len, credit), default=0) < _FEWEST_SURE:
        return {}
    return _rate(credit) | {"chance": chance}
