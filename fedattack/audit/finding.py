"""A finding: one measured number with all that is needed to judge it.

Findings are what the audit writes to ``findings.json`` and all that the report reads beside ``run.json``. The schema of
the file is ``fedattack/report/schema.json``.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, TypedDict

from fedattack.audit.card import card_of, line_of

# Whoever reads findings finds verdicts and units here, too.
from fedattack.audit.numbers import AUC as AUC
from fedattack.audit.numbers import PROPORTION as PROPORTION
from fedattack.audit.numbers import in_units as in_units
from fedattack.audit.verdicts import CANNOT_TELL as CANNOT_TELL
from fedattack.audit.verdicts import LEAK as LEAK
from fedattack.audit.verdicts import NO_EVIDENCE as NO_EVIDENCE
from fedattack.audit.verdicts import NOT_APPLICABLE as NOT_APPLICABLE
from fedattack.audit.verdicts import TOO_FEW as TOO_FEW
from fedattack.audit.verdicts import VERDICTS as VERDICTS
from fedattack.base.errors import ReportError
from fedattack.base.reasons import Reason, join_reasons

ERROR = 0.05
"""How often a report on nothing may show a leak; see :func:`fedattack.audit.significance.correct_findings`."""

BELOW_ERROR = 0.02
"""How often a report on nothing may say that something is far below guessing; see :mod:`fedattack.audit.below`."""

ONE_FEDERATION = "one federation"
"""Kind of the ground that a finding is tested on some of its runs alone: in others the same clients hold the same."""

CERTAIN = "certain"
"""Kind of the ground that the verdict comes from what was read off beyond doubt, whatever a test says."""

NAME = re.compile(r"[a-z0-9-]+")
# A metric may have a number with a point in it, such as tpr-at-0.1pct-fpr.
METRIC = re.compile(r"[a-z0-9-]+(?:\.[0-9][a-z0-9-]*)?")
# What findings of earlier reports have not.
_MAY_LACK = {"p_below", "read_off", "grounds"}

# Rates and their intervals are computed along different paths; a last-digit difference is no contradiction.
_ROUNDING = 1e-9


class Null(TypedDict):
    """The same attack's result where there is nothing to find: value, its interval, and the number of targets."""

    value: float
    low: float | None
    high: float | None
    n: int


