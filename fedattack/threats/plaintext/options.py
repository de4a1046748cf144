"""What declares the reading of plaintext, apart from it: needs are shown before torch is imported."""

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.options import Options
from fedattack.base.settings import setting
from fedattack.record.format import PROTOCOLS

FEWEST = 5
"""Below how many examples a group is small, unless one chooses another number: what is usual in statistics that are
published."""


class PlaintextOptions(Options):
    """Below how many examples a group is small."""

    name = "plaintext"
    title = "What the numbers that clients send give away by themselves"
    paper = "none: plaintext reads numbers and texts as they are"
    finds = ("own-examples", "given-away", "statistics", "single-values", "small-groups", "columns", "gradient-labels")
    needs = Needs(
        views=("individual", "aggregate"),
        protocols=tuple(PROTOCOLS),
        knowledge=(),
        takes=("rounds", "clients", "frozen", "structures", "untrained"),
    )
    in_apps = InApps(place=5)

    smallest_group: int = setting(
        FEWEST, "groups of fewer examples whose sizes clients send are called small", ge=2, le=1_000_000
    )
