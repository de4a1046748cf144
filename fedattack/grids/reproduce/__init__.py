"""Reproduces tables and figures of papers: grids of runs, each beside the number that the paper states.

What runs them is in :mod:`fedattack.grids.reproduce.design`, which is imported only after a caller's words are checked.
"""

from fedattack.grids.reproduce.spec import Reproduction, load_reproduction, reproduction_names

__all__ = ["Reproduction", "load_reproduction", "reproduction_names"]
