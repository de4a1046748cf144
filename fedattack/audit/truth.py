"""Who holds what. Written beside the record by whoever knows it; only the audit reads it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.errors import DataError
from fedattack.files import read_json, read_npz, write_json
from fedattack.nodes import NODES, note_node, read_nodes

HOLDINGS = "holdings.json"
OWNERS = "owners.npz"
EVALUATION = "evaluation.npz"
POSITIVES = "positives.npz"
ATTRIBUTES = "attributes.npz"

__all__ = ["NOBODY", "Attributes", "Truth", "note_node", "read_truth", "write_truth"]

NOBODY = ""
"""The owner of a target that no client holds."""


@dataclass(frozen=True)
class Attributes:
    """The values of a sensitive attribute.

    Attributes
    ----------
    values
        (n,): index of each record's value among ``names``, in the order of the attacker's partial records.
    names
        The possible values for people.
    owners
        (n,): name of the client that holds each record.
    column
        Name of the column.
    """

    values: NDArray[np.int64]
    names: tuple[str, ...]
    owners: tuple[str, ...]
    column: str


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
        the truth is about a property that several clients may have, or about an attribute.
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
        property; ``None`` where the truth is about something else.
    attributes
        What an attacker who knows all of a record but one column wants to know; likewise.
    """

    clients: tuple[str, ...]
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    owners: NDArray[np.str_]
    evaluation: tuple[NDArray[np.float32], NDArray[Any]]
    nodes: dict[str, str]
    targets: str
    data: str = ""
    positives: NDArray[np.bool_] | None = None
    attributes: Attributes | None = None


def write_truth(
    folder: Path,
    *,
    clients: list[str],
    classes: list[str],
    counts: NDArray[np.int64],
    evaluation: tuple[NDArray[np.float32], NDArray[Any]],
    targets: str,
    owners: list[str] | None = None,
    positives: NDArray[np.bool_] | None = None,
    attributes: Attributes | None = None,
    data: str = "",
) -> None:
    """Write all of :class:`Truth` but ``nodes``, which the clients themselves note with :func:`note_node`."""
    (folder / NODES).mkdir(parents=True, exist_ok=True)
    holdings = {"clients": clients, "classes": classes, "counts": counts.tolist(), "targets": targets, "data": data}
    write_json(folder / HOLDINGS, holdings)
    np.savez(folder / OWNERS, owners=np.array(owners or [], dtype=np.str_))
    if positives is not None:
        np.savez(folder / POSITIVES, positives=positives)
    if attributes is not None:
        np.savez(
            folder / ATTRIBUTES,
            values=attributes.values,
            names=np.array(attributes.names, dtype=np.str_),
            owners=np.array(attributes.owners, dtype=np.str_),
            column=np.array(attributes.column),
        )
    np.savez(folder / EVALUATION, x=evaluation[0], y=evaluation[1])


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
    nodes = read_nodes(folder, DataError, hint)
    try:
        truth = Truth(
            clients=tuple(str(name) for name in holdings["clients"]),
            classes=tuple(str(name) for name in holdings["classes"]),
            counts=np.asarray(holdings["counts"], dtype=np.int64),
            owners=owners,
            evaluation=(evaluation["x"], evaluation["y"]),
            nodes=nodes,
            targets=str(holdings["targets"]),
            data=str(holdings["data"]),
            positives=positives,
            attributes=_read_attributes(folder, hint),
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise DataError(f"{folder}: {HOLDINGS} lacks or misstates {cause}; {hint}") from None
    told = {*truth.attributes.owners} if truth.attributes is not None else set()
    unknown = sorted({*map(str, owners.tolist()), *truth.nodes.values(), *told} - {*truth.clients, NOBODY})
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


def _read_attributes(folder: Path, hint: str) -> Attributes | None:
    path = folder / ATTRIBUTES
    if not path.exists():
        return None
    arrays = read_npz(path, DataError, hint, "values", "names", "owners", "column")
    values, names, owners = arrays["values"], arrays["names"], arrays["owners"]
    if values.ndim != 1 or owners.shape != values.shape or names.ndim != 1 or values.dtype.kind != "i":
        raise DataError(
            f"{path}: expected an index and an owner for every record; got {values.dtype} {values.shape}, owners "
            f"{owners.shape} and names {names.shape}; {hint}"
        )
    if len(values) == 0 or values.min() < 0 or values.max() >= len(names):
        raise DataError(f"{path}: expected indices 0 … {len(names) - 1} of at least one record; {hint}")
    return Attributes(values.astype(np.int64), tuple(names.tolist()), tuple(owners.tolist()), str(arrays["column"]))
