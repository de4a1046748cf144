"""Says which findings of an audit are surely worse than those of an earlier one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from scipy.stats import norm

from fedattack.audit.finding import CANNOT_TELL, ERROR, Finding, in_units, p_in_words
from fedattack.audit.significance import adjust, share_error
from fedattack.base.errors import ConfigError

WORSE = "worse"
"""What ``fedattack compare --fail-if`` may ask."""


@dataclass(frozen=True)
class Change:
    """A finding that two audits have.

    Attributes
    ----------
    before, after
        The finding of the earlier audit, and that of the later one.
    p, p_adjusted
        How likely such a rise is where nothing changed, one-sided; and the same, corrected for all findings in common.
    """

    before: Finding
    after: Finding
    p: float
    p_adjusted: float

    @property
    def is_worse(self) -> bool:
        """Whether the rise is hardly an accident."""
        return self.p_adjusted <= ERROR

    @property
    def text(self) -> str:
        """The change in a few words."""
        values = [in_units(finding.value or 0.0, finding.units) for finding in (self.before, self.after)]
        return f"{self.after.name}: {values[0]} → {values[1]}, corrected {p_in_words(self.p_adjusted)}"

    def to_dict(self) -> dict[str, Any]:
        """Copy into what JSON can hold."""
        numbers = {"baseline": self.before.value, "new": self.after.value, "p": self.p, "p_adjusted": self.p_adjusted}
        return {"finding": self.after.name, **numbers, WORSE: self.is_worse}


def find_changes(before: Sequence[Finding], after: Sequence[Finding]) -> list[Change]:
    """Hold each finding of a later audit against the same finding of an earlier one.

    The intervals of both findings say how sure each value is. The wider half of each counts as so many standard errors,
    and the standard errors are added as those of independent values (Zou and Donner 2008, "Construction of confidence
    limits about effect measures", Statistics in Medicine 27). Both audits may ask of the same examples. Then this is
    careful: it sees less than there is. All findings are corrected together as those of a report are.

    Raises
    ------
    ConfigError
        If no finding can be compared; or if nothing is worse, and a headline of the earlier audit is not there any more
        or says nothing: a gate must not pass because there is nothing to see.
    """
    measured = {finding.name: finding for finding in after if _is_measured(finding)}
    pairs, lost = [], []
    for old in filter(_is_measured, before):
        new = measured.get(old.name)
        if new is not None and _subject_of(old) == _subject_of(new):
            pairs.append((old, new))
        elif old.headline:
            lost.append(old.name)
    if not pairs:
        raise ConfigError(
            f"--fail-if {WORSE}: the two audits have no tested finding in common; compare audits that ran the same "
            "attacks"
        )
    ps = list(starmap(_test_rise, pairs))
    adjusted = adjust(ps, share_error([new.headline for _, new in pairs]))
    changes = [Change(*pair, *both) for pair, both in zip(pairs, zip(ps, adjusted, strict=True), strict=True)]
    if lost and not any(change.is_worse for change in changes):
        raise ConfigError(
            f"--fail-if {WORSE}: the baseline has {', '.join(lost)}, which the new audit does not measure, so the gate "
            "can neither fail nor pass; run the same attacks in both audits"
        )
    return changes


def _is_measured(finding: Finding) -> bool:
    """Whether a finding has a value, an interval and a test; more of what is tested is worse."""
    return None not in (finding.value, finding.low, finding.high, finding.p) and finding.verdict != CANNOT_TELL


def _subject_of(finding: Finding) -> tuple[Any, ...]:
    """Return what a finding is about, beside its name."""
    return finding.view, finding.units, finding.series.get("asked")


def _test_rise(old: Finding, new: Finding) -> float:
    rise = (new.value or 0.0) - (old.value or 0.0)
    # Two audits are independent: their standard errors add by squares.
    spread = math.hypot(_standard_error(old), _standard_error(new))
    if spread == 0:
        return float(rise <= 0)
    # One-sided: how likely such a rise is if nothing got worse.
    return float(norm.sf(rise / spread))


def _standard_error(finding: Finding) -> float:
    value, low, high = finding.value or 0.0, finding.low or 0.0, finding.high or 0.0
    # The wider half: intervals need not be symmetric.
    return max(value - low, high - value) / float(norm.isf((1 - finding.level) / 2))
