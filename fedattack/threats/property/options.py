"""What declares PROLIN, apart from it: needs are shown, and options checked, before torch is imported."""

from typing import Literal

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.options import MemoryOptions, WorkersOptions
from fedattack.base.settings import setting

Mode = Literal["linear", "exact"]


class ProlinOptions(WorkersOptions, MemoryOptions):
    """How the detectors are trained."""

    name = "prolin"
    title = "Property inference against secure aggregation"
    paper = "Kerkouche et al. 2023, PROLIN, Sections 5 and 6"
    finds = (
        "f1",
        "f1-reg",
        "f1-ols",
        "f1-baseline",
        "f1-posterior",
        "precision",
        "recall",
        "recall-at-far",
        "recall-at-far-posterior",
        "plaintext",
        "false-alarms",
    )
    needs = Needs(
        views=("aggregate",),
        protocols=("fedavg",),
        knowledge=("model", "auxiliary", "training", "property"),
        takes=("rounds", "structures"),
        remedy="`fedattack audit APP --property CLASS`, of which some clients hold examples and others do not",
        asked_of="classes",
    )
    in_apps = InApps(is_slow=True, of_sums=True)

    shadows: Mode | None = setting(
        None, "linear (from per-example gradients, the default if the model allows it) or exact"
    )
