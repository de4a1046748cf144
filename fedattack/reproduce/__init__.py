"""Reproduces tables and figures of papers: grids of runs, each beside the number that the paper states."""

from fedattack.reproduce.engine import reproduce
from fedattack.reproduce.spec import Reproduction, load_reproduction, reproduction_names

__all__ = ["Reproduction", "load_reproduction", "reproduce", "reproduction_names"]
