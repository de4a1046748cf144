"""What PROLIN could reach at best: how far a run's rounds tell clients apart, if who else has the property were known.

``python -m tests.benchmarks.property_limits RUN ...`` reads what ``fedattack audit prolin-...`` left in folders.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Scores, read_knowledge
from fedattack.audit.truth import read_truth
from fedattack.record import Record
from fedattack.record.folder import find_parts
from fedattack.threats.property.case import PropertyCase
from fedattack.threats.property.disaggregation import Array

ROUNDS = (1, 51, 101, 151, 201, 300)
COLUMNS = (*(f"{number:6}" for number in ROUNDS), "rounds leave", "own records", "spread seen")


def limits(scores: Scores, question: int, positive: NDArray[np.bool_]) -> tuple[Array, float, float, float]:
    """Return how far features with and without the property are apart, and what stands in the way.

    Returns
    -------
    distances : ndarray
        (rounds,): between the means, in standard deviations of a client without the property.
    rounds_leave : float
        A client's standard error after all rounds, each weighted by what it tells, where it is known which of the
        other clients have the property; mean over the clients, in distances between having it and not.
    own_records : float
        What a client's own records add in all rounds alike, so that no round averages it out; in the same unit.
    spread_seen : float
        Spread of the sums around what the detectors' densities and ``positive`` (clients,) make of them, as a share of
        the spread that the densities claim.
    """
    plus, minus, plus_sd, minus_sd = (
        scores.arrays[name][question].mean(axis=1) for name in ("plus_mean", "minus_mean", "plus_sd", "minus_sd")
    )
    A, G = scores.arrays["participation"], scores.arrays["sums"][question]
    distances = np.divide(plus - minus, minus_sd, out=np.zeros_like(plus), where=minus_sd > 0)
    told = (A**2 * (distances**2 / (A**2).sum(axis=1))[:, None]).sum(axis=0)
    own = np.sqrt(scores.facts["lasting"][question]) * distances.sum() / (distances**2).sum()
    claimed = np.sqrt((A**2 * np.where(positive, plus_sd[:, None], minus_sd[:, None]) ** 2).sum(axis=1))
    left = G - (A * np.where(positive, plus[:, None], minus[:, None])).sum(axis=1)
    seen = np.sqrt(np.mean((left[claimed > 0] / claimed[claimed > 0]) ** 2))
    return distances, float((told[told > 0] ** -0.5).mean()), float(own), float(seen)


def print_limits(run: Path) -> None:
    """Print a row for the questions that somebody is an answer to, and one for the others; means over them."""
    rows: dict[str, list[list[float]]] = {"held": [], "not held": []}
    for part in find_parts(run):
        scores, record = Scores.load(part.scores("prolin")), Record(part.record)
        case = PropertyCase(record.seed or 0, scores, read_truth(part.truth), record, read_knowledge(part.knowledge))
        for question, positive in enumerate(case.positives):
            distances, *errors = limits(scores, question, positive)
            by_round = dict(zip(scores.facts["rounds"], distances, strict=True))
            row = [*(by_round.get(number, np.nan) for number in ROUNDS), *errors]
            rows["held" if positive.any() else "not held"].append(row)
    for name, found in rows.items():
        if found:
            means = np.mean(found, axis=0)
            numbers = (f"{value:{len(title)}.2f}" for title, value in zip(COLUMNS, means, strict=True))
            print(f"{run.name:20} {name:8} {len(found):3}", *numbers)


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders with scores of PROLIN")
    runs = parser.parse_args(words).runs
    print(f"{'run':20} {'':8}   n", *COLUMNS)
    for run in runs:
        print_limits(run)


if __name__ == "__main__":
    main()
