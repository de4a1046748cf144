"""Who holds what. Written beside the record by whoever knows it; only the audit reads it."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedattack.errors import DataError
from fedattack.files import read_json, read_npz, write_json

HOLDINGS = "holdings.json"
OWNERS = "owners.npz"
EVALUATION = "evaluation.npz"
POSITIVES = "positives.npz"
ACCURACY = "accuracy"
NODES = "nodes"

NOBODY = ""
"""The owner of a target that no client holds."""


@dataclass(frozen=True)
class Truth:
    """The truth about one run.

    Attributes
    ----------
    clients, classes
        Names along the axes of ``counts``.
    counts
        (clients, classes): how many training records of a class a client holds.
    owners
        (targets,): name of the client that holds each target record, :data:`NOBODY` for the null targets. Empty where
        the truth is about a property that several clients may have.
    evaluation
        Records ``x`` and labels ``y`` that no client holds, to measure the quality of models with.
    nodes
        Which client hides behind each node id of the record.
    targets
        Fingerprint of the target records that ``owners`` speaks of.
    data
        Fingerprint of the whole dataset, if known.
    positives
        (targets, clients), or (1, clients) for a property that speaks of no target record: which clients have the
        property; ``None`` where the truth is about owners.
    notes
        What a reader of the report must know of the run's data.
    accuracy
        By round, then by client: accuracy of the client's own model on its training records and on records that no
        client holds; empty where clients note none (the record holds their models).
    """

    clients: tuple[str, ...]
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    owners: NDArray[np.str_]
    evaluation: tuple[NDArray[np.float32], NDArray[np.int64]]
    nodes: dict[str, str]
    targets: str
    data: str = ""
    positives: NDArray[np.bool_] | None = None
    notes: tuple[str, ...] = ()
    accuracy: Mapping[int, Mapping[str, tuple[float, float]]] = field(default_factory=dict)


def write_truth(
    folder: Path,
    *,
    clients: list[str],
    classes: list[str],
    counts: NDArray[np.int64],
    evaluation: tuple[NDArray[np.float32], NDArray[np.int64]],
    targets: str,
    owners: list[str] | None = None,
    positives: NDArray[np.bool_] | None = None,
    data: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Write all of :class:`Truth` but ``nodes`` and ``accuracy``.

    The clients themselves note these with :func:`note_node` and :func:`note_accuracy`.
    """
    (folder / NODES).mkdir(parents=True, exist_ok=True)
    holdings = {"clients": clients, "classes": classes, "counts": counts.tolist(), "targets": targets, "data": data}
    write_json(folder / HOLDINGS, holdings | ({"notes": [*notes]} if notes else {}))
    np.savez(folder / OWNERS, owners=np.array(owners or [], dtype=np.str_))
    if positives is not None:
        np.savez(folder / POSITIVES, positives=positives)
    np.savez(folder / EVALUATION, x=evaluation[0], y=evaluation[1])


def note_node(folder: Path | str, *, node: str, client: str) -> None:
    """Note, on the client's side, which client runs as ``node``: Flower's node ids are random and known to it alone."""
    path = Path(folder) / NODES / f"{node}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"node": node, "client": client})


def note_accuracy(folder: Path | str, *, client: str, server_round: int, own: float, unheld: float) -> None:
    """Note, on the client's side, how good its model is after a round, where no model ever leaves the client.

    Parameters
    ----------
    folder
        The truth's.
    client, server_round
        Whose model, and when.
    own, unheld
        Its accuracy, in 0 … 1, on the client's training records and on records that no client holds.
    """
    path = Path(folder) / ACCURACY / f"{client}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"round": server_round, "own": own, "unheld": unheld}) + "\n")


def read_truth(folder: Path) -> Truth:
    """Read the truth at ``folder``.

    Raises
    ------
    DataError
        If a file is missing or damaged, or the parts contradict each other.
    """
    hint = "without the truth a result can be computed but not judged"
    holdings = read_json(folder / HOLDINGS, DataError, hint)
    owners = read_npz(folder / OWNERS, DataError, hint, "owners")["owners"]
    evaluation = read_npz(folder / EVALUATION, DataError, hint, "x", "y")
    there = (folder / POSITIVES).exists()
    positives = read_npz(folder / POSITIVES, DataError, hint, "positives")["positives"] if there else None
    notes = [read_json(path, DataError, hint) for path in sorted((folder / NODES).glob("*.json"))]
    try:
        truth = Truth(
            clients=tuple(str(name) for name in holdings["clients"]),
            classes=tuple(str(name) for name in holdings["classes"]),
            counts=np.asarray(holdings["counts"], dtype=np.int64),
            owners=owners,
            evaluation=(evaluation["x"], evaluation["y"]),
            nodes={str(note["node"]): str(note["client"]) for note in notes},
            targets=str(holdings["targets"]),
            data=str(holdings["data"]),
            positives=positives,
            notes=tuple(str(note) for note in holdings.get("notes", ())),
            accuracy=_read_accuracy(folder / ACCURACY),
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise DataError(
            f"{folder}: {HOLDINGS} or a file of {NODES}/ or {ACCURACY}/ lacks or misstates {cause}; {hint}"
        ) from None
    unknown = sorted({*map(str, owners.tolist()), *truth.nodes.values()} - {*truth.clients, NOBODY})
    if unknown:
        raise DataError(f"{folder}: {', '.join(unknown)} is no client of {HOLDINGS}; the truth contradicts itself")
    if truth.counts.shape != (len(truth.clients), len(truth.classes)):
        raise DataError(f"{folder / HOLDINGS}: counts have shape {truth.counts.shape}, not clients by classes; {hint}")
    if positives is not None and (
        positives.dtype != np.bool_ or positives.ndim != 2 or positives.shape[1] != len(truth.clients)
    ):
        raise DataError(
            f"{folder / POSITIVES}: expected yes or no for every target and each of {len(truth.clients)} clients, got "
            f"{positives.dtype} of shape {positives.shape}; {hint}"
        )
    return truth


def _read_accuracy(folder: Path) -> dict[int, dict[str, tuple[float, float]]]:
    accuracy: dict[int, dict[str, tuple[float, float]]] = defaultdict(dict)
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            noted = json.loads(line)
            accuracy[int(noted["round"])][path.stem] = (float(noted["own"]), float(noted["unheld"]))
    return dict(accuracy)
