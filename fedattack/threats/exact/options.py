"""What declares the reading of the first layer, apart from it: needs are shown before torch is imported."""

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.options import Options
from fedattack.base.settings import setting


class ExactOptions(Options):
    """How much is looked at, and how long batches are searched."""

    name = "exact"
    title = "Examples read off the first fully connected layer"
    paper = "Marchand et al. 2023, SRATTA; Dimitrov et al. 2024, SPEAR"
    finds = ("recovered", "precision", "clients", "linked", "psnr", "columns")
    needs = Needs(
        views=("individual", "aggregate"),
        protocols=("fedavg", "fedsgd"),
        knowledge=("layers",),
        takes=("rounds", "clients", "models"),
        sgd=True,
        clipped=True,
        about="models that begin with a fully connected layer that clients train",
    )
    in_apps = InApps(place=3, reads_steps=True)

    replies: int = setting(
        10, "replies of each client that are attacked, spread over the run; sums are all attacked", ge=1
    )
    draws: int = setting(100_000, "sets of neurons drawn for an update to separate its batch; 0 skips this", ge=0)
