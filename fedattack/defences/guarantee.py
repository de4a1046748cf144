"""The (ε, δ) that noise on the update guarantees, composed over the rounds.

It is local differential privacy: neighbours are any two sets of examples that a client may hold, so that after clipping
to C its update moves by up to 2C. The number of examples and integer buffers are sent without noise: both sets have the
same number of examples, and increase a counter equally. (With a sensitivity of C alone, as many compute it, the
neighbour is a client that sends zeros.) There is no sampling: the server knows who takes part.
:mod:`fedattack.privacy.epsilon` says how ε follows, and what it assumes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedattack.base.errors import ConfigError
from fedattack.defences.base import Settings, number
from fedattack.defences.kinds import DEFENCES, KINDS
from fedattack.privacy import PrivacySpent, gaussian_epsilon, laplace_epsilon

GUARANTEES: Mapping[str, Mapping[str, str]] = {name: kind.guarantee for name, kind in KINDS.items() if kind.guarantee}
"""What ε speaks of, by defence: its mechanism, whom it protects and whom not, and what it assumes."""

NOISY = tuple(name for name in DEFENCES if name in GUARANTEES)
"""Defences that add noise to the update."""


def update_privacy(settings: Settings, *, rounds: int) -> PrivacySpent:
    """Say what a defence of the update guarantees.

    Parameters
    ----------
    settings
        Settings of the run; see :data:`fedattack.defences.SETTINGS`.
    rounds
        Largest number of rounds in which a client takes part.

    Returns
    -------
    PrivacySpent
        Its ε are infinite if there is no finite guarantee: without noise, without clipping, and for defences that draw
        no noise.

    Raises
    ------
    ConfigError
        If a number is out of its range.
    """
    scale, clip = number(settings, "defence-strength"), number(settings, "defence-clip")
    delta = number(settings, "dp-delta")
    if rounds < 1:
        raise ConfigError(f"privacy accounting: expected at least 1 round, got {rounds}")
    if settings["defence"] not in NOISY or not clip or not scale:
        return PrivacySpent(math.inf, math.inf, delta)
    return PrivacySpent(
        # Noise in units of the sensitivity's half: C of clipping, 2C for exchanged data.
        _epsilon(settings["defence"], scale / clip, 1, delta),
        _epsilon(settings["defence"], scale / clip, rounds, delta),
        delta,
    )


def _epsilon(defence: object, multiplier: float, count: int, delta: float) -> float:
    if defence == "dp-laplace":
        # The norm is L2, and Laplace noise bounds L1: √entries between them, or no bound without their number.
        return laplace_epsilon(multiplier, "replace", count, delta, entries=None).high
    return gaussian_epsilon(multiplier, "replace", count, delta).high


def in_words(spent: PrivacySpent) -> str:
    """Describe a guarantee in words."""
    if not math.isfinite(spent.epsilon_run):
        return "no finite guarantee"
    return f"ε = {spent.epsilon_round:.3g} a round, ε = {spent.epsilon_run:.3g} for the whole run, δ = {spent.delta:g}"


class Hazard(NamedTuple):
    """One reason why a true ε may still protect nobody: its name, whether it was checked, and the result."""

    what: str
    checked: bool
    why: str


def list_hazards(*, own_noise: bool, plaintext: Sequence[str] | None = None) -> list[Hazard]:
    """List what an ε takes for granted (NIST SP 800-226, on hazards), first what was checked.

    Parameters
    ----------
    own_noise
        Whether the noise is that of :mod:`fedattack.defences`.
    plaintext
        Names of what was sent beside the arrays; ``None`` if nobody looked.
    """
    randomness = "noise only protects if nobody can guess the generator's state"
    if own_noise:
        randomness = "it follows from 128 bits of the operating system, which fedattack's tests check"
    beside = "metrics and counts get no noise; an audit of a run names what passes"
    if plaintext is not None:
        beside = (
            f"without noise pass: {', '.join(plaintext)}" if plaintext else "nothing is sent in addition to the arrays"
        )
    lowest = "ε is for real numbers; the lowest digits of a noisy number may reveal what it was computed from"
    timing = "how long a client takes and how much it sends may depend on its data"
    tuning = "settings that were chosen on the same data also reveal it, and no accounting includes them"
    hazards = [
        Hazard("Randomness of the noise", own_noise, randomness),
        Hazard("Numbers sent with the update", plaintext is not None, beside),
        Hazard("Floating point", False, lowest),
        Hazard("Time and size of messages", False, timing),
        Hazard("Tuning and early stopping", False, tuning),
    ]
    # False sorts first: what was checked.
    return sorted(hazards, key=lambda hazard: not hazard.checked)
