"""Record what a Flower server legitimately sees, and change nothing."""

from fedattack.observe.grid import ObservedServerApp, PassingGrid, RecordingGrid
from fedattack.observe.legacy import ObservedLegacyStrategy
from fedattack.observe.strategy import ObservedStrategy

__all__ = ["ObservedLegacyStrategy", "ObservedServerApp", "ObservedStrategy", "PassingGrid", "RecordingGrid"]
