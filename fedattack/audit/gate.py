"""Gates: what ``--fail-if`` asks of findings."""

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedattack.audit.finding import (
    CANNOT_TELL,
    LEAK,
    METRIC,
    NAME,
    NO_EVIDENCE,
    NOT_APPLICABLE,
    PROPORTION,
    TOO_FEW,
    VERDICTS,
    Finding,
    answering,
)
from fedattack.base.errors import ConfigError, instead

CLAIM_VERDICTS = ("contradicted", "consistent", "cannot be checked")
"""Verdicts of the findings ``claim.…`` of :mod:`fedattack.claims`."""

WHOLE_CLAIM = "claim.verdict"
"""What conditions call the verdict on a privacy claim as a whole."""

_VALUE, _VERDICT, _CLAIM = "value", "verdict", "claim"
# What a condition may ask of a finding, beside its verdict, and how its complaint calls that.
_PARTS = {_VALUE: "value", "low": "lower end", "high": "upper end"}
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_SAME: dict[str, Callable[[Any, Any], bool]] = {"==": operator.eq, "!=": operator.ne}
_CONDITION = re.compile(
    # Metric and part are told apart by METRIC: it allows a dot before a digit alone.
    rf"\s*(?:(?P<name>{NAME.pattern}\.{METRIC.pattern})(?:\.(?P<part>[a-z]+))?|{_VERDICT})"
    r"\s*(?P<comparison>>=|<=|==|!=|>|<)\s*(?P<than>\S.*?)\s*"
)
_FORMS = (
    'ATTACK.METRIC with a number, such as "sia.asr > 0.3" or "sia.asr.low > 0.3", or a verdict, such as '
    '"sia.asr.verdict == leak" or, of any question, "verdict == leak"'
)
_CLAIM_FORMS = (
    f'a verdict, such as "{WHOLE_CLAIM} == contradicted" or "claim.noise-missing.verdict != consistent", or a finding '
    'with a number, such as "claim.epsilon-configured > 10"'
)


@dataclass(frozen=True)
class Condition:
    """What a gate asks of a finding, such as ``sia.asr > 0.3``, or of all questions, such as ``verdict == leak``.

    A question's verdict is that of the finding that answers it; see :func:`fedattack.audit.finding.answering`.

    Attributes
    ----------
    text
        The condition as it was given.
    name
        The finding; empty for all questions.
    part
        ``value``, ``low``, ``high`` or ``verdict``.
    comparison, than
        How that is compared, and with what.
    """

    text: str
    name: str
    part: str
    comparison: str
    than: float | str

    @property
    def attack(self) -> str:
        """The attack whose finding it is about; empty for all questions."""
        return self.name.partition(".")[0]

    @property
    def metric(self) -> str:
        """What of the attack it is about; empty for all questions."""
        return self.name.partition(".")[2]

    def is_crossed(self, findings: Sequence[Finding]) -> bool:
        """Whether the condition holds for a finding that it is about.

        Raises
        ------
        ConfigError
            If there is no such finding; if a share is compared with what no share can be; or if it holds for none, and
            of one nothing can be said: a gate must not pass because there is nothing to see.
        """
        if self.name:
            meant, what = [finding for finding in findings if finding.name == self.name], f"finding {self.name}"
        else:
            meant, what = answering(findings), "headline"
        if not meant:
            there = ", ".join(sorted({finding.name for finding in findings})) or "none"
            raise ConfigError(f"--fail-if: there is no {what}; expected one of: {there}")
        for finding in meant:
            self._check_share(finding)
        if any(map(self._holds, meant)):
            return True
        for finding in meant:
            self._check_decided(finding)
        return False

    def _check_share(self, finding: Finding) -> None:
        """Refuse a number that is no share, such as a per cent, for a finding that is one."""
        # Other units, such as bits, have no such bounds.
        if isinstance(self.than, str) or finding.units != PROPORTION or 0 <= self.than <= 1:
            return
        example = "0.3 for 30%"
        if 1 < self.than <= 100:
            example = f"{self.than / 100:g} for {self.than:g}%"
        raise ConfigError(
            f"--fail-if {self.text}: {finding.name} is a share from 0 to 1 that is shown in per cent; write {example}"
        )

    def _holds(self, finding: Finding) -> bool:
        actual = getattr(finding, self.part)
        return actual is not None and (_SAME | _ORDER)[self.comparison](actual, self.than)

    def _check_decided(self, finding: Finding) -> None:
        """Refuse to pass on a finding that says nothing either way."""
        by_verdict = self.part == _VERDICT
        if by_verdict and finding.verdict == TOO_FEW and self.than in (LEAK, NO_EVIDENCE):
            instead_of_this = self.text.partition(_VERDICT)[0].strip() + f"{_VERDICT} != {NO_EVIDENCE}"
            raise ConfigError(
                f"--fail-if {self.text}: {finding.name} is {TOO_FEW}: the gate can neither fail nor pass; "
                f'run more seeds or clients, or use "{instead_of_this}", which also stops in this case'
            )
        # A number that an attack found in what it cannot read passes no gate.
        has_part = getattr(finding, self.part) is not None or (finding.asks_nothing and self.part != _VERDICT)
        is_open = finding.verdict == CANNOT_TELL or not has_part
        is_open |= by_verdict and finding.verdict == NOT_APPLICABLE
        if not is_open or self.than == finding.verdict:
            return
        other = "name a finding that was measured"
        if self.attack == _CLAIM:
            other = f'ask for "{WHOLE_CLAIM} == contradicted", which always decides'
        raise ConfigError(
            f"--fail-if {self.text}: {finding.name} has no {_PARTS.get(self.part, self.part)} ({finding.reason}), "
            f"so the condition can neither fail nor pass; {other}"
        )


