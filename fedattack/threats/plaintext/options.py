"""What declares the reading of plaintext, apart from it: needs are shown before torch is imported."""

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.options import Options
from fedattack.record.format import PROTOCOLS


class PlaintextOptions(Options):
    """There is nothing to choose."""

    name = "plaintext"
    title = "What the numbers that clients send give away by themselves"
    paper = "none: the numbers and texts are read as they are"
    needs = Needs(
        views=("individual", "aggregate"),
        protocols=tuple(PROTOCOLS),
        knowledge=(),
        takes=("rounds", "clients", "frozen", "structures", "untrained"),
    )
    in_apps = InApps(place=5)
