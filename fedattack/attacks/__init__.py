"""What all attacks share: their base, knowledge, options, replies. The questions are in :mod:`fedattack.threats`.

Names below are imported when they are first used: most of them need torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedattack.attacks.base import Attack, Scores, Seen
    from fedattack.attacks.knowledge import (
        AuxiliaryAttribute,
        Knowledge,
        KnownDefence,
        ModelKnowledge,
        PartialRecords,
        Targets,
    )
    from fedattack.attacks.knowledge_files import read_knowledge, read_partial, read_targets, write_knowledge
    from fedattack.attacks.needs import Needs
    from fedattack.attacks.registry import ATTACKS

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
    "Seen",
    "Targets",
    "read_knowledge",
    "read_partial",
    "read_targets",
    "write_knowledge",
]

_FILES = ("read_knowledge", "read_partial", "read_targets", "write_knowledge")
# All other names live in `knowledge`.
_HOMES = {"ATTACKS": "registry", "Attack": "base", "Needs": "needs", "Scores": "base", "Seen": "base"}
_HOMES |= dict.fromkeys(_FILES, "knowledge_files")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    module = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'knowledge')}")
    return getattr(module, name)
