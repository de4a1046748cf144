"""Measure what a Flower federated-learning deployment leaks to its server.

The package records what a server legitimately observes (:mod:`fedattack.observe`, :mod:`fedattack.record`), attacks
that record offline (:mod:`fedattack.threats`), and states the result against the truth with intervals, chance and
null baselines (:mod:`fedattack.audit`, :mod:`fedattack.report`).

The names below are the library in brief::

    import fedattack as fa

    record = fa.open_record("runs/first/record")
    knowledge = fa.read_knowledge("runs/first/knowledge")
    scores = fa.attack("sia", record, knowledge)
    fa.attack_folder("sia", "runs/first")
    findings = fa.judge("runs/first")
    findings.frame()
    fa.show("runs/first")

They are imported when they are first used: an observed server needs none of them, and most of them need torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedattack.base.extra import what_to_install
from fedattack.base.version import __version__ as __version__

if TYPE_CHECKING:
    from fedattack.cli.library import (
        Findings,
        Report,
        attack,
        attack_folder,
        judge,
        open_record,
        read_findings,
        read_knowledge,
        show,
    )

__all__ = [
    "Findings",
    "Report",
    "attack",
    "attack_folder",
    "judge",
    "open_record",
    "read_findings",
    "read_knowledge",
    "show",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module("fedattack.cli.library"), name)
    except ModuleNotFoundError as cause:
        lacking = what_to_install(f"fedattack.{name}")
        if not lacking:
            raise
        raise ImportError(lacking) from cause
