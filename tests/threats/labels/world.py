"""Clients that hold the bundled digits in different shares, and send gradients or models; no Flower is run."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets, read_knowledge, write_knowledge
from fedattack.audit.evidence import read_evidence
from fedattack.audit.judging import judge_attacks
from fedattack.audit.truth import note_node, write_truth
from fedattack.learning import LocalSGD, build_model, full_gradient, gradient_step, train_local
from fedattack.record import Exchange, Record, RecordWriter, Reply, project_record
from tests.worlds.inversion import digits

CLIENTS, CLASSES, LR = 6, 10, 0.1


def ends_in_nine() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9))


def state(model):
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


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
    alter=lambda name, array: array,
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
    writer = RecordWriter(folder / "record", seed=seed, facts={"lr": LR}, protocol=protocol)
    for number in range(rounds):
        replies = []
        for client in range(clients) if taking_part is None else taking_part[number]:
            model = known.build()
            model.load_state_dict({name: torch.from_numpy(array) for name, array in common.items()})
            rows = parts[client]
            if protocol == "fedsgd":
                sent = full_gradient(model, x[rows], y[rows], seed=0).arrays
            else:
                train_local(model, x[rows], y[rows], seed=seed + client, **vars(training))
                sent = state(model)
            sent = {name: alter(name, array) for name, array in sent.items()}
            replies.append(Reply(f"node{client}", "ok", sent, len(rows), {}))
        writer.write(Exchange(number + 1, common, replies))
        mean = {name: np.mean([reply.arrays[name] for reply in replies], axis=0) for name in common}
        mean = {name: array.astype(np.float32) for name, array in mean.items()}
        common = gradient_step(common, mean, LR) if protocol == "fedsgd" else mean
    writer.close(final=common)
    targets = Targets(x[order[-20:]], y[order[-20:]])
    examples = Targets(x[own], y[own]) if auxiliary else None
    write_knowledge(
        folder / "knowledge",
        Knowledge(model=known, targets=targets, auxiliary=examples, training=training if knows_training else None),
    )
    write_truth(
        folder / "truth",
        clients=[str(client) for client in range(clients)],
        classes=[str(label) for label in range(CLASSES)],
        counts=np.array([np.bincount(y[rows], minlength=CLASSES) for rows in parts]),
        evaluation=(x[own], y[own]) if auxiliary else None,
        targets=targets.fingerprint,
    )
    for client in range(clients):
        note_node(folder / "truth", node=f"node{client}", client=str(client))
    return folder


def write_sums_of_digits(folder: Path, **options) -> Path:
    """Write the same run as a server of secure aggregation sees it."""
    each = write_digits_run(folder / "each", **options)
    project_record(Record(each / "record"), folder / "record")
    for name in ("knowledge", "truth"):
        (each / name).rename(folder / name)
    return folder


def attacked(folder: Path):
    return ATTACKS["labels"].run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu")


def judged(folder: Path):
    """Attack and judge a run folder; findings by metric."""
    attacked(folder).save(folder / "scores" / "labels.npz")
    findings = judge_attacks(read_evidence(folder), setting={}, provenance={})
    return {finding.metric: finding for finding in findings}
