"""The old place of :mod:`fedattack.threats`, which scripts and configurations of users still name."""

from fedattack.threats import *  # noqa: F403 all that stood here
