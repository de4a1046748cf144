"""What worlds of single attacks share: clients that train or send gradients, the truth, attack and judge at once."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, read_knowledge, write_knowledge
from fedattack.audit.finding import Finding
from fedattack.audit.judging import judge_attacks
from fedattack.audit.opened import open_runs
from fedattack.audit.run import audit_runs
from fedattack.audit.truth import note_node, read_truth, write_truth
from fedattack.learning import LocalSGD, full_gradient, gradient_step, train_local
from fedattack.record import Exchange, Record, RecordWriter, Reply, project_record
from fedattack.record.folder import RunFolder

Arrays = Mapping[str, np.ndarray]
Alter = Callable[[str, np.ndarray, np.ndarray], np.ndarray]


def state(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def as_they_are(name: str, array: np.ndarray, start: np.ndarray) -> np.ndarray:
    return array


def gradient_of(model: nn.Module, x: Any, y: np.ndarray) -> Arrays:
    return full_gradient(model, x, y, seed=0).arrays


def write_rounds(
    folder: Path,
    known: ModelKnowledge,
    common: dict[str, np.ndarray],
    x: Any,
    y: np.ndarray,
    parts: Sequence[np.ndarray],
    *,
    lr: float,
    protocol: str,
    rounds: int,
    training: LocalSGD,
    taking_part: Sequence[Sequence[int]] | None = None,
    alter: Alter = as_they_are,
    gradient: Callable[[nn.Module, Any, np.ndarray], Arrays] = gradient_of,
    seed: int = 0,
    seeds: Callable[[int], int] | None = None,
) -> None:
    """Write the record of clients that hold ``parts`` of the examples; ``taking_part`` says by round which do."""
    writer = RecordWriter(folder / "record", seed=seed, facts={"lr": lr}, protocol=protocol)
    for number in range(rounds):
        replies = []
        for client in range(len(parts)) if taking_part is None else taking_part[number]:
            model, rows = known.build(), parts[client]
            model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in common.items()})
            if protocol == "fedsgd":
                sent = gradient(model, x[rows], y[rows])
            else:
                train_local(model, x[rows], y[rows], seed=seeds(client) if seeds else seed, **training.keywords())
                sent = state(model)
            sent = {name: alter(name, array, common[name]) for name, array in sent.items()}
            replies.append(Reply(f"node{client}", "ok", sent, len(rows), {}))
        writer.write(Exchange(number + 1, common, replies))
        mean = {}
        for name, array in common.items():
            mean[name] = np.mean([reply.arrays[name] for reply in replies], axis=0).astype(array.dtype)
        common = gradient_step(common, mean, lr) if protocol == "fedsgd" else mean
    writer.close(final=common)


def write_known(folder: Path, knowledge: Knowledge, counts: np.ndarray, **truth: Any) -> Path:
    """Write knowledge and truth; client i is "i", and ``nodei``."""
    write_knowledge(folder / "knowledge", knowledge)
    clients = [str(client) for client in range(len(counts))]
    classes = [str(label) for label in range(counts.shape[1])]
    told = {"evaluation": None, "targets": knowledge.targets.fingerprint} | truth
    write_truth(folder / "truth", clients=clients, classes=classes, counts=counts, **told)
    for client in clients:
        note_node(folder / "truth", node=f"node{client}", client=client)
    return folder


def count_labels(y: np.ndarray, parts: Sequence[np.ndarray], classes: int) -> np.ndarray:
    return np.array([np.bincount(y[rows], minlength=classes) for rows in parts])


def rewrite_truth(folder: Path, **changes: Any) -> None:
    """Write the truth of a run again, without answers unless they are given."""
    truth = read_truth(folder / "truth")
    told = {"counts": truth.counts, "evaluation": None, "targets": truth.targets} | changes
    if len(truth.evaluation[0]):
        told["evaluation"] = truth.evaluation
    write_truth(folder / "truth", clients=[*truth.clients], classes=[*truth.classes], **told)


def write_sums(write: Callable[..., Path], folder: Path, **options: Any) -> Path:
    """Write the same run as a server of secure aggregation sees it."""
    each = write(folder / "each", **options)
    project_record(Record(each / "record"), folder / "record")
    for name in ("knowledge", "truth"):
        (each / name).rename(folder / name)
    return folder


def attack(name: str, folder: Path, trusted: Sequence[str] = (), **options: str) -> Any:
    known = read_knowledge(folder / "knowledge", trusted=trusted)
    return ATTACKS[name].with_options(options).run(Record(folder / "record"), known, device="cpu")


def judge(folder: Path, trusted: Sequence[str] = ()) -> dict[str, Finding]:
    """Judge the scores of a run folder; findings by metric."""
    findings = judge_attacks(open_runs(RunFolder(folder), trusted=trusted), setting={}, provenance={})
    return {finding.metric: finding for finding in findings}


def audit_folder(folder: Path, *, device: str = "auto", trusted: Sequence[str] = ()) -> list[Finding]:
    """Judge the scores of a run folder as `fedattack report` does, and write what was found, without a page."""
    opened = RunFolder(folder)
    findings, _ = audit_runs(opened, open_runs(opened, trusted=trusted), device=device)
    return findings


def attack_and_judge(name: str, folder: Path, trusted: Sequence[str] = (), **options: str) -> dict[str, Finding]:
    attack(name, folder, trusted, **options).save(folder / "scores" / f"{name}.npz")
    return judge(folder, trusted)
