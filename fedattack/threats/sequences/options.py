"""What declares the span check, apart from it: needs are shown before torch is imported."""

from dataclasses import dataclass
from typing import ClassVar

from fedattack.attacks import options
from fedattack.attacks.needs import InApps, Needs


@dataclass(frozen=True)
class SequencesOptions:
    """How much is looked at, how far from a span counts as within it, and how long is searched."""

    name: ClassVar[str] = "dager"
    title: ClassVar[str] = "Sequences in the span of attention's gradients (DAGER)"
    paper: ClassVar[str] = "Petrov et al. 2024, DAGER: exact gradient inversion for large language models"
    needs: ClassVar[Needs] = Needs(
        views=("individual",),
        protocols=("fedavg", "fedsgd"),
        knowledge=("model", "targets"),
        takes=("rounds", "clients", "frozen", "structures"),
        sgd=True,
    )
    in_apps: ClassVar[InApps] = InApps(place=4, reads_steps=True, truth="fedattack.attacks.lookups:sequences_in")

    replies: int = options.whole(1, "replies of each client that are looked at, spread over the run", least=1)
    distance: float = options.number(
        0.05, "how far from a span an input may be, as a share of its length; less where chance would come as near"
    )
    tries: int = options.whole(
        3, "encoders: searches in vain, one after another, after which shorter sequences are looked for", least=1
    )
