"""What declares PROLIN, apart from it: needs are shown, and options checked, before torch is imported."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedattack.attacks import options
from fedattack.attacks.needs import InApps, Needs

Mode = Literal["linear", "exact"]
MODES: tuple[Mode, ...] = ("linear", "exact")


@dataclass(frozen=True)
class ProlinOptions(options.WorkersOptions, options.MemoryOptions):
    """How the detectors are trained."""

    name: ClassVar[str] = "prolin"
    title: ClassVar[str] = "Property inference against secure aggregation"
    paper: ClassVar[str] = "Kerkouche et al. 2023, PROLIN, Sections 5 and 6"
    needs: ClassVar[Needs] = Needs(
        views=("aggregate",),
        protocols=("fedavg",),
        knowledge=("model", "auxiliary", "training", "property"),
        takes=("rounds", "structures"),
    )
    in_apps: ClassVar[InApps] = InApps(
        is_slow=True,
        of_sums=True,
        remedy="--property CLASS, of which some clients hold examples and others do not",
        asked_of="classes",
    )

    shadows: Mode | None = options.choice(
        None, "linear (from per-example gradients, the default where the model allows it) or exact", MODES
    )
