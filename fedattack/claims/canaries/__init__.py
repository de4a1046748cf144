"""Canaries: clients or examples that a run is told apart by, and what that says of its ε."""

from fedattack.claims.canaries.file import (
    CANARIES,
    Canaries,
    CanaryExamples,
    read_canaries,
    read_examples,
    with_canaries,
    write_canaries,
)
from fedattack.claims.canaries.measure import CanaryResult, measure_canaries
from fedattack.claims.canaries.mod import CanaryMod

__all__ = [
    "CANARIES",
    "Canaries",
    "CanaryExamples",
    "CanaryMod",
    "CanaryResult",
    "measure_canaries",
    "read_canaries",
    "read_examples",
    "with_canaries",
    "write_canaries",
]
