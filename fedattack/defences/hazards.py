"""What an ε takes for granted, and an audit can look at or not (NIST SP 800-226, on hazards of a claim of privacy)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Hazard:
    """One thing by which a true ε may still protect nobody.

    Attributes
    ----------
    what
        Its name.
    checked
        Whether it was looked at here.
    why
        What was seen, or why it was not looked at.
    """

    what: str
    checked: bool
    why: str


def list_hazards(*, own_noise: bool, plaintext: Sequence[str] | None = None) -> list[Hazard]:
    """List the hazards, those that were checked first.

    Parameters
    ----------
    own_noise
        Whether the noise is that of :mod:`fedattack.defences`.
    plaintext
        What came beside the arrays, by name; None where nobody looked.
    """
    hazards = [
        Hazard(
            "Randomness of the noise",
            own_noise,
            "it follows from 128 bits that the system gives, which tests of fedattack hold"
            if own_noise
            else "whether somebody can guess the generator's state decides whether noise is noise",
        ),
        Hazard("Numbers beside the update", plaintext is not None, _say_beside(plaintext)),
        Hazard(
            "Floating point",
            False,
            "ε speaks of real numbers; the lowest digits of a noisy number may tell what it was made of",
        ),
        Hazard(
            "Time and size of messages", False, "how long a client takes, and how much it sends, may tell of its data"
        ),
        Hazard(
            "Tuning and early stopping",
            False,
            "settings that were chosen on the same data tell of it, too, and no account has them",
        ),
    ]
    return sorted(hazards, key=lambda hazard: not hazard.checked)


def _say_beside(plaintext: Sequence[str] | None) -> str:
    if plaintext is None:
        return "metrics and counts get no noise; an audit of a run names what passes"
    if not plaintext:
        return "nothing passes beside the arrays"
    return f"without noise pass: {', '.join(plaintext)}"
