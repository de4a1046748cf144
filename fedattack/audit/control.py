"""Add to findings that show nothing what a positive control says: whether the attack would have seen a leak."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedattack.audit.finding import CANNOT_TELL, NO_EVIDENCE, Finding

_BEGINNING = "positive control: with clients that "


TRAINED, STEPPED, WHOLE, PLANTED = "trained", "stepped", "whole", "planted"
"""What clients do in a control: they train further on their own targets, send one plain step on some of them or on all,
or send trees that split by their own values."""


@dataclass(frozen=True)
class Control:
    """What a positive control of an attack showed.

    Attributes
    ----------
    kind
        :data:`TRAINED`, :data:`STEPPED`, :data:`WHOLE` or :data:`PLANTED`.
    amount
        Passes over their own targets, how many of these are in the step, 0 for all of them, or values of each column:
        the first that was seen, or the last that was tried.
    is_seen
        Whether the attack shows a leak then.
    """

    kind: str
    amount: int
    is_seen: bool

    @property
    def clients(self) -> str:
        """What the clients did, as after "clients that"."""
        if self.kind == TRAINED:
            times = f"{self.amount} passes more"
            if self.amount == 1:
                times = "once more"
            return f"were trained further on their own targets, {times}"
        if self.kind == PLANTED:
            count = {1: "one"}.get(self.amount, self.amount)
            return f"send trees that split by {count} of their own values of each column"
        if self.kind == WHOLE:
            return "send one plain step on all of their own targets"
        return f"send one plain step on {self.amount} of their own targets"


def control_of(finding: Finding) -> str:
    """Return the sentence of a finding's reason that its positive control added; empty if there was none."""
    for part in finding.reason.split("; "):
        if part.startswith(_BEGINNING):
            return f"{part[0].upper()}{part[1:]}."
    return ""


def with_controls(findings: Sequence[Finding], controls: Mapping[str, Control]) -> list[Finding]:
    """Add to findings that show nothing what the positive control of their attack, by its name, says."""
    final = []
    for finding in findings:
        control = controls.get(finding.attack)
        if control is None or finding.verdict != NO_EVIDENCE:
            final.append(finding)
            continue
        reason = f"{finding.reason}; {_BEGINNING}{control.clients}, this attack shows "
        if control.is_seen:
            final.append(replace(finding, reason=f"{reason}a leak"))
        elif finding.is_right_in_part:
            # What it reads and is right stands on the page: it sees something.
            final.append(replace(finding, reason=f"{reason}no leak either"))
        else:
            final.append(replace(finding, verdict=CANNOT_TELL, reason=f"{reason}no leak either: it cannot tell"))
    return final
