"""Add to findings that show nothing what a positive control says: whether the attack would have seen a leak."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedattack.audit.finding import CANNOT_TELL, NO_EVIDENCE, Finding

NEVER = 0
"""What stands for the number of passes where no number was seen."""

_PLANTED = "positive control: with clients that were trained further on their own targets"


def with_controls(findings: Sequence[Finding], controls: Mapping[str, int]) -> list[Finding]:
    """Add to findings that show nothing what the positive control of their attack says.

    Parameters
    ----------
    controls
        By the attack's name, how many passes over its own targets a client must be trained further until the attack
        shows a leak; :data:`NEVER` where it shows none.
    """
    final = []
    for finding in findings:
        passes = controls.get(finding.attack)
        if passes is None or finding.verdict != NO_EVIDENCE:
            final.append(finding)
        elif passes == NEVER:
            reason = f"{finding.reason}; {_PLANTED}, this attack shows no leak either: it cannot tell"
            final.append(replace(finding, verdict=CANNOT_TELL, reason=reason))
        else:
            times = "once more" if passes == 1 else f"{passes} passes more"
            final.append(replace(finding, reason=f"{finding.reason}; {_PLANTED}, {times}, this attack shows a leak"))
    return final
