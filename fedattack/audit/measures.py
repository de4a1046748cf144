"""Measures: what a judge states of an attack, each a small function that is registered with its metric and its label.

A measure says what is counted, and what it is held against. The base of all judges makes the finding: verdict, words,
and the facts that all findings carry.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import NOT_APPLICABLE, PROPORTION, Null, ReadOff
from fedattack.audit.intervals import here_of, mean_interval, rate_interval
from fedattack.audit.roc import Estimate, curve
from fedattack.audit.significance import Significance
from fedattack.audit.summaries import histogram, null_rate
from fedattack.base.reasons import Reason

Floats = NDArray[np.float64]

Interval = tuple[float, float] | tuple[None, None]

UNKNOWN: Interval = (None, None)
"""The interval of a number that has none."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a measure found.

    Attributes
    ----------
    value, n
        The number, ``None`` where there is none, and of how many targets it is.
    interval, here
        Its interval about runs like these; and that about these very runs, where it is another one.
    reason
        What is said before the verdict's grounds.
    grounds
        What is said before that, such as whose data the targets are.
    test
        How likely so much is by accident.
    chance, null, baselines, units, series
        As in a :class:`~fedattack.audit.finding.Finding`.
    bars
        What must be exceeded beside chance.
    by_seed
        The value of each seed.
    chosen_among
        Among how many it was chosen after seeing them; ``None`` if it was fixed in advance.
    verdict
        Where there is nothing to test, the verdict; ``reason`` then says all.
    read_off
        As in a :class:`~fedattack.audit.finding.Finding`: what is certain makes it a leak.
    metric, label
        Where they depend on the data; empty for those of the measure.
    """

    value: float | None
    n: int
    reason: str
    interval: Interval = UNKNOWN
    here: Interval = UNKNOWN
    test: Significance | None = None
    chance: float | None = None
    null: Null | None = None
    bars: Mapping[str, float] = field(default_factory=dict)
    baselines: Mapping[str, float] = field(default_factory=dict)
    units: str = PROPORTION
    series: Mapping[str, Any] = field(default_factory=dict)
    by_seed: Sequence[float] = ()
    chosen_among: int | None = None
    verdict: str = ""
    grounds: Sequence[Reason] = ()
    read_off: ReadOff | None = None
    metric: str = ""
    label: str = ""


def no_value(reason: str, **parts: Any) -> Measurement:
    """Say why there is nothing to measure."""
    return Measurement(value=None, n=0, reason=reason, verdict=NOT_APPLICABLE, **parts)


@dataclass(frozen=True)
class Measure:
    """A registered measure: its metric, perhaps with ``*`` for what depends on the data, its label, and what finds it.

    It may find nothing (``None``), or several numbers with metrics of their own.
    """

    metric: str
    label: str
    headline: bool
    find: Callable[[Any], Measurement | Iterable[Measurement] | None]

    def found_by(self, judge: Any) -> list[Measurement]:
        """Return what it finds of a judge's cases."""
        measured = self.find(judge)
        if measured is None:
            return []
        if isinstance(measured, Measurement):
            return [measured]
        # A generator of measurements is used up here.
        return list(measured)


def measure(
    metric: str, label: str = "", *, headline: bool = False
) -> Callable[[Callable[[Any], Measurement | Iterable[Measurement] | None]], Measure]:
    """Register a function of a judge's cases as a measure; findings stand in the order of the functions."""

    # The decorator puts a Measure in the place of the function; the judge's class collects these.
    def register(find: Callable[[Any], Measurement | Iterable[Measurement] | None]) -> Measure:
        return Measure(metric, label, headline, find)

    return register


@dataclass(frozen=True)
class Rate:
    """Successes among targets, seed by seed; ties may make them fractional."""

    hits: Sequence[float]
    sizes: Sequence[int]

    @classmethod
    def of(cls, credit: Iterable[NDArray[Any]]) -> "Rate":
        """Count the credit (n,) of the targets of each seed."""
        hits, sizes = [], []
        for of_seed in credit:
            hits.append(float(of_seed.sum()))
            sizes.append(len(of_seed))
        return cls(hits, sizes)

    @property
    def n(self) -> int:
        """How many targets there are over all seeds."""
        return sum(self.sizes)

    @property
    def value(self) -> float:
        """The rate over all seeds."""
        return sum(self.hits) / self.n

    @property
    def by_seed(self) -> list[float]:
        """The rate of each seed."""
        return [hits / size for hits, size in zip(self.hits, self.sizes, strict=True)]

    @property
    def here(self) -> Interval:
        """The interval about these very runs, where there are several."""
        return here_of(self.hits, self.sizes) or UNKNOWN

    def interval(self, comparisons: int = 1) -> tuple[float, float]:
        """Return the interval about runs like these."""
        return rate_interval(self.hits, self.sizes, comparisons=comparisons)

    def as_entry(self, comparisons: int = 1) -> dict[str, Any]:
        """Return value, interval and number of targets as a series holds them, widened for so many comparisons."""
        low, high = self.interval(comparisons)
        return {"value": self.value, "low": low, "high": high, "n": self.n}

    def null(self, comparisons: int = 1) -> Null | None:
        """Sum it up as a null; ``None`` where a seed has no target."""
        return null_rate(self.hits, self.sizes, comparisons)

    def measured(self, reason: str, **parts: Any) -> Measurement:
        """Make it what a measure found; see :class:`Measurement`."""
        numbers: dict[str, Any] = {"value": self.value, "n": self.n, "interval": self.interval(), "here": self.here}
        # What the caller states wins over what the rate gives.
        return Measurement(reason=reason, **(numbers | parts))


def separate(with_it: NDArray[np.float64], without: NDArray[np.float64], *, band: bool = False) -> dict[str, Any]:
    """Return the series that show how scores tell what is sought from what is not: a ROC curve and a histogram."""
    return {"roc": curve(with_it, without, band=band), "scores": histogram(with_it, without)}


@dataclass(frozen=True)
class Sides:
    """Scores (n,) of what is sought and (m,) of what is not, seed by seed."""

    seeds: Sequence[tuple[Floats, Floats]]

    @cached_property
    def pooled(self) -> tuple[Floats, Floats]:
        """The scores of all seeds."""
        sought, others = zip(*self.seeds, strict=True)
        return np.concatenate(sought), np.concatenate(others)

    def over_runs(
        self, estimate: Callable[[Floats, Floats], Estimate], value: Callable[[Floats, Floats], float]
    ) -> Estimate:
        """Widen the interval of these runs to that of runs like these, whose models differ.

        `estimate` gives the number with its interval, of all seeds; `value` without, of one.
        """
        here = estimate(*self.pooled)
        low, high = mean_interval(list(starmap(value, self.seeds)), (here.low, here.high))
        # Value of all seeds pooled, and an interval that is never narrower than that of these runs.
        return Estimate(here.value, low, high)

    def measured(
        self,
        reason: str,
        estimate: Callable[[Floats, Floats], Estimate],
        value: Callable[[Floats, Floats], float],
        **parts: Any,
    ) -> Measurement:
        """Make it what a measure found; parameters are those of :meth:`over_runs` and of :class:`Measurement`."""
        found, here = self.over_runs(estimate, value), UNKNOWN
        # One run's interval about itself is the one that is shown already.
        if len(self.seeds) > 1:
            these = estimate(*self.pooled)
            here = these.low, these.high
        return Measurement(
            reason=reason,
            value=found.value,
            n=len(self.pooled[0]),
            interval=(found.low, found.high),
            here=here,
            by_seed=list(starmap(value, self.seeds)),
            **parts,
        )
