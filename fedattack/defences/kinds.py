"""All defences, as each declares itself in its own file, and the tables that follow from these declarations.

Another package adds a defence by an entry point of the group ``fedattack.defences`` that leads to its
:class:`~fedattack.defences.base.DefenceKind`.
"""

from collections.abc import Callable, Mapping

from fedattack.base.registry import Registry
from fedattack.base.settings import SettingsModel, Words, setting
from fedattack.defences import dp_sgd, flower_localdp, noise, recup, soteria, sparsify
from fedattack.defences.base import FIELDS, SETTINGS, Defence, DefenceKind, PrivacySettings, Settings

# Files list the settings in this order. Those that meet Flower's messages lie in the same folder, and are not imported.
_BUILT_IN = (
    noise.GAUSSIAN,
    noise.LAPLACE,
    flower_localdp.KIND,
    sparsify.KIND,
    soteria.KIND,
    recup.KIND,
    dp_sgd.KIND,
)


def _find_fault(kind: DefenceKind, others: Mapping[str, DefenceKind]) -> str:
    """Say which setting could be another one's, a run's or a defence's: its own begin with its name."""
    # dp-gaussian and dp-laplace share one model of settings.
    if any(other.settings is kind.settings for other in others.values()):
        return ""
    shared = PrivacySettings.list_settings()
    for key in kind.settings.list_settings():
        if key not in shared and not key.startswith(f"{kind.name}-"):
            return f"has a setting {key!r}: expected a name that begins with {kind.name}-"
    return ""


KINDS: Registry[DefenceKind] = Registry("fedattack.defences", DefenceKind, lambda: _BUILT_IN, _find_fault)
"""By name, in the order in which files list their settings."""

DEFENCES: Mapping[str, Callable[[Settings], Defence]] = {
    name: kind.make for name, kind in sorted(KINDS.items()) if kind.make
}
"""Defences of the update by name, each with the function that makes it from the settings."""

ARTEFACTS = tuple(key for kind in KINDS.values() for key in kind.artefacts)
"""Settings that are paths to files which a defence needs."""

NONE = "none"
"""The setting ``defence`` for no defence."""


_STRENGTHS = "; ".join(f"{name}: {kind.strength}" for name, kind in KINDS.items() if kind.strength)


class DefenceSettings(SettingsModel):
    """Settings of all defences."""

    defence: str = setting(
        "none",
        f"what clients do to their update before they send it, or dp-sgd in the training: {', '.join((NONE, *KINDS))}",
        words=Words((NONE, *KINDS)),
    )
    defence_strength: float = setting(0.0, f"{_STRENGTHS}. 0 for no defence", ge=0)


# The settings of DP-SGD are not among them: the client's training code reads these.
_MODELS: tuple[type[SettingsModel], ...] = (DefenceSettings, *(kind.settings for kind in KINDS.values() if kind.make))
for _model in _MODELS:
    FIELDS.update(_model.list_settings())
SETTINGS.update({key: field.default for key, field in FIELDS.items()})


def list_settings_of(defence: str) -> list[str]:
    """List the settings that a defence may read: all of fedattack's own defences, and of another package's this one's.

    What is written down for a defence can then be read where no other package's defences are installed.
    """
    own = {kind.name for kind in _BUILT_IN} | {defence}
    others = tuple(f"{name}-" for name in KINDS if name not in own)
    return [key for key in SETTINGS if not key.startswith(others)]
