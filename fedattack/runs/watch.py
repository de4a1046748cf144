"""How long work tells of itself."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Watch:
    """How long work tells of itself.

    Attributes
    ----------
    step
        Called with what is being done, how many steps are done, and of how many, None where that is not known.
    say
        Called with ``warning`` or ``note``, and a line.
    """

    step: Callable[[str, int, int | None], None] = lambda what, done, total: None
    say: Callable[[str, str], None] = lambda kind, text: None
