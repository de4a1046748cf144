"""What declares the reading of trees, apart from it: needs are shown before torch is imported."""

from fedattack.attacks.needs import Needs
from fedattack.attacks.options import Options
from fedattack.base.settings import setting


class TreesOptions(Options):
    """How much of a client's table is put together."""

    name = "trees"
    title = "Thresholds, leaves and covers of boosted trees"
    paper = "after Di Gennaro et al. 2025, TimberStrike: Dataset reconstruction attack"
    finds = ("columns", "rows", "values", "linked")
    needs = Needs(
        views=("individual",),
        protocols=("fedavg",),
        knowledge=(),
        takes=("rounds", "clients"),
        about="clients that send trees of XGBoost as bytes",
    )

    rows: int = setting(500, "most rows of each client that are rebuilt", ge=1)
    replies: int = setting(20, "most replies of each client whose trees are read, from the first on", ge=1)
