"""Read a cell's numbers off what the audit wrote about it, and hold them against the paper's."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedattack.audit.finding import PROPORTION, Finding
from fedattack.audit.intervals import t_interval
from fedattack.reproduce.spec import Number, Stated

_LEVEL = 0.95


def measure(
    number: Number, findings: Sequence[Finding], run: Mapping[str, Any], paper: Stated | None = None
) -> dict[str, Any]:
    """Find a number of a run.

    Parameters
    ----------
    number
        Which.
    findings, run
        What the run's ``findings.json`` and ``run.json`` hold.
    paper
        What the paper states.

    Returns
    -------
    dict
        ``value``, ``seed_mean``, ``seed_sd``, ``low`` and ``high`` of the interval at ``level``, ``comparisons`` that
        it is corrected for, ``chance``, ``null``, ``n``, ``seeds``, ``paper`` and ``difference``, our mean over seeds
        less the paper's; None where there is none. Proportions are in 0 … 1.
    """
    kinds = ((number.finding, _of_finding), (number.curve, _of_curve), (number.fact, _of_fact))
    source, read = next((source, read) for source, read in kinds if source)
    found: dict[str, Any] = dict.fromkeys(
        ("value", "seed_mean", "seed_sd", "low", "high", "level", "comparisons", "chance", "null", "n", "seeds")
    )
    found |= read(source, findings, run, number.units)
    if number.baseline:
        found = dict.fromkeys(found) | {"value": _baseline(number, findings), "n": found["n"], "seeds": found["seeds"]}
    ours = found["value"] if found["seed_mean"] is None else found["seed_mean"]
    found["paper"] = None if paper is None else {"mean": paper.mean, "sd": paper.sd}
    found["difference"] = None if paper is None or ours is None else ours - paper.mean
    return found


def _baseline(number: Number, findings: Sequence[Finding]) -> float | None:
    return next((item.baselines.get(number.baseline) for item in findings if item.name == number.finding), None)


def per_round(number: Number, findings: Sequence[Finding]) -> Any:
    """Return the series of a finding that gives its value in each round, or None."""
    return next((finding.series.get("per_round") for finding in findings if finding.name == number.finding), None)


def training_records(run: Mapping[str, Any]) -> int | None:
    """Count the training records that the clients of the first seed hold."""
    return int(np.sum(run["holdings"]["counts"])) if "holdings" in run else None


def _of_finding(name: str, findings: Sequence[Finding], run: Mapping[str, Any], units: str) -> dict[str, Any]:
    keys = ("value", "seed_mean", "seed_sd", "low", "high", "level", "comparisons", "chance", "null", "n")
    for finding in findings:
        if finding.name == name:
            return {key: getattr(finding, key) for key in keys} | {"seeds": len(finding.seeds)}
    return {}


def _of_curve(name: str, findings: Sequence[Finding], run: Mapping[str, Any], units: str) -> dict[str, Any]:
    seeds = run[name]["seeds"].values() if name in run else ()
    known = [[value for value in values if value is not None] for values in seeds]
    ends = [values[-1] for values in known if values]
    if not ends:
        return {}
    found: dict[str, Any] = {"value": float(np.mean(ends)), "seed_mean": float(np.mean(ends)), "seeds": len(ends)}
    if len(ends) > 1:
        # A loss is not negative; R², which has no units either, may be.
        bounds = (0.0, 1.0) if units == PROPORTION else (0.0, math.inf) if name == "loss" else None
        low, high = t_interval(ends, _LEVEL, bounds=bounds)
        found |= {"seed_sd": float(np.std(ends, ddof=1)), "low": low, "high": high, "level": _LEVEL, "comparisons": 1}
    return found


def _of_fact(keys: str, findings: Sequence[Finding], run: Mapping[str, Any], units: str) -> dict[str, Any]:
    value: Any = run
    for key in keys.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return {"value": float(value)} if isinstance(value, int | float) else {}
