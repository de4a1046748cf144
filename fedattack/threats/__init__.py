"""What a server may want to know of its clients: one folder a question.

A folder holds the attack, what judges it, how its findings are shown, and the words for all of it. The modules beside
the folders are what all attacks share. Names below are imported when they are first used: most of them need torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedattack.threats.attacks import ATTACKS
    from fedattack.threats.base import Attack, Needs, Scores
    from fedattack.threats.knowledge import (
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

_HOMES = {"ATTACKS": "attacks", "Attack": "base", "Needs": "base", "Scores": "base"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    module = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'knowledge')}")
    return getattr(module, name)
