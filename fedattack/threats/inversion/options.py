"""What declares gradient inversion, apart from it: needs are shown, and options checked, before torch is imported."""

from typing import Literal

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.options import MemoryOptions, WorkersOptions, interval_reader, read_rounds
from fedattack.base.settings import setting

Method = Literal["cos", "l2", "table"]
Order = Literal["fixed", "searched"]

MOST_ORDERED = 4
"""Mini-batches of an epoch up to which their order is searched for; each of their steps then computes all examples."""

POOLED = 4
"""Starts whose rows of a table are pooled."""

SURE = 0.2
"""How unsure of a cell of a table, from 0 to 1, an attacker who is sure of it may be."""

OF_MANY = 500
"""Gradients that an audit of an app computes for a client of many examples."""

KNOWN, UNBOUNDED = "known", "none"

Labels = Literal["rule", "free"]
Imitation = Literal["steps", "middle"]


class GradientInversionOptions(WorkersOptions, MemoryOptions):
    """How examples are searched for."""

    name = "inversion"
    title = "Reconstruction of training examples by gradient inversion"
    paper = (
        "Geiping et al. 2020, Inverting gradients – how easy is it to break privacy in federated learning?, Section 4"
    )
    finds = ("recognised", "psnr", "ssim", "mse", "cells", "rows", "sure-cells", "labels", "preflight")
    needs = Needs(
        views=("individual",),
        protocols=("fedsgd", "fedavg"),
        knowledge=("model", "training"),
        sgd=True,
        takes=("rounds", "clients"),
        remedy="clients that train by plain SGD, such as torch.optim.SGD, which says how they train",
        about="clients that train by cross-entropy or squared errors",
        asked_of="arrays",
    )
    in_apps = InApps(of_few=True, for_many={"imitate": "middle", "iterations": str(OF_MANY)})

    updates: str = setting(
        "pre1", "pre1, pre2, pre5, gap10, last5, or numbers of rounds such as 1,2,10 (pre1)", read=read_rounds
    )
    clients: tuple[str, ...] = setting((), "names or node ids of the clients to attack, separated by commas (all)")
    records: int | None = setting(
        None, "how many examples a reply is about (as many as it says; 1 if it says nothing)", ge=1
    )
    method: Method | None = setting(
        None,
        "cos: cosine distance and Adam; l2: squared distance and L-BFGS; table: rows of categories and numbers (table "
        "for a table with categories whose coding is known, else cos)",
    )
    iterations: int = setting(1000, "gradients computed for a batch, over all its starts (1000)", ge=1)
    restarts: int | None = setting(
        None,
        "starts that share the iterations; the worse half is dropped again and again, and the best counts; by "
        f"method=table all go on, and are pooled (1; {POOLED} by method=table)",
        ge=1,
    )
    variation: float | None = setting(
        None, "weight of the total variation of images, relative to the log of the distance (3 for cos, 0 for l2)", ge=0
    )
    statistics: float = setting(
        1.0,
        "weight of the batch's means and variances, if buffers of batch normalisation tell them, relative to the log "
        "of the distance (1)",
        ge=0,
    )
    order: Order = setting(
        "searched",
        "which example is in which mini-batch; searched: found with the examples, of up to "
        f"{MOST_ORDERED} mini-batches and without batch normalisation; fixed: the same in every epoch (searched)",
    )
    imitate: Imitation = setting(
        "steps",
        "steps: each local step of a client; middle: one gradient over all of its examples, at the middle between the "
        "model that it was sent and the one that it sent back, for clients of many steps (steps)",
    )
    box: str | tuple[float, float] = setting(
        KNOWN,
        "range that inputs stay in: known (of images, as the knowledge states it or its auxiliary images have it), "
        "none, or two numbers such as 0,1; by method=table always that of the columns (known)",
        read=interval_reader((KNOWN, UNBOUNDED)),
    )
    label: Labels | None = setting(
        None,
        "rule: read from the last layer; free: searched for (rule for classes, free for a regression)",
    )
