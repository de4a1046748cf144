"""What declares the inference of private attributes, apart from it.

Needs are shown, and options checked, before torch is imported.
"""

from typing import Literal, get_args

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.options import MemoryOptions, WorkersOptions, read_rounds
from fedattack.base.settings import setting

Adversary = Literal["stru-nn", "unkwn-nn", "svm", "random-forest"]
ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)
"""The adversaries by name."""

SHADOWS = 500
"""Clients made up from auxiliary records, by default."""

EPOCHS = 80


class PrivateAttributeOptions(WorkersOptions, MemoryOptions):
    """How private attributes are inferred."""

    name = "private-attribute"
    title = "Inference of clients' private attributes from their updates"
    paper = (
        "Cui et al. 2023, RecUP-FL, Section 5.4; Melis et al. 2019, Exploiting unintended feature leakage in "
        "collaborative learning"
    )
    finds = ("*-stru-nn", "*-unkwn-nn", "*-svm", "*-random-forest", "*-adaptive")
    needs = Needs(
        views=("individual",),
        protocols=("fedavg",),
        knowledge=("model", "training", "auxiliary", "attributes"),
        takes=("rounds", "clients", "structures"),
        remedy="`fedattack audit APP --groups FILE.toml`, which says which clients belong together",
    )
    in_apps = InApps(is_slow=True)

    updates: str = setting(
        "stages",
        "stages (the first, the middle and the last round), pre1, pre2, pre5, gap10, last5, or numbers of rounds such "
        "as 1,2,10 (stages)",
        read=read_rounds,
    )
    adversaries: tuple[Adversary, ...] = setting(
        ADVERSARIES, f"some of {', '.join(ADVERSARIES)}, separated by commas (all)"
    )
    clients: int = setting(SHADOWS, f"how many clients are simulated from auxiliary records ({SHADOWS})", ge=1)
    epochs: int = setting(EPOCHS, f"of the networks' training ({EPOCHS})", ge=1)
