"""Read a cell's numbers off what the audit wrote about it, and hold them against the paper's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

import numpy as np

from fedattack.audit.finding import PROPORTION, Finding
from fedattack.audit.intervals import t_interval
from fedattack.grids.reproduce.spec import Number, Stated

_LEVEL = 0.95
_OF_A_FINDING = ("value", "seed_mean", "seed_sd", "low", "high", "level", "comparisons", "chance", "null", "n")


def measure(
    number: Number, findings: Sequence[Finding], run: Mapping[str, Any], paper: Stated | None = None
) -> dict[str, Any]:
    """Find a number of a run.

    Returns
    -------
    dict
        ``value``, ``seed_mean``, ``seed_sd``, ``low`` and ``high`` of the interval at ``level``, ``comparisons`` that
        it is corrected for, ``chance``, ``null``, ``n``, ``seeds``, ``paper`` and ``difference``, our mean over seeds
        less the paper's; None where there is none. Proportions are in 0 … 1.
    """
    measured: dict[str, Any] = dict.fromkeys((*_OF_A_FINDING, "seeds"))
    if number.finding:
        measured |= _of_finding(number, findings)
    elif number.curve:
        measured |= _of_curve(number.curve, run, number.units)
    else:
        measured |= _of_fact(number.fact, run)
    ours = measured["value"] if measured["seed_mean"] is None else measured["seed_mean"]
    measured["paper"] = None if paper is None else asdict(paper)
    measured["difference"] = None if paper is None or ours is None else ours - paper.mean
    return measured


def _finding(number: Number, findings: Sequence[Finding]) -> Finding | None:
    return next((finding for finding in findings if finding.name == number.finding), None)


def per_round(number: Number, findings: Sequence[Finding]) -> Any:
    """Return the series of a finding that gives its value in each round, or None."""
    finding = _finding(number, findings)
    return None if finding is None else finding.series.get("per_round")


def training_records(run: Mapping[str, Any]) -> int | None:
    """Count the training examples that the clients of the first seed hold."""
    return int(np.sum(run["holdings"]["counts"])) if "holdings" in run else None


def _of_finding(number: Number, findings: Sequence[Finding]) -> dict[str, Any]:
    finding = _finding(number, findings)
    if finding is None:
        return {}
    if number.baseline:
        return {"value": finding.baselines.get(number.baseline), "n": finding.n, "seeds": len(finding.seeds)}
    values = attrgetter(*_OF_A_FINDING)(finding)
    return dict(zip(_OF_A_FINDING, values, strict=True)) | {"seeds": len(finding.seeds)}


def _of_curve(name: str, run: Mapping[str, Any], units: str) -> dict[str, Any]:
    ends = []
    for values in run[name]["seeds"].values() if name in run else ():
        known = [value for value in values if value is not None]
        ends += known[-1:]
    if not ends:
        return {}
    mean = float(np.mean(ends))
    measured: dict[str, Any] = {"value": mean, "seed_mean": mean, "seeds": len(ends)}
    if len(ends) > 1:
        low, high = t_interval(ends, _LEVEL, bounds=_bounds(name, units))
        measured |= {"seed_sd": float(np.std(ends, ddof=1)), "low": low, "high": high}
        measured |= {"level": _LEVEL, "comparisons": 1}
    return measured


def _bounds(name: str, units: str) -> tuple[float, float] | None:
    """Return between which numbers a curve stays: a loss is not negative; R², which has no units either, may be."""
    if units == PROPORTION:
        return 0.0, 1.0
    return (0.0, math.inf) if name == "loss" else None


def _of_fact(keys: str, run: Mapping[str, Any]) -> dict[str, Any]:
    value: Any = run
    for key in keys.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return {"value": float(value)} if isinstance(value, int | float) else {}
