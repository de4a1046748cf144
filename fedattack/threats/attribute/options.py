"""What declares the attacks, apart from them: needs are shown, and options checked, before torch is imported."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedattack.attacks import options
from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.replies import UPDATES

Relaxation = Literal["softmax", "gumbel"]
RELAXATIONS: tuple[Relaxation, ...] = ("softmax", "gumbel")

Knows = Literal["known", "unknown"]
_KNOWS = ("known", "unknown")


@dataclass(frozen=True)
class ModelBasedOptions(options.MemoryOptions):
    """How much memory the models of all clients may take; of longer runs the last rounds are used."""

    name: ClassVar[str] = "aia"
    title: ClassVar[str] = "Model-based attribute inference"
    paper: ClassVar[str] = "Driouich et al. 2022, A novel model-based attribute inference attack, Section 4"
    needs: ClassVar[Needs] = Needs(
        views=("individual",),
        protocols=("fedavg",),
        knowledge=("model", "training", "partial"),
        sgd=True,
        takes=("rounds", "clients"),
    )


@dataclass(frozen=True)
class GradientMatchingOptions(options.WorkersOptions, options.MemoryOptions):
    """How gradients are matched."""

    name: ClassVar[str] = "ara"
    title: ClassVar[str] = "Attribute reconstruction by gradient matching"
    paper: ClassVar[str] = "Lyu & Chen 2021, A novel attribute reconstruction attack in federated learning, Section 3"
    needs: ClassVar[Needs] = Needs(
        views=("individual",),
        protocols=("fedavg",),
        knowledge=("model", "training", "partial"),
        sgd=True,
        takes=("rounds", "clients"),
    )
    in_apps: ClassVar[InApps] = InApps(
        options={"restarts": 1},
        remedy="--sensitive NUMBER, a column of the model's input",
        asked_of="tables",
    )

    updates: str = options.rounds("pre5", f"{', '.join(UPDATES)}, or numbers of rounds such as 1,2,10 (pre5)")
    restarts: int | None = options.whole(
        None, "starts of the optimisation, of which the best counts (1 of Adam, 4 of L-BFGS)", least=1
    )
    steps: int = options.whole(200, "steps of Adam, and at most of L-BFGS (200)", least=1)
    relaxation: Relaxation = options.choice(
        "softmax", "softmax as in the paper's algorithm, or gumbel with noise (softmax)", RELAXATIONS
    )
    temperature: float = options.number(1.0, "of the relaxation (1)")
    weights: Literal["uniform", "free"] | None = options.choice(
        None,
        "uniform as in the paper, or free: find examples' weights too (free if a round has several steps)",
        ("uniform", "free"),
    )
    prior: Knows = options.choice("known", "known or unknown (known where knowledge has one)", _KNOWS)
    label: Knows = options.choice("known", "known or unknown (known)", _KNOWS)
    membership: Knows = options.choice("known", "known, or unknown: examples lie among auxiliary ones (known)", _KNOWS)


@dataclass(frozen=True)
class BaselinesOptions:
    """There is nothing to choose."""

    name: ClassVar[str] = "attribute-baselines"
    title: ClassVar[str] = "Attribute inference without gradients: guesses, public records, statistics"
    paper: ClassVar[str] = "Lyu & Chen 2021, A novel attribute reconstruction attack in federated learning, Section 4.3"
    needs: ClassVar[Needs] = Needs(
        views=("individual",),
        protocols=("fedavg",),
        knowledge=("model", "partial"),
        takes=("rounds", "clients", "frozen"),
    )
