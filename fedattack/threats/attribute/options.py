"""What declares the attacks, apart from them: needs are shown, and options checked, before torch is imported."""

from dataclasses import replace
from typing import Literal

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.options import MemoryOptions, Options, WorkersOptions, read_rounds
from fedattack.attacks.replies import UPDATES
from fedattack.base.settings import setting

Relaxation = Literal["softmax", "gumbel"]
Knows = Literal["known", "unknown"]


_NEEDS = Needs(
    views=("individual",),
    protocols=("fedavg",),
    knowledge=("model", "training", "partial"),
    sgd=True,
    takes=("rounds", "clients"),
    remedy="`fedattack audit APP --sensitive NUMBER`, a column of the model's input",
    asked_of="tables",
)


_OF_VALUES = replace(_NEEDS, about="a column of few values")

# Losses under clients' models say which value fits, however these were trained.
_BY_MODELS = replace(_NEEDS, knowledge=("model", "partial"), sgd=False)

_FINDS = ("excess", "accuracy", "balanced-accuracy", "rare-recall", "accuracy-*", "bound", "membership")


class ModelBasedOptions(MemoryOptions):
    """How much memory the models of all clients may take; of longer runs the last rounds are used."""

    name = "aia"
    title = "Model-based attribute inference"
    paper = "Driouich et al. 2022, A novel model-based attribute inference attack, Section 4"
    finds = _FINDS
    needs = replace(_BY_MODELS, about="a column of few values")


class GradientMatchingOptions(WorkersOptions, MemoryOptions):
    """How gradients are matched."""

    name = "ara"
    title = "Attribute reconstruction by gradient matching"
    paper = "Lyu & Chen 2021, A novel attribute reconstruction attack in federated learning, Section 3"
    finds = _FINDS
    needs = _OF_VALUES
    in_apps = InApps(options={"restarts": 1})

    updates: str = setting(
        "pre5", f"{', '.join(UPDATES)}, or numbers of rounds such as 1,2,10 (pre5)", read=read_rounds
    )
    restarts: int | None = setting(None, "starts of the optimisation; the best counts (1 of Adam, 4 of L-BFGS)", ge=1)
    steps: int = setting(200, "steps of Adam, and at most of L-BFGS (200)", ge=1)
    relaxation: Relaxation = setting("softmax", "softmax as in the paper's algorithm, or gumbel with noise (softmax)")
    temperature: float = setting(1.0, "of the relaxation (1)", gt=0)
    weights: Literal["uniform", "free"] | None = setting(
        None,
        "uniform as in the paper, or free: find examples' weights too (free if a round has several steps)",
    )
    prior: Knows = setting("known", "known or unknown (known where knowledge has one)")
    label: Knows = setting("known", "known or unknown (known)")
    membership: Knows = setting("known", "known, or unknown: examples lie among auxiliary ones (known)")


class NumberOptions(WorkersOptions, MemoryOptions):
    """How gradients are matched, beside what models say; as for ara."""

    name = "attribute-number"
    title = "A column of numbers, by the models of clients and by gradient matching"
    paper = "Diana et al. 2024, Attribute inference attacks for federated regression tasks, Section 4"
    finds = ("near", "within", "within-*", "rank")
    needs = replace(_BY_MODELS, about="a column of more values, as a number")
    in_apps = InApps(options={"restarts": 1})

    updates: str = setting(
        "pre5", f"{', '.join(UPDATES)}, or numbers of rounds such as 1,2,10 (pre5)", read=read_rounds
    )
    restarts: int | None = setting(None, "starts of the optimisation; the best counts (1 of Adam, 4 of L-BFGS)", ge=1)
    steps: int = setting(200, "steps of Adam, and at most of L-BFGS (200)", ge=1)


class BaselinesOptions(Options):
    """There is nothing to choose."""

    is_baseline = True

    name = "attribute-baselines"
    title = "Attribute inference without gradients: guesses, public records, statistics"
    paper = "Lyu & Chen 2021, A novel attribute reconstruction attack in federated learning, Section 4.3"
    needs = Needs(
        views=("individual",),
        protocols=("fedavg",),
        knowledge=("model", "partial"),
        takes=("rounds", "clients", "frozen"),
        about="a column of few values",
    )
