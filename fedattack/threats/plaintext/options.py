"""What declares the reading of plaintext, apart from it: needs are shown before torch is imported."""

from dataclasses import dataclass
from typing import ClassVar

from fedattack.attacks.needs import InApps, Needs
from fedattack.record.format import PROTOCOLS


@dataclass(frozen=True)
class PlaintextOptions:
    """There is nothing to choose."""

    name: ClassVar[str] = "plaintext"
    title: ClassVar[str] = "What stands in plaintext beside the model"
    paper: ClassVar[str] = "none: the numbers and texts are read as they are"
    needs: ClassVar[Needs] = Needs(
        views=("individual", "aggregate"),
        protocols=tuple(PROTOCOLS),
        knowledge=(),
        takes=("rounds", "clients", "frozen", "structures"),
    )
    in_apps: ClassVar[InApps] = InApps(place=5, truth="fedattack.threats.plaintext.truths:truth_in")
