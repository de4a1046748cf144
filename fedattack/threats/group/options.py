"""What declares the inference of private attributes, apart from it.

Needs are shown, and options checked, before torch is imported.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedattack.attacks import options
from fedattack.attacks.needs import InApps, Needs

ADVERSARIES = ("stru-nn", "unkwn-nn", "svm", "random-forest")
"""The adversaries by name."""

SHADOWS = 500
"""Clients made up from auxiliary records, by default."""

EPOCHS = 80


@dataclass(frozen=True)
class PrivateAttributeOptions(options.WorkersOptions, options.MemoryOptions):
    """How private attributes are inferred."""

    name: ClassVar[str] = "private-attribute"
    title: ClassVar[str] = "Inference of clients' private attributes from their updates"
    paper: ClassVar[str] = (
        "Cui et al. 2023, RecUP-FL, Section 5.4; Melis et al. 2019, Exploiting unintended feature leakage in "
        "collaborative learning"
    )
    needs: ClassVar[Needs] = Needs(
        views=("individual",),
        protocols=("fedavg",),
        knowledge=("model", "training", "auxiliary", "attributes"),
        takes=("rounds", "clients", "structures"),
    )
    in_apps: ClassVar[InApps] = InApps(
        is_slow=True, remedy="--groups FILE.toml, which says which clients belong together"
    )

    updates: str = options.rounds(
        "stages",
        "stages (the first, the middle and the last round), pre1, pre2, pre5, gap10, last5, or numbers of rounds such "
        "as 1,2,10 (stages)",
    )
    adversaries: tuple[str, ...] = options.words(
        ADVERSARIES, f"some of {', '.join(ADVERSARIES)}, separated by commas (all)", ADVERSARIES
    )
    clients: int = options.whole(SHADOWS, f"how many clients are made up from auxiliary records ({SHADOWS})", least=1)
    epochs: int = options.whole(EPOCHS, f"of the networks' training ({EPOCHS})", least=1)
