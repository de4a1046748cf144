"""Who holds what. Written beside the record by whoever knows it; only the audit reads it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.errors import DataError
from fedattack.files import read_json, write_json

HOLDINGS = "holdings.json"
OWNERS = "owners.npz"
EVALUATION = "evaluation.npz"
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
        (targets,): name of the client that holds each target record, :data:`NOBODY` for the null targets.
    evaluation
        Records ``x`` and labels ``y`` that no client holds, to measure the quality of models with.
    nodes
        Which client hides behind each node id of the record.
    """

    clients: tuple[str, ...]
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    owners: NDArray[np.str_]
    evaluation: tuple[NDArray[np.float32], NDArray[np.int64]]
    nodes: dict[str, str]


def write_truth(
    folder: Path,
    *,
    clients: list[str],
    classes: list[str],
    counts: NDArray[np.int64],
    owners: list[str],
    evaluation: tuple[NDArray[np.float32], NDArray[np.int64]],
) -> None:
    """Write all of :class:`Truth` but ``nodes``, which the clients themselves note with :func:`note_node`."""
    (folder / NODES).mkdir(parents=True, exist_ok=True)
    write_json(folder / HOLDINGS, {"clients": clients, "classes": classes, "counts": counts.tolist()})
    np.savez(folder / OWNERS, owners=np.array(owners, dtype=np.str_))
    np.savez(folder / EVALUATION, x=evaluation[0], y=evaluation[1])


def note_node(folder: Path | str, *, node: str, client: str) -> None:
    """Note, on the client's side, which client runs as ``node``: Flower's node ids are random and known to it alone."""
    path = Path(folder) / NODES / f"{node}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"node": node, "client": client})


def read_truth(folder: Path) -> Truth:
    """Read the truth at ``folder``.

    Raises
    ------
    DataError
        If a file is missing or damaged, or the parts contradict each other.
    """
    hint = "without the truth a result can be computed but not judged"
    holdings = read_json(folder / HOLDINGS, DataError, hint)
    owners = _load(folder / OWNERS, "owners")["owners"]
    evaluation = _load(folder / EVALUATION, "x", "y")
    nodes = {}
    for path in sorted((folder / NODES).glob("*.json")):
        note = read_json(path, DataError, hint)
        nodes[str(note["node"])] = str(note["client"])
    clients = tuple(str(name) for name in holdings["clients"])
    unknown = sorted({*owners.tolist(), *nodes.values()} - {*clients, NOBODY})
    if unknown:
        raise DataError(f"{folder}: {', '.join(unknown)} is no client of {HOLDINGS}; the truth contradicts itself")
    return Truth(
        clients=clients,
        classes=tuple(str(name) for name in holdings["classes"]),
        counts=np.asarray(holdings["counts"], dtype=np.int64),
        owners=owners,
        evaluation=(evaluation["x"], evaluation["y"]),
        nodes=nodes,
    )


def natural_order(names: list[str]) -> list[str]:
    """Sort names so that client 10 comes after client 9."""
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def _load(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except (OSError, ValueError, KeyError) as cause:
        raise DataError(f"{path} is missing or damaged ({cause})") from None
