"""Attacks on records: one file each, found by name. A new attack is one new file in this folder."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping

from fedattack.attacks.base import Attack, Needs, Scores
from fedattack.attacks.knowledge import (
    AuxiliaryAttribute,
    Knowledge,
    KnownDefence,
    ModelKnowledge,
    PartialRecords,
    Targets,
    read_knowledge,
    read_partial,
    read_targets,
    write_knowledge,
)


def _found() -> Iterator[Attack]:
    for module in pkgutil.iter_modules(__path__):
        for _, item in inspect.getmembers(importlib.import_module(f"{__name__}.{module.name}"), inspect.isclass):
            if issubclass(item, Attack) and not inspect.isabstract(item):
                yield item()


ATTACKS: Mapping[str, Attack] = {attack.name: attack for attack in _found()}
"""All attacks by name."""

__all__ = [
    "ATTACKS",
    "Attack",
    "AuxiliaryAttribute",
    "Knowledge",
    "KnownDefence",
    "ModelKnowledge",
    "Needs",
    "PartialRecords",
    "Scores",
    "Targets",
    "read_knowledge",
    "read_partial",
    "read_targets",
    "write_knowledge",
]