def parse_fail_if(text: str, *, of_claim: bool = False) -> Condition:
    """Read a condition such as ``sia.asr > 0.3``, ``sia.asr.low > 0.3`` or ``verdict == leak``.

    Numbers are compared by >, >=, < and <=, verdicts by == and !=.

    Parameters
    ----------
    text
        The condition.
    of_claim
        Whether it has to be about a privacy claim, such as ``claim.verdict == contradicted``.

    Raises
    ------
    ConfigError
        If the text is no such condition.
    """
    forms = _FORMS
    if of_claim:
        forms = _CLAIM_FORMS
    nonsense = ConfigError(f"--fail-if {text!r}: expected {forms}")
    match = _CONDITION.fullmatch(text)
    if not match:
        raise nonsense
    name, comparison, than = match["name"] or "", match["comparison"], match["than"].strip("'\"")
    is_whole = name in ("", WHOLE_CLAIM)
    if (of_claim and not name.startswith(f"{_CLAIM}.")) or (is_whole and match["part"]):
        raise nonsense
    # The condition on a verdict has no number; the part decides which of the two this is.
    part = match["part"] or _VALUE
    if is_whole:
        part = _VERDICT
    if part == _VERDICT:
        _check_verdict(text, name, comparison, than)
        return Condition(text, name, part, comparison, than)
    if part not in _PARTS:
        words = instead(part, ("low", "high", _VERDICT))
        raise ConfigError(f"--fail-if {text!r}: unknown part {part!r} of a finding: {words}")
    try:
        threshold = float(than)
    except ValueError:
        raise nonsense from None
    # `float` reads "nan" and "inf", too.
    if comparison not in _ORDER or not math.isfinite(threshold):
        raise nonsense
    return Condition(text, name, part, comparison, threshold)


def _check_verdict(text: str, name: str, comparison: str, than: str) -> None:
    """Refuse a condition on a verdict that compares it with anything else, or by order."""
    known: Sequence[str] = VERDICTS
    if name.startswith(f"{_CLAIM}."):
        known = CLAIM_VERDICTS
    if comparison not in _SAME or than not in known:
        words = instead(than, known)
        raise ConfigError(f"--fail-if {text!r}: a verdict is compared by == or != with a verdict; {words}")
