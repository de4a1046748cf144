"""What declares the reading of trees, apart from it: needs are shown before torch is imported."""

from dataclasses import dataclass
from typing import ClassVar

from fedattack.attacks import options
from fedattack.attacks.needs import InApps, Needs


@dataclass(frozen=True)
class TreesOptions:
    """How much of a client's table is put together."""

    name: ClassVar[str] = "trees"
    title: ClassVar[str] = "Thresholds, leaves and covers of boosted trees"
    paper: ClassVar[str] = "after Di Gennaro et al. 2025, TimberStrike: Dataset reconstruction attack"
    needs: ClassVar[Needs] = Needs(
        views=("individual",), protocols=("fedavg",), knowledge=(), takes=("rounds", "clients")
    )
    in_apps: ClassVar[InApps] = InApps(
        plants="fedattack.threats.trees.planting:plant", truth="fedattack.threats.trees.replies:tables_in"
    )
    asks_peers: ClassVar[bool] = True

    rows: int = options.whole(500, "examples of each client that are put together, at most", least=1)
    replies: int = options.whole(20, "replies of each client whose trees are read, at most, from the first on", least=1)
