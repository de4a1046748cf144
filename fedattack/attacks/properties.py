"""The old place of :mod:`fedattack.threats.property.properties`, which users' own properties still name."""

from fedattack.threats.property.properties import *  # noqa: F403 all that stood here
