"""Clients that hold the bundled digits in different shares, and send gradients or models; no Flower is run."""

from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from fedattack.attacks import Knowledge, ModelKnowledge, Targets
from fedattack.learning import LocalSGD, build_model
from tests.worlds import attacked as world
from tests.worlds.attacked import as_they_are, count_labels, state, write_known, write_rounds
from tests.worlds.inversion import digits

CLIENTS, CLASSES, LR = 6, 10, 0.1


def ends_in_nine() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9))


def write_digits_run(
    folder: Path,
    *,
    protocol="fedsgd",
    rounds=1,
    epochs=1,
    alpha=0.5,
    each=60,
    seed=0,
    auxiliary=200,
    taking_part=None,
    clients=CLIENTS,
    alter=as_they_are,
    spec="mlp",
    knows_training=True,
) -> Path:
    """Write record, knowledge and truth; ``taking_part`` says by round which clients do."""
    x, y = digits()
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(y))
    own, rest = order[:auxiliary], order[auxiliary:]
    parts = []
    for _ in range(clients):
        weights = draw.dirichlet(np.full(CLASSES, alpha))[y[rest]] + 1e-9
        chosen = draw.choice(rest, size=min(each, len(rest) // 2), replace=False, p=weights / weights.sum())
        parts.append(chosen)
        rest = np.setdiff1d(rest, chosen)
    training = LocalSGD(epochs, 8, LR)
    known = ModelKnowledge(spec=spec, input_shape=(1, 8, 8), classes=CLASSES, hidden=32)
    common = state(build_model(spec, input_shape=(1, 8, 8), classes=CLASSES, hidden=32, seed=seed))
    shape = {"lr": LR, "protocol": protocol, "rounds": rounds, "training": training, "taking_part": taking_part}
    write_rounds(
        folder, known, common, x, y, parts, alter=alter, seed=seed, seeds=lambda client: seed + client, **shape
    )
    knowledge = Knowledge(
        model=known,
        targets=Targets(x[order[-20:]], y[order[-20:]]),
        auxiliary=Targets(x[own], y[own]) if auxiliary else None,
        training=training if knows_training else None,
    )
    evaluation = (x[own], y[own]) if auxiliary else None
    return write_known(folder, knowledge, count_labels(y, parts, CLASSES), evaluation=evaluation)


write_sums_of_digits = partial(world.write_sums, write_digits_run)
attacked = partial(world.attack, "labels")
judged = partial(world.attack_and_judge, "labels")
