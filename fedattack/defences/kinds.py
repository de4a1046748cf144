"""All defences, as each declares itself in its own file, and the tables that follow from these declarations."""

from collections.abc import Callable, Mapping

from fedattack.defences import dp_sgd, flower_localdp, noise, recup, soteria, sparsify
from fedattack.defences.base import SETTINGS, Defence, DefenceKind, Settings

# Files list the settings in this order.
KINDS: tuple[DefenceKind, ...] = (
    noise.GAUSSIAN,
    noise.LAPLACE,
    flower_localdp.KIND,
    sparsify.KIND,
    soteria.KIND,
    recup.KIND,
    dp_sgd.KIND,
)
_BY_NAME = sorted(KINDS, key=lambda kind: kind.name)

DEFENCES: Mapping[str, Callable[[Settings], Defence]] = {kind.name: kind.make for kind in _BY_NAME if kind.make}
"""Defences of the update by name, each with the function that makes it from the settings."""

ARTEFACTS = tuple(key for kind in KINDS for key in kind.artefacts)
"""Settings that are paths to files which a defence needs."""

# The settings of DP-SGD are not among them: the client's training code reads these.
for _kind in KINDS:
    SETTINGS.update(_kind.settings if _kind.make else {})
