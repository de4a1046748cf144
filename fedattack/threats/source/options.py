"""What declares source inference, apart from it: needs are shown, and options checked, before torch is imported."""

from dataclasses import dataclass
from typing import ClassVar

from fedattack.attacks import options
from fedattack.attacks.needs import InApps, Needs
from fedattack.record.format import PROTOCOLS


@dataclass(frozen=True)
class SourceOptions(options.WorkersOptions):
    """How models are evaluated."""

    name: ClassVar[str] = "sia"
    title: ClassVar[str] = "Source inference"
    paper: ClassVar[str] = "Hu et al. 2023, Source inference attacks, Sections 3.2 to 3.4"
    needs: ClassVar[Needs] = Needs(
        views=("individual",),
        protocols=tuple(PROTOCOLS),
        knowledge=("losses", "targets"),
        takes=("rounds", "clients", "frozen", "structures"),
    )
    in_apps: ClassVar[InApps] = InApps(place=0)
