"""What declares the counting of labels, apart from it: needs are shown before torch is imported."""

from dataclasses import dataclass
from typing import ClassVar

from fedattack.attacks import options
from fedattack.attacks.needs import InApps, Needs


@dataclass(frozen=True)
class LabelsOptions:
    """How much is looked at."""

    name: ClassVar[str] = "labels"
    title: ClassVar[str] = "Labels counted in the last layer"
    paper: ClassVar[str] = "Wainakh et al. 2022, User-level label leakage from gradients (LLG)"
    needs: ClassVar[Needs] = Needs(
        views=("individual", "aggregate"),
        protocols=("fedavg", "fedsgd"),
        knowledge=("model",),
        takes=("rounds", "clients", "frozen", "structures"),
        sgd=True,
    )
    in_apps: ClassVar[InApps] = InApps(place=3, reads_steps=True, reads_all=True)

    replies: int = options.whole(
        10, "replies of each client that are looked at, spread over the run; of sums all are", least=1
    )
