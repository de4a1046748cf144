"""Options of PROLIN, apart from it: they are checked before torch is imported."""

from dataclasses import dataclass
from typing import Literal

from fedattack.attack import options

Mode = Literal["linear", "exact"]
MODES: tuple[Mode, ...] = ("linear", "exact")


@dataclass(frozen=True)
class ProlinOptions(options.WorkersOptions, options.MemoryOptions):
    """How the detectors are trained."""

    shadows: Mode | None = options.choice(
        None, "linear (from per-example gradients, the default where the model allows it) or exact", MODES
    )
    ray: str = options.text("", "a Ray cluster for this attack alone; --cluster says one for all", reaches_out=True)
