"""Read a cell's numbers off what the audit wrote about it, and hold them against the paper's."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fedattack.attacks.threat import ADAPTIVE
from fedattack.audit.finding import PROPORTION, Finding
from fedattack.audit.intervals import LEVEL, t_interval
from fedattack.grids.cell import Number, Stated
from fedattack.report.words import NOTHING

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
    measured: dict[str, Any] = dict.fromkeys((*_OF_A_FINDING, "seeds", "paper", "difference"))
    if number.finding:
        measured |= _find_number(number, findings)
    elif number.curve:
        measured |= _read_curve(number, run)
    else:
        measured |= _read_fact(number.fact, run)
    if paper is not None:
        ours = middle_of(measured)
        measured["paper"] = asdict(paper)
        if ours is not None:
            measured["difference"] = ours - paper.mean
    return measured


def middle_of(measured: Mapping[str, Any]) -> float | None:
    """Return the mean over seeds of a measured number, or else its value."""
    middle: float | None = measured["seed_mean"]
    return measured["value"] if middle is None else middle


def write_measured(number: Number, measured: Mapping[str, Any]) -> str:
    """Write a measured number, such as ``25.0 ± 1.2 (21.3–28.6)``."""
    if measured["value"] is None:
        return NOTHING
    text = write_spread(number, middle_of(measured), measured["seed_sd"])
    if measured["low"] is None or measured["high"] is None:
        return text
    return f"{text} ({write_scaled(number, measured['low'])}–{write_scaled(number, measured['high'])})"


def write_spread(number: Number, mean: float | None, sd: float | None) -> str:
    """Write a mean with its standard deviation, if it has one."""
    if sd is None:
        return write_scaled(number, mean)
    return f"{write_scaled(number, mean)} ± {write_scaled(number, sd)}"


def write_scaled(number: Number, value: float | None, form: str = ".1f") -> str:
    """Write a value of a number as it is shown."""
    if value is None:
        return NOTHING
    # A minus sign in place of a hyphen.
    return f"{number.scale * value:{form}}".replace("-", "−")


def find_finding(number: Number, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding behind a number, if there is one."""
    return next((finding for finding in findings if finding.name == number.finding), None)


def per_round(number: Number, findings: Sequence[Finding]) -> Any:
    """Return the series of a finding that gives its value in each round, or None."""
    finding = find_finding(number, findings)
    return finding and finding.series.get("per_round")


def count_training_records(run: Mapping[str, Any]) -> int | None:
    """Count the training examples that the clients of the first seed hold."""
    return int(np.sum(run["holdings"]["counts"])) if "holdings" in run else None


def add_twins(findings: Sequence[Finding], others: Iterable[Finding]) -> list[Finding]:
    """Add to the findings of a run without a defence those of attackers who know of one, which other runs have.

    Without a defence there is nothing to know of: they find what the attacker finds who does not know.
    """
    known = {finding.name: finding for finding in findings}
    for finding in others:
        # A run without a defence has no attacker who knows of one: the blind attacker is its twin.
        blind = known.get(finding.name.removesuffix(ADAPTIVE))
        if finding.name.endswith(ADAPTIVE) and finding.name not in known and blind is not None:
            twin = replace(blind, metric=finding.metric, label=finding.label, headline=finding.headline)
            known[finding.name] = twin
    return list(known.values())


def read_finding(finding: Finding) -> dict[str, Any]:
    """Read the numbers of a finding, with how many seeds they are of."""
    measured = {key: getattr(finding, key) for key in _OF_A_FINDING}
    return measured | {"seeds": len(finding.seeds)}


def _find_number(number: Number, findings: Sequence[Finding]) -> dict[str, Any]:
    finding = find_finding(number, findings)
    if finding is None:
        return {}
    if number.baseline:
        return {"value": finding.baselines.get(number.baseline), "n": finding.n, "seeds": len(finding.seeds)}
    return read_finding(finding)


def _read_curve(number: Number, run: Mapping[str, Any]) -> dict[str, Any]:
    """Read where a curve ends in each seed."""
    ends: list[float] = []
    for values in run.get(number.curve, {"seeds": {}})["seeds"].values():
        # A model that diverged, or was not evaluated in the last round, ends where it was last finite.
        known = [value for value in values if value is not None]
        # The last value that is known, if there is any.
        ends += known[-1:]
    if not ends:
        return {}
    mean = float(np.mean(ends))
    measured: dict[str, Any] = {"value": mean, "seed_mean": mean, "seeds": len(ends)}
    if len(ends) > 1:
        # Seeds are few, and their ends about normal: Student's t.
        low, high = t_interval(ends, LEVEL, bounds=_bounds_of(number))
        measured |= {"seed_sd": float(np.std(ends, ddof=1)), "low": low, "high": high}
        measured |= {"level": LEVEL, "comparisons": 1}
    return measured


def _bounds_of(number: Number) -> tuple[float, float] | None:
    """Return between which numbers a curve stays: a loss is not negative; R², which has no units either, may be."""
    if number.units == PROPORTION:
        return 0.0, 1.0
    if number.curve == "loss":
        return 0.0, math.inf
    return None


def _read_fact(keys: str, run: Mapping[str, Any]) -> dict[str, Any]:
    value: Any = run
    for key in keys.split("."):
        if not isinstance(value, Mapping):
            return {}
        value = value.get(key)
    if isinstance(value, int | float):
        return {"value": float(value)}
    return {}
