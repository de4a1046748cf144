"""Why something cannot be done, or is said: words for people, and a kind that code can ask for."""

from collections.abc import Sequence
from dataclasses import dataclass

ABOUT = "about"
"""Kind of a reason that says what is compared; what follows it is said of that."""


NOTHING = "nothing does: "
"""How a remedy begins where a question cannot be asked by what it is about; behind it stands why."""


@dataclass(frozen=True)
class Reason:
    """One reason.

    Attributes
    ----------
    what
        The reason in words, without a full stop.
    kind
        What sort of reason it is, for code that looks for it; empty where nothing does.
    remedy
        What would help, a noun; it begins with :data:`NOTHING` where nothing does. Empty where a reason says only
        why something is as it is.
    """

    what: str
    kind: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        if not self.remedy or self.remedy.startswith(NOTHING):
            return self.what
        return f"{self.what}; it would take {self.remedy}"


def join_reasons(reasons: Sequence[Reason]) -> str:
    """Write reasons one after the other; a colon follows what the others are about."""
    text = ""
    for index, reason in enumerate(reasons):
        text += str(reason)
        if index + 1 < len(reasons):
            text += ": " if reason.kind == ABOUT else "; "
    return text


def merge_reasons(reasons: Sequence[Reason]) -> Reason:
    """Make one reason of all those for which a question cannot be asked: all of it must be remedied."""
    remedies = [*dict.fromkeys(reason.remedy for reason in reasons if reason.remedy)]
    for remedy in remedies:
        # Where one of them stays, remedies of the others are no help.
        if remedy.startswith(NOTHING):
            remedies = [remedy]
            break
    kind = reasons[0].kind if reasons else ""
    return Reason("; ".join(reason.what for reason in reasons), kind, "; and ".join(remedies))


def find_reason(reasons: Sequence[Reason], kind: str) -> str:
    """Return the words of the first reason of a kind; empty if there is none."""
    for reason in reasons:
        if reason.kind == kind:
            return reason.what
    return ""
