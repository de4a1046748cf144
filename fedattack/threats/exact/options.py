"""What declares the reading of the first layer, apart from it: needs are shown before torch is imported."""

from dataclasses import dataclass
from typing import ClassVar

from fedattack.attacks import options
from fedattack.attacks.needs import InApps, Needs


@dataclass(frozen=True)
class ExactOptions:
    """How much is looked at, and how long batches are searched."""

    name: ClassVar[str] = "exact"
    title: ClassVar[str] = "Examples read off the first fully connected layer"
    paper: ClassVar[str] = "Marchand et al. 2023, SRATTA; Dimitrov et al. 2024, SPEAR"
    needs: ClassVar[Needs] = Needs(
        views=("individual", "aggregate"),
        protocols=("fedavg", "fedsgd"),
        knowledge=("model",),
        takes=("rounds", "clients", "models"),
        sgd=True,
    )
    in_apps: ClassVar[InApps] = InApps(
        place=3, reads_steps=True, truth="fedattack.attacks.held_examples:whole_examples"
    )

    replies: int = options.whole(
        10, "replies of each client that are looked at, spread over the run; of sums all are", least=1
    )
    draws: int = options.whole(
        100_000, "sets of neurons that are drawn for an update to take a batch apart; 0 leaves that out", least=0
    )
