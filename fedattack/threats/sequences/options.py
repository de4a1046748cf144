"""What declares the span check, apart from it: needs are shown before torch is imported."""

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.options import Options
from fedattack.base.settings import setting


class SequencesOptions(Options):
    """How much is looked at, how far from a span counts as within it, and how long is searched."""

    name = "dager"
    title = "Sequences in the span of attention's gradients (DAGER)"
    paper = "Petrov et al. 2024, DAGER: exact gradient inversion for large language models"
    finds = ("exact", "rouge1", "rouge2")
    needs = Needs(
        views=("individual",),
        protocols=("fedavg", "fedsgd"),
        knowledge=("model", "targets"),
        takes=("rounds", "clients", "frozen", "structures"),
        sgd=True,
        about="models of two blocks of attention over tokens",
    )
    in_apps = InApps(place=4, reads_steps=True)

    replies: int = setting(1, "replies of each client that are attacked, spread over the run", ge=1)
    distance: float = setting(
        0.05,
        "how far from a span an input may be, as a share of its length; less if chance would come as near",
        gt=0,
    )
    tries: int = setting(
        3, "encoders: consecutive failed searches after which the attack looks for shorter sequences", ge=1
    )
