"""What declares the reading of moved rows, apart from it: needs are shown before torch is imported."""

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.options import Options
from fedattack.base.settings import setting


class TokensOptions(Options):
    """How much is looked at, and how often a row may be named by accident."""

    name = "tokens"
    title = "Rows of embeddings, item tables and one-hot layers that moved"
    paper = "Melis et al. 2019, Exploiting unintended feature leakage"
    finds = ("f1", "precision", "recall")
    needs = Needs(
        views=("individual", "aggregate"),
        protocols=("fedavg", "fedsgd"),
        knowledge=(),
        takes=("rounds", "clients", "frozen", "structures"),
        about="models that look up rows of a table, or take inputs of 0 and 1",
    )
    in_apps = InApps(place=4, reads_steps=True, reads_all=True)

    replies: int = setting(
        10, "replies of each client that are attacked, spread over the run; sums are all attacked", ge=1
    )
    false_alarms: float = setting(
        0.05,
        "if all rows move, as with noise: the share of named rows that may be wrong on average",
        gt=0,
    )
