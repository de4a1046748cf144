"""What all attacks share: their base, knowledge, options, replies. The questions are in :mod:`fedattack.threats`.

Names below are imported when they are first used: most of them need torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedattack.attack.attacks import ATTACKS
    from fedattack.attack.base import Attack, Scores
    from fedattack.attack.knowledge import (
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
    from fedattack.attack.needs import Needs

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

_HOMES = {"ATTACKS": "attacks", "Attack": "base", "Needs": "needs", "Scores": "base"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    module = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'knowledge')}")
    return getattr(module, name)