class ReadOff(TypedDict):
    """What was read off, one by one: what one is called, how many are right, how many are certain, of how many clients.

    Each run counts its own clients. What is certain leaves no doubt, however few there are; see
    :mod:`fedattack.audit.readoff`.
    """

    what: str
    right: int
    certain: int
    clients: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Finding:
    """One measured number, its interval, what it is held against, and where it came from.

    Attributes
    ----------
    attack, metric
        Names of letters a-z, digits and hyphens; together the finding's name, such as ``sia.asr``.
    label
        Title for people.
    view
        What the server saw: ``individual`` or ``aggregate``.
    value, low, high
        The number and its interval at `level`, in `units`; None where it does not exist. A finding without a value is
        not applicable, or of no targets: what it asks about is never sent. Of several seeds the interval
        is about runs like these, of one seed about this very run, whose models are given. That of the most exposed
        client is about its run alone.
    here_low, here_high
        Of several seeds: the interval about these very runs. None where there is none.
    level
        Confidence level of the interval before the correction for `comparisons`.
    units
        ``proportion`` for a rate in [0, 1]; otherwise any text, empty for a bare number.
    n
        Number of targets over all seeds.
    seeds
        Seeds of the runs.
    chance
        What guessing gives, in `units`.
    null
        The same attack where there is nothing to find.
    baselines
        Further values to hold against the result, such as ``{"size prior": 0.14}``, in `units`.
    p, p_least, p_adjusted
        How likely so much is by accident in these runs, one-sided; the smallest such number that these data could have
        given; and the first corrected for all findings of the report, see
        :func:`fedattack.audit.significance.correct_findings`. None where nothing was tested. What is certain is a leak
        whatever `p` is, and has no `p_adjusted`.
    p_below
        The same as `p` of the other side: how likely so little is by accident. None where nothing was tested.
    verdict, reason
        One of :data:`VERDICTS`, and why, in words: those of the grounds, where these are given.
    grounds
        What the reason is made of, one by one.
    headline
        Whether this number was fixed in advance as the one that counts.
    selected_after_the_fact, comparisons
        Whether it was chosen by looking at the results, and among how many. The interval is corrected for these, or the
        number was chosen on one half of the targets and measured on the other.
    seed_mean, seed_sd
        Mean and standard deviation of the seeds' values; the deviation is None for one seed.
    series
        Numbers for figures and tables, such as ``per_round`` and ``per_client``.
    read_off
        Where single examples or words are read off: how many are right, and how many leave no doubt. None elsewhere.
    setting, provenance
        What was run, and with which versions.
    paper
        Where the attack or the measure comes from.

    Raises
    ------
    ReportError
        If the parts contradict each other, or a number is not finite.
    """

    attack: str
    metric: str
    label: str
    view: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    seeds: list[int]
    verdict: str
    reason: str = ""
    grounds: tuple[Reason, ...] = ()
    here_low: float | None = None
    here_high: float | None = None
    level: float = 0.95
    units: str = PROPORTION
    p: float | None = None
    p_least: float | None = None
    p_adjusted: float | None = None
    p_below: float | None = None
    chance: float | None = None
    null: Null | None = None
    baselines: dict[str, float] = field(default_factory=dict)
    headline: bool = False
    selected_after_the_fact: bool = False
    comparisons: int = 1
    seed_mean: float | None = None
    seed_sd: float | None = None
    series: dict[str, Any] = field(default_factory=dict)
    setting: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    paper: str = ""
    read_off: ReadOff | None = None

    def __post_init__(self) -> None:
        if not self.reason:
            # The dataclass is frozen; this is the one way to complete it.
            object.__setattr__(self, "reason", join_reasons(self.grounds))
        for part, pattern in ((self.attack, NAME), (self.metric, METRIC)):
            if not pattern.fullmatch(part):
                raise ReportError(
                    f"finding {self.name!r}: {part!r} is not a name; expected letters a-z, digits, hyphens"
                )
        ends = [end for end in (self.low, self.value, self.high) if end is not None]
        # The largest finding holds series of any depth; NaN anywhere in it would make an invalid JSON file.
        where = not_finite(vars(self))
        fault = ""
        if self.verdict not in VERDICTS:
            fault = f"the verdict is {self.verdict!r}; expected one of {', '.join(VERDICTS)}"
        elif not self.reason.strip():
            fault = "the reason is empty; expected the verdict's grounds in words"
        elif self.grounds and join_reasons(self.grounds) != self.reason:
            fault = "the reason is not made of the grounds; expected the same words"
        elif self.value is None and self.verdict != NOT_APPLICABLE and not self.asks_nothing:
            fault = f"it has no value but the verdict {self.verdict!r}; expected {NOT_APPLICABLE!r}"
        elif any(right < left - _ROUNDING for left, right in pairwise(ends)):
            fault = f"low, value, high are {self.low}, {self.value}, {self.high}; expected them in ascending order"
        elif self.selected_after_the_fact and self.headline:
            fault = "a headline is fixed in advance; expected at most one of headline and selected_after_the_fact"
        elif where:
            fault = f"{where} is not a finite number; expected finite numbers, or null where there is none"
        if fault:
            raise ReportError(f"finding {self.name}: {fault}")

    @property
    def name(self) -> str:
        """Attack and metric, as conditions name them: ``sia.asr``."""
        return f"{self.attack}.{self.metric}"

    def with_grounds(self, *grounds: Reason, **changes: Any) -> "Finding":
        """Return the finding with further grounds, and other parts changed."""
        # A finding of an earlier version has a reason without grounds.
        before = self.grounds or (Reason(self.reason),)
        return replace(self, reason="", grounds=(*before, *grounds), **changes)

    @property
    def null_value(self) -> float | None:
        """The null's value; None where there is no null."""
        return self.null and self.null["value"]

    @property
    def asks_nothing(self) -> bool:
        """Whether there was nothing that could be asked, such as no vector: no value, yet no leak is shown."""
        return self.value is None and self.n == 0 and self.verdict in (NO_EVIDENCE, CANNOT_TELL)

    @property
    def is_certain(self) -> bool:
        """Whether it is a leak by what was read off beyond doubt: no test decides, and no correction takes it back."""
        return self.verdict == LEAK and self.read_off is not None and self.read_off["certain"] > 0

    @property
    def certain(self) -> int:
        """How much of a leak is certain; 0 where nothing is."""
        return self.read_off["certain"] if self.is_certain and self.read_off is not None else 0

    @property
    def is_right_in_part(self) -> bool:
        """Whether something that was read off is right."""
        return self.read_off is not None and self.read_off["right"] > 0

    @property
    def may_be_accident(self) -> bool:
        """Whether no test, corrected for the other findings, says that so much is hardly found by accident."""
        return self.p_adjusted is None or self.p_adjusted > ERROR

    def __repr__(self) -> str:
        return f"<{line_of(self)}>"

    def _repr_html_(self) -> str:
        return card_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Copy into plain dicts, lists, numbers and strings that JSON can hold; NumPy values are converted."""
        return dict(_plain(vars(self) | {"grounds": list(map(vars, self.grounds))}))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Finding":
        """Build a finding from what :meth:`to_dict` gave.

        Raises
        ------
        ReportError
            If a key is unknown or missing, or the parts contradict each other.
        """
        known = {f.name for f in fields(cls)}
        # A key that is not known may change what the others mean: such a file is of a later version.
        unknown, missing = sorted(set(data) - known), sorted(known - set(data) - _MAY_LACK)
        if unknown or missing:
            raise ReportError(
                f"a finding has unknown keys {unknown} and lacks {missing}; expected exactly the keys of the schema"
            )
        plain = _plain(data)
        plain["grounds"] = tuple(Reason(**ground) for ground in plain.get("grounds", ()))
        return cls(**plain)


def answering(findings: Sequence[Finding]) -> list[Finding]:
    """Return, for each headline, the finding that answers its attack's question.

    That is the headline, unless another finding of the attack is a leak and the headline is none, or is certain and the
    headline is not; of several that are certain it is the one with most of it. A headline that was fixed in advance may
    have no power for so few targets. All verdicts of a report are corrected together, so that each leak among them is
    one; see :func:`fedattack.audit.significance.correct_findings`.
    """
    leaks: dict[str, Finding] = {}
    # The leak of an attack counts of which most is certain, and else the first: `sorted` is stable.
    for finding in sorted(findings, key=lambda finding: -finding.certain):
        if finding.verdict == LEAK:
            leaks.setdefault(finding.attack, finding)
    chosen = []
    for headline in findings:
        if headline.headline:
            best = leaks.get(headline.attack, headline)
            is_best = headline.verdict == LEAK and (headline.is_certain or not best.is_certain)
            chosen.append(headline if is_best else best)
    return chosen


def verdict(
    value: float | None,
    chance: float | None,
    p: float | None,
    bars: Mapping[str, float] | None = None,
    units: str = PROPORTION,
    least: float = 0.0,
    how: str = "",
) -> tuple[str, str]:
    """Judge a number for which more means a worse leak, before it is corrected for the other findings of its report.

    It is a leak only if it is above chance and above every further bar, and if so much is found by accident at most
    once in twenty times. Without a value, without chance or another bar, or without a test, nothing can be said either
    way.

    Parameters
    ----------
    p, least, how
        How likely so much is by accident, the smallest p that these data could have given, and how p was found.
    bars
        Further baselines that must be exceeded, such as ``{"size prior": 0.14}``.

    Returns
    -------
    tuple of str
        The verdict, one of :data:`VERDICTS`, and the reason in words.
    """
    against = dict(bars or {})
    # Chance stands first in the words, but a judge's own bar of that name wins.
    if chance is not None:
        against = {"chance": chance} | against
    needed = {"a value": value, "a chance level": against or None, "a test": p}
    lacking = [what for what, part in needed.items() if part is None]
    if value is None or p is None or lacking:
        return NOT_APPLICABLE, f"a verdict needs {list_words(lacking, 'and')}, and there is none"
    if least >= 1:
        # p cannot be below `least`, however well the attack does.
        return TOO_FEW, "there is nothing to exchange that would make a difference"
    if least > ERROR:
        return TOO_FEW, (
            "there are too few targets or clients to tell any result from an accident: at best "
            f"{p_in_words(least)}, and {ERROR:g} is needed"
        )
    cleared: list[str] = []
    missed: list[str] = []
    for name, bar in against.items():
        # A tie with a bar clears nothing.
        bars_in_words = missed if value <= bar else cleared
        bars_in_words.append(f"{name} ({in_units(bar, units)})")
    if missed:
        return NO_EVIDENCE, f"{in_units(value, units)} is not above {list_words(missed, 'or')}"
    by_test = p_in_words(p)
    if how:
        by_test += f" ({how})"
    if p > ERROR:
        return NO_EVIDENCE, f"the result may well be an accident: {by_test}"
    return (
        LEAK,
        f"{in_units(value, units)} is above {list_words(cleared, 'and')}, and this is unlikely to be an accident: "
        f"{by_test}",
    )


def certain_in_words(read_off: ReadOff, runs: int) -> str:
    """Say how much was read off beyond doubt: ``13 examples of 7 clients``; each of several runs counts its own."""
    parts = []
    for count, what in ((read_off["certain"], read_off["what"]), (read_off["clients"], "client")):
        ending = "" if count == 1 else "s"
        parts.append(f"{count:,} {what}{ending}")
    words = " of ".join(parts)
    if runs > 1:
        words += f" in {runs} runs"
    return words


def p_in_words(p: float) -> str:
    """Write a p-value as ``p = 0.003``; below a millionth it says no more than that."""
    if p < 1e-6:
        return "p < 0.000001"
    if p < 0.001:
        return f"p = {p:.1g}"
    return f"p = {p:.2g}"


def list_words(items: Sequence[str], conjunction: str) -> str:
    """Write a list as people do."""
    return f" {conjunction} ".join(filter(None, [", ".join(items[:-1]), items[-1]]))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))
    # NumPy scalars and arrays, without importing NumPy for them.
    return _plain(value.tolist()) if hasattr(value, "tolist") else value


def not_finite(value: Any, largest: float = math.inf) -> str | None:
    """Key path to a number inside `value` that JSON cannot hold (NaN or infinity), or is above `largest`; or None."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        plain = _plain(value)
        if isinstance(plain, list):
            return not_finite(plain, largest)
        number = isinstance(plain, int | float)
        # Compared so that NaN fails, too: it is neither below infinity nor anything else.
        return "it" if number and not (abs(plain) < math.inf and abs(plain) <= largest) else None
    for key, item in items:
        where = not_finite(item, largest)
        if where is not None:
            return f"{key}.{where}".removesuffix(".it")
    return None
