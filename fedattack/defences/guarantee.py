"""The (ε, δ) that noise on the update really gives, composed over the rounds by Opacus' accountant.

It is local differential privacy: neighbours are any two sets of examples that a client may hold, so that after clipping
to C its update moves by up to 2C. How many examples there are, and integer buffers, are sent as they are: the sets are
as many, and step a counter as often. (With a sensitivity of C alone, as many compute it, the neighbour is a client that
sends zeros.) Scale s thus is a noise multiplier of s / 2C, without sampling: the server knows who takes part.

For the Laplace mechanism with scale b the same number is an upper bound: an entry that moves by t is t/b-DP, hence
½(t/b)²-zCDP (Bun & Steinke 2016, Proposition 3.3), and the sum over entries, ½(2C/b)², is that of a Gaussian with
σ = b. Its pure ε, from the L1 norm, would grow with the square root of the number of parameters.

As everywhere in this field, the noise is taken to be drawn in real numbers, and by a seed unknown to the server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedattack.defences.base import Settings, number
from fedattack.defences.kinds import DEFENCES, KINDS

if TYPE_CHECKING:
    from fedattack.learning.accounting import PrivacySpent

GUARANTEES: Mapping[str, Mapping[str, str]] = {kind.name: kind.guarantee for kind in KINDS if kind.guarantee}
"""What ε speaks of, by defence: its mechanism, whom it protects and whom not, and what it assumes."""

NOISY = tuple(name for name in DEFENCES if name in GUARANTEES)
"""Defences that add noise to the update."""


def update_privacy(settings: Settings, *, rounds: int) -> PrivacySpent:
    """Say what a defence of the update guarantees.

    Parameters
    ----------
    settings
        Those of the run; see :data:`fedattack.defences.SETTINGS`.
    rounds
        In how many a client takes part, at most.

    Returns
    -------
    PrivacySpent
        Its ε are infinite where there is no finite guarantee: without noise, without clipping, and of defences that do
        not draw noise.

    Raises
    ------
    ConfigError
        If a number is out of its range.
    """
    from fedattack.learning.accounting import Sampling, privacy_spent

    scale, clip = number(settings, "defence-strength"), number(settings, "defence-clip")
    delta = number(settings, "dp-delta", above=True)
    multiplier = 0.0
    if settings["defence"] in NOISY and clip > 0:
        multiplier = scale / (2 * clip)
    return privacy_spent(multiplier, Sampling(1.0, 1), rounds=rounds, delta=delta)


def in_words(spent: PrivacySpent) -> str:
    """Write a guarantee for people."""
    if not math.isfinite(spent.epsilon_run):
        return "no finite guarantee"
    return f"ε = {spent.epsilon_round:.3g} a round, ε = {spent.epsilon_run:.3g} for the whole run, δ = {spent.delta:g}"
