"""Options of source inference, apart from it: they are checked before torch is imported."""

from dataclasses import dataclass

from fedattack.attack import options


@dataclass(frozen=True)
class SourceOptions(options.WorkersOptions):
    """How models are evaluated."""
