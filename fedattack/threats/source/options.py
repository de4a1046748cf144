"""What declares source inference, apart from it: needs are shown, and options checked, before torch is imported."""

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.options import WorkersOptions
from fedattack.record.format import PROTOCOLS


class SourceOptions(WorkersOptions):
    """How models are evaluated."""

    name = "sia"
    title = "Source inference"
    paper = "Hu et al. 2023, Source inference attacks, Sections 3.2 to 3.4"
    finds = (
        "asr",
        "asr-likelihood",
        "asr-last-round",
        "asr-best-round",
        "asr-worst-client",
        "asr-beyond-labels",
        "asr-beyond-site",
        "asr-shared",
    )
    needs = Needs(
        views=("individual",),
        protocols=tuple(PROTOCOLS),
        knowledge=("losses", "targets"),
        takes=("rounds", "clients", "frozen", "structures"),
    )
    in_apps = InApps(place=0)
