"""Flower's own ``LocalDpMod`` as a defence; :class:`fedattack.defences.mods.FlowerLocalDP` applies it."""

from fedattack.defences.base import Defence, DefenceKind, Settings
from fedattack.defences.noise import DEVIATION, GAUSSIAN_GUARANTEE, NoiseSettings


def make(settings: Settings) -> Defence:
    """Read ``defence-strength`` (σ), ``defence-clip`` and ``dp-delta``."""
    # Flower takes a second to import, and only this defence needs it.
    from fedattack.defences.mods import FlowerLocalDP

    return FlowerLocalDP.of(settings)


KIND = DefenceKind(
    "flower-localdp", make, NoiseSettings, GAUSSIAN_GUARANTEE | {"name": "Flower's LocalDpMod"}, strength=DEVIATION
)
