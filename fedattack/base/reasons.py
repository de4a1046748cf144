"""Why something cannot be done, or is said: words for people, and a kind that code can ask for."""

from collections.abc import Sequence
from dataclasses import dataclass

ABOUT = "about"
"""Kind of a reason that says what is compared; what follows it is said of that."""


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
        What would help, in words; empty where nothing is known to.
    """

    what: str
    kind: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        if not self.remedy:
            return self.what
        return f"{self.what}; {self.remedy}"


def join_reasons(reasons: Sequence[Reason]) -> str:
    """Write reasons one after the other; a colon follows what the others are about."""
    text = ""
    for index, reason in enumerate(reasons):
        text += str(reason)
        if index + 1 < len(reasons):
            text += ": " if reason.kind == ABOUT else "; "
    return text


def find_reason(reasons: Sequence[Reason], kind: str) -> str:
    """Return the words of the first reason of a kind; empty if there is none."""
    for reason in reasons:
        if reason.kind == kind:
            return reason.what
    return ""
