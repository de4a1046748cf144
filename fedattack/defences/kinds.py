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


def _makers() -> dict[str, Callable[[Settings], Defence]]:
    makers = {}
    for kind in sorted(KINDS, key=lambda kind: kind.name):
        if kind.make is not None:
            makers[kind.name] = kind.make
    return makers


DEFENCES: Mapping[str, Callable[[Settings], Defence]] = _makers()
"""Defences of the update by name, each with the function that makes it from the settings."""

ARTEFACTS = tuple(key for kind in KINDS for key in kind.artefacts)
"""Settings that are paths to files which a defence needs."""

for _kind in KINDS:
    # The settings of DP-SGD are read by the client's training code, and not here.
    if _kind.make is not None:
        SETTINGS.update(_kind.settings)
