"""The (ε, δ) that noise on the update really gives, composed over the rounds by Opacus' accountant.

It is local differential privacy: neighbours are any two sets of records that a client may hold, so that after clipping
to C its update moves by up to 2C. How many records there are, and integer buffers, are sent as they are: the sets are
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

from fedattack.defences.base import Settings, number
from fedattack.learning.accounting import PrivacySpent, Sampling, privacy_spent

NOISY = ("dp-gaussian", "dp-laplace", "flower-localdp")
"""Defences that add noise to the update."""

_DP_SGD = {
    "name": "DP-SGD",
    "noise_is": "noise multiplier σ",
    "mechanism": "DP-SGD in local training: the gradient of each record is clipped to norm C, and Gaussian noise of "
    "standard deviation σ·C is added to their sum in every step",
    "unit": "one record of one client, there or not, towards a server that sees all that the client sends; how many "
    "records a client has counts as known",
    "not_protected": "what many records of a client have in common, such as its mix of classes, from which an owner "
    "can be guessed as well",
    "accountant": "Rényi orders (Opacus): an upper bound",
    "assumes": "that the server learns neither which records a step was computed on (Poisson sampling) nor the seed of "
    "the noise, which in a simulation follows from the run's own",
}
_LOCAL = {
    "unit": "all records of one client, whatever they are, towards a server that sees all that the client sends; how "
    "many records a client has counts as known",
    "not_protected": "how many records a client has, and in which rounds it takes part",
    "accountant": "Rényi orders (Opacus) for a sensitivity of 2C, composed over the rounds: an upper bound",
    "assumes": "that the server does not learn the seed of the noise, which in a simulation follows from the run's own",
}
_GAUSSIAN = _LOCAL | {
    "noise_is": "standard deviation σ of the noise",
    "mechanism": "DP-Gaussian: the update is clipped to norm C, and Gaussian noise of standard deviation σ is added to "
    "every entry",
}
GUARANTEES: Mapping[str, Mapping[str, str]] = {
    "dp-sgd": _DP_SGD,
    "dp-gaussian": _GAUSSIAN | {"name": "DP-Gaussian"},
    "dp-laplace": _LOCAL
    | {
        "name": "DP-Laplace",
        "noise_is": "scale b of the noise",
        "mechanism": "DP-Laplace: the update is clipped to norm C, and Laplace noise of scale b is added to every "
        "entry",
    },
    "flower-localdp": _GAUSSIAN | {"name": "Flower's LocalDpMod"},
}
"""What ε speaks of, by defence: its mechanism, whom it protects and whom not, and what it assumes."""


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
    scale, clip = number(settings, "defence-strength"), number(settings, "defence-clip")
    delta = number(settings, "dp-delta", above=True)
    noisy = settings["defence"] in NOISY and clip > 0
    return privacy_spent(scale / (2 * clip) if noisy else 0.0, Sampling(1.0, 1), rounds=rounds, delta=delta)


def in_words(spent: PrivacySpent) -> str:
    """Write a guarantee for people."""

    def epsilon(value: float) -> str:
        return f"ε = {value:.3g}" if math.isfinite(value) else "no finite guarantee"

    if not math.isfinite(spent.epsilon_run):
        return epsilon(spent.epsilon_run)
    return (
        f"{epsilon(spent.epsilon_round)} a round, {epsilon(spent.epsilon_run)} for the whole run, δ = {spent.delta:g}"
    )
