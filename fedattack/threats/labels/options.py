"""What declares the counting of labels, apart from it: needs are shown before torch is imported."""

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.options import Options
from fedattack.base.settings import setting


class LabelsOptions(Options):
    """How much is looked at."""

    name = "labels"
    title = "Labels counted in the last layer"
    paper = "Wainakh et al. 2022, User-level label leakage from gradients (LLG)"
    finds = ("right", "present", "mean-error")
    needs = Needs(
        views=("individual", "aggregate"),
        protocols=("fedavg", "fedsgd"),
        knowledge=("layers",),
        takes=("rounds", "clients", "frozen", "structures"),
        sgd=True,
        clipped=True,
        about="classifiers that end in a linear layer, trained by a cross-entropy",
    )
    in_apps = InApps(place=3, reads_steps=True, reads_all=True)

    replies: int = setting(
        10, "replies of each client that are attacked, spread over the run; sums are all attacked", ge=1
    )
