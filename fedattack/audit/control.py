"""Add to findings that show nothing what a positive control says: whether the attack would have seen a leak."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fedattack.attacks.base import PLANTED as PLANTED
from fedattack.attacks.base import SHOWN as SHOWN
from fedattack.audit.finding import CANNOT_TELL, NO_EVIDENCE, Finding
from fedattack.base.reasons import Reason, find_reason

CONTROL, VOID, UNTRIED = "control", "void control", "no control"
"""Kinds of the ground that a positive control adds to a finding, one in which nothing could be planted, and none."""


TRAINED, STEPPED, WHOLE, ALONE = "trained", "stepped", "whole", "alone"
"""What clients do in a control: they train further on their own targets, or send one plain step on some of them or on
all; or a single client sends one on one target."""


@dataclass(frozen=True)
class Control:
    """What a positive control of an attack showed.

    Attributes
    ----------
    kind
        :data:`TRAINED`, :data:`STEPPED`, :data:`WHOLE`, :data:`ALONE`, :data:`PLANTED` or :data:`SHOWN`.
    amount
        Passes over their own targets, how many of these are in the step, 0 for all of them, values of each column, or
        examples: the first that was seen, or the last that was tried.
    is_seen
        Whether the attack shows a leak then; where it searches for one target, whether that is recognised.
    replies, of
        In how many replies that was, of how many of clients with targets of their own; both 0 for all of them.
    is_cut
        Whether more could have been planted, had there been more time.
    """

    kind: str
    amount: int
    is_seen: bool
    replies: int = 0
    of: int = 0
    is_cut: bool = False

    @property
    def clients(self) -> str:
        """What the clients did, as after "clients that"."""
        if self.kind == TRAINED:
            times = f"{self.amount} passes more"
            if self.amount == 1:
                times = "once more"
            return f"were trained further on their own targets, {times}"
        count = {1: "one"}.get(self.amount, self.amount)
        if self.kind == SHOWN:
            return f"send {count} of their own examples as they are, the mean of all, and sizes of groups of them"
        if self.kind == PLANTED:
            return f"send trees that split by {count} of their own values of each column"
        if self.kind == WHOLE:
            return "send one plain step on all of their own targets"
        if self.kind == ALONE:
            return "send one plain step on a single target of their own"
        return f"send one plain step on {self.amount} of their own targets"

    @property
    def is_void(self) -> bool:
        """Whether what the clients did changed nothing that they send, as where they fit anew each time."""
        return self.replies == 0 < self.of

    @property
    def extent(self) -> str:
        """In how many replies that was, where it was not in all of them."""
        if self.replies == self.of:
            return ""
        return f" ({self.replies:,} of {self.of:,} replies)"


def control_of(finding: Finding) -> str:
    """Return the sentence that a positive control added to a finding; empty if there was none that tells something."""
    words = find_reason(finding.grounds, CONTROL)
    if not words:
        return ""
    return f"{words[0].upper()}{words[1:]}."


def with_controls(
    findings: Sequence[Finding], controls: Mapping[str, Control], needed: Collection[str] = ()
) -> list[Finding]:
    """Add to findings that show nothing what the positive control of their attack, by its name, says.

    Nothing else says whether the attacks ``needed`` would see a leak: without a control they cannot tell.
    """
    final = []
    for finding in findings:
        control = controls.get(finding.attack)
        if finding.verdict != NO_EVIDENCE or (control is None and finding.attack not in needed):
            final.append(finding)
            continue
        if control is None:
            ground = "no positive control was made, so nothing shows that this attack would see a leak here"
            final.append(finding.with_grounds(Reason(ground, UNTRIED), verdict=CANNOT_TELL))
            continue
        if control.is_void:
            ground = f"no positive control: clients that {control.clients}, send the same as before"
            final.append(finding.with_grounds(Reason(ground, VOID), verdict=CANNOT_TELL))
            continue
        verdict, shows = finding.verdict, "recognises the target" if control.kind == ALONE else "shows a leak"
        if not control.is_seen:
            shows = "does not recognise it" if control.kind == ALONE else "shows no leak either"
        # What it reads and is right stands on the page: it sees something.
        if not control.is_seen and not finding.is_right_in_part:
            verdict, shows = CANNOT_TELL, f"{shows}: it cannot tell"
        if control.is_cut and not control.is_seen:
            shows += "; the control was cut short, and `--control full` tries all"
        ground = f"positive control: with clients that {control.clients}{control.extent}, this attack {shows}"
        final.append(finding.with_grounds(Reason(ground, CONTROL), verdict=verdict))
    return final
