"""What declares the reading of moved rows, apart from it: needs are shown before torch is imported."""

from dataclasses import dataclass
from typing import ClassVar

from fedattack.attacks import options
from fedattack.attacks.needs import InApps, Needs


@dataclass(frozen=True)
class TokensOptions:
    """How much is looked at, and how often a row may be named by accident."""

    name: ClassVar[str] = "tokens"
    title: ClassVar[str] = "Rows of embeddings, item tables and one-hot layers that moved"
    paper: ClassVar[str] = "Melis et al. 2019, Exploiting unintended feature leakage"
    needs: ClassVar[Needs] = Needs(
        views=("individual", "aggregate"),
        protocols=("fedavg", "fedsgd"),
        knowledge=(),
        takes=("rounds", "clients", "frozen", "structures"),
    )
    in_apps: ClassVar[InApps] = InApps(
        place=4, reads_steps=True, reads_all=True, truth="fedattack.attacks.lookups:rows_in"
    )

    replies: int = options.whole(
        10, "replies of each client that are looked at, spread over the run; of sums all are", least=1
    )
    false_alarms: float = options.number(
        0.05, "of the rows that are named where all rows move, as by noise, the share that may be false on average"
    )
