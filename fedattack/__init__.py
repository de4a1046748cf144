"""Measure what a Flower federated-learning deployment leaks to its server.

The package records what a server legitimately observes (:mod:`fedattack.observe`, :mod:`fedattack.record`), attacks
that record offline (:mod:`fedattack.threats`), and states the result against the truth with intervals, chance and
null baselines (:mod:`fedattack.audit`, :mod:`fedattack.report`).
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fedattack")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
