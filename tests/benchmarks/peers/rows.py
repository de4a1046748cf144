"""Rows of the table: what a method reached, at which cost, and by how much it is above a peer on the same examples."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.intervals import paired_interval, rate_interval, t_interval

Row = dict[str, Any]


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

    def run(self, work: Callable[[], Any]) -> Any:
        """Do a turn of the work, and note the processor time that it took."""
        began = time.process_time()
        result = work()
        self.seconds.append(time.process_time() - began)
        return result

    def row(self, setting: str, beside: "Method | None" = None) -> Row:
        """Return the rate with its 95 % interval over runs like these, and the difference to a peer.

        The difference is paired by examples, where each is right or wrong in both, and else by seeds.
        """
        sums, sizes = [float(seed.sum()) for seed in self.right], [len(seed) for seed in self.right]
        low, high = rate_interval(sums, sizes)
        value = float(np.mean([seed.mean() for seed in self.right]))
        row = {"setting": setting, "method": self.name, "unit": "%", "budget": self.budget}
        row |= {"value": _percent(value), "low": _percent(low), "high": _percent(high), "seconds": self.typical_seconds()}
        if beside is not None and beside.right:
            row |= {"beside": beside.name, **self._difference(beside)}
        return row

    def typical_seconds(self) -> float | None:
        """Return the median over the turns; ``None`` if none was timed."""
        return round(float(np.median(self.seconds)), 3) if self.seconds else None

    def _difference(self, beside: "Method") -> Row:
        apart = [ours.mean() - theirs.mean() for ours, theirs in zip(self.right, beside.right, strict=True)]
        value = float(np.mean(apart))
        by_example = all(len(ours) == len(theirs) for ours, theirs in zip(self.right, beside.right, strict=True))
        both = [*self.right, *beside.right]
        if by_example and all(np.isin(seed, (0, 1)).all() for seed in both):
            pairs = [*zip(self.right, beside.right, strict=True)]
            only_ours = [int(((ours == 1) & (theirs == 0)).sum()) for ours, theirs in pairs]
            only_theirs = [int(((ours == 0) & (theirs == 1)).sum()) for ours, theirs in pairs]
            low, high = paired_interval(only_ours, only_theirs, [len(ours) for ours, _ in pairs])
        elif len(apart) > 1:
            low, high = t_interval(apart)
        else:
            low = high = value
        return {"above": _percent(value), "above_low": _percent(low), "above_high": _percent(high)}


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


def by_value(values: Sequence[float]) -> tuple[float, float, float]:
    """Return a mean with its 95 % interval over independent values."""
    low, high = t_interval([*values])
    return round(float(np.mean(values)), 2), round(low, 2), round(high, 2)


def _percent(share: float) -> float:
    return round(100 * share, 2)
