"""The old place of :mod:`fedattack.threats.knowledge`, which users' scripts still name."""

from fedattack.threats.knowledge import *  # noqa: F403 all that stood here
