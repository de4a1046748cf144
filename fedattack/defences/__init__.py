"""Defences that a client switches on: changes to its update before it leaves the client.

:class:`fedattack.defences.mods.DefenceMod` applies them as a Flower client mod,
:func:`fedattack.defences.wrapper.defended` to a NumPyClient without mods.
"""

from fedattack.base.errors import ConfigError
from fedattack.base.extra import what_to_install
from fedattack.defences.base import SETTINGS, Batch, Defence, DefenceKind, Settings, Update, number
from fedattack.defences.dp_sgd import DP_SGD
from fedattack.defences.guarantee import in_words, update_privacy
from fedattack.defences.hook import hand_over
from fedattack.defences.kinds import ARTEFACTS, DEFENCES, KINDS, NONE, list_settings_of


def defence_of(settings: Settings) -> Defence | None:
    """Make the defence that the settings ask for; ``None`` if they ask for none.

    Raises
    ------
    ConfigError
        If it is unknown or not stated, one of its settings is out of its range, there is a strength without a defence
        or a defence without a strength, it is DP-SGD, or it needs packages that are not installed.
    """
    known = ", ".join((NONE, *DEFENCES, DP_SGD))
    if "defence" not in settings:
        raise ConfigError(
            'the settings lack "defence", and a client might go undefended; add defence = "none" to '
            f"[tool.flwr.app.config], or one of {known}"
        )
    name = settings["defence"]
    strength = number(settings, "defence-strength")
    if name == NONE:
        if strength:
            raise ConfigError(f"defence-strength = {strength:g} without a defence: set defence to one of {known}")
        return None
    if name == DP_SGD:
        raise ConfigError(
            "defence = 'dp-sgd' changes the training, not the update: call fedattack.learning.train_private in the "
            "client's training code"
        )
    if name not in DEFENCES:
        raise ConfigError(f"defence = {name!r}: expected one of {known}")
    try:
        # A defence may import torch or its zoo when it is made.
        defence = DEFENCES[name](settings)
    except ModuleNotFoundError as cause:
        raise ConfigError(what_to_install(f"defence {name}") or str(cause)) from cause
    if not strength:
        raise ConfigError(
            f"defence = {name!r} with defence-strength = 0 would change nothing; give a strength above 0, which "
            f"fedattack/defences/README.md explains, or set defence to {NONE!r}"
        )
    return defence


__all__ = [
    "ARTEFACTS",
    "DEFENCES",
    "DP_SGD",
    "KINDS",
    "NONE",
    "SETTINGS",
    "Batch",
    "Defence",
    "DefenceKind",
    "Settings",
    "Update",
    "defence_of",
    "hand_over",
    "in_words",
    "list_settings_of",
    "number",
    "update_privacy",
]
