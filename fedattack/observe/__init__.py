"""Record what a Flower server legitimately sees, and change nothing."""

from fedattack.observe.grid import ObservedServerApp, RecordingGrid
from fedattack.observe.legacy import ObservedLegacyStrategy
from fedattack.observe.strategy import ObservedStrategy

__all__ = ["ObservedLegacyStrategy", "ObservedServerApp", "ObservedStrategy", "RecordingGrid"]
