"""What declares gradient inversion, apart from it: needs are shown, and options checked, before torch is imported."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedattack.attacks import options
from fedattack.attacks.needs import InApps, Needs

Method = Literal["cos", "l2"]
METHODS: tuple[Method, ...] = ("cos", "l2")

Order = Literal["fixed", "searched"]
ORDERS: tuple[Order, ...] = ("fixed", "searched")

MOST_ORDERED = 4
"""Mini-batches of an epoch up to which their order is searched for; each of their steps then computes all examples."""

KNOWN, UNBOUNDED = "known", "none"

Labels = Literal["rule", "free"]
_LABELS: tuple[Labels, ...] = ("rule", "free")


@dataclass(frozen=True)
class GradientInversionOptions(options.WorkersOptions, options.MemoryOptions):
    """How examples are searched for."""

    name: ClassVar[str] = "inversion"
    title: ClassVar[str] = "Reconstruction of training examples by gradient inversion"
    paper: ClassVar[str] = (
        "Geiping et al. 2020, Inverting gradients – how easy is it to break privacy in federated learning?, Section 4"
    )
    needs: ClassVar[Needs] = Needs(
        views=("individual",),
        protocols=("fedsgd", "fedavg"),
        knowledge=("model", "training"),
        sgd=True,
        takes=("rounds", "clients"),
    )
    in_apps: ClassVar[InApps] = InApps(
        of_few=True,
        remedy="clients of few examples that train by plain SGD, and somebody who evaluates on others",
        asked_of="arrays",
    )

    updates: str = options.rounds("pre1", "pre1, pre2, pre5, gap10, last5, or numbers of rounds such as 1,2,10 (pre1)")
    clients: tuple[str, ...] = options.words(
        (), "names or node ids of the clients to attack, separated by commas (all)"
    )
    records: int | None = options.whole(
        None, "how many examples a reply is about (as many as it says; 1 where it says nothing)", least=1
    )
    method: Method = options.choice(
        "cos", "cos: cosine distance and Adam; l2: squared distance and L-BFGS (cos)", METHODS
    )
    iterations: int = options.whole(1000, "gradients computed for a batch, over all its starts (1000)", least=1)
    restarts: int = options.whole(
        1, "starts that share the iterations, the worse half given up again and again; the best counts (1)", least=1
    )
    variation: float | None = options.number(
        None, "weight of the total variation of images beside the log of the distance (3 for cos, 0 for l2)", zero=True
    )
    statistics: float = options.number(
        1.0,
        "weight of the batch's means and variances, where buffers of batch normalisation tell them, beside the log of "
        "the distance (1)",
        zero=True,
    )
    order: Order = options.choice(
        "searched",
        "which example is in which mini-batch; searched: found with the examples, of up to "
        f"{MOST_ORDERED} mini-batches and without batch normalisation; fixed: the same in every epoch (searched)",
        ORDERS,
    )
    box: str | tuple[float, float] = options.interval(
        KNOWN,
        "range that inputs stay in: known (of images, as the knowledge states it or its auxiliary images have it), "
        "none, or two numbers such as 0,1 (known)",
        (KNOWN, UNBOUNDED),
    )
    label: Labels | None = options.choice(
        None,
        "rule: read off the last layer; free: searched for (rule for classes, free for a regression)",
        _LABELS,
    )
