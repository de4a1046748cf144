"""Rows of the table: what a method reached, at which cost, and by how much it is above a peer on the same examples."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.intervals import paired_interval, rate_interval, t_interval

Row = dict[str, Any]
Result = TypeVar("Result")


@dataclass
class Method:
    """What one method reached in one setting.

    Attributes
    ----------
    name
        ``ours, …``, or the peer's.
    budget
        How often what is costly was computed.
    right
        For each seed whether each example was told right, or the share of it (n,).
    seconds
        Processor time of each turn.
    """

    name: str
    budget: str
    right: list[NDArray[np.float64]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do a turn of the work, and note the processor time that it took."""
        began = time.process_time()
        result = work(*arguments)
        self.seconds.append(time.process_time() - began)
        return result

    def row(self, setting: str, other: "Method | None" = None) -> Row:
        """Return the rate with its 95 % interval over runs like these, and by how much it is above another method's.

        The difference is paired by examples where each of them is right or wrong, and else by seeds.
        """
        sums, sizes = [float(seed.sum()) for seed in self.right], [len(seed) for seed in self.right]
        low, high = rate_interval(sums, sizes)
        value = float(np.mean([seed.mean() for seed in self.right]))
        row: Row = {"setting": setting, "method": self.name, "unit": "%", "budget": self.budget}
        row |= {"value": _percent(value), "low": _percent(low), "high": _percent(high)}
        row["seconds"] = self.typical_seconds()
        if other is not None and other.right:
            row |= self._difference(other)
        return row

    def typical_seconds(self) -> float | None:
        """Return the median over the turns; ``None`` if none was timed."""
        return round(float(np.median(self.seconds)), 3) if self.seconds else None

    def _difference(self, other: "Method") -> Row:
        pairs = [*zip(self.right, other.right, strict=True)]
        if not all(np.isin(seed, (0, 1)).all() for seed in (*self.right, *other.right)):
            return beside(other.name, [100 * float(mine.mean() - theirs.mean()) for mine, theirs in pairs])
        alone = [int(((mine == 1) & (theirs == 0)).sum()) for mine, theirs in pairs]
        without = [int(((mine == 0) & (theirs == 1)).sum()) for mine, theirs in pairs]
        low, high = paired_interval(alone, without, [len(mine) for mine, _ in pairs])
        value = np.mean([mine.mean() - theirs.mean() for mine, theirs in pairs])
        ends = {"above": _percent(float(value)), "above_low": _percent(low), "above_high": _percent(high)}
        return {"beside": other.name, **ends}


def missing_row(setting: str, method: str, reason: object) -> Row:
    """Return the row of a peer that cannot be run."""
    return {"setting": setting, "method": method, "missing": str(reason)}


def shown(row: Row) -> list[str]:
    """Return a row's cells, as :data:`CELLS` names them; the difference is to the method behind the colon."""
    if "missing" in row:
        return [row["setting"], row["method"], f"not measured: {row['missing']}", "", "", ""]
    unit = row["unit"]
    reached = f"{row['value']:.1f} {unit} ({row['low']:.1f} to {row['high']:.1f})"
    seconds = "" if row["seconds"] is None else f"{row['seconds']:.2f} s"
    apart = ""
    if "above" in row:
        apart = f"{row['above']:+.1f} ({row['above_low']:.1f} to {row['above_high']:.1f}): {row['beside']}"
    return [row["setting"], row["method"], reached, seconds, row["budget"], apart]


CELLS = ("setting", "method", "success, 95 %", "processor time", "budget", "above by")


def by_value(values: Sequence[float], bounds: tuple[float, float] | None = None) -> tuple[float, float, float]:
    """Return the mean of independent values with its 95 % interval, which stays within the bounds."""
    low, high = t_interval([*values], bounds=bounds) if len(values) > 1 else (values[0], values[0])
    # Adding 0 takes the sign from −0.
    return round(float(np.mean(values)), 2) + 0.0, round(low, 2) + 0.0, round(high, 2) + 0.0


def beside(peer: str, apart: Sequence[float]) -> Row:
    """Return by how much a row is above that of another method, from differences that are paired."""
    value, low, high = by_value(apart)
    return {"beside": peer, "above": value, "above_low": low, "above_high": high}


def _percent(share: float) -> float:
    return round(100 * share, 2)
