"""Who holds what. Written beside the record by whoever knows it; only the audit reads it."""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.errors import DataError
from fedattack.files import make_private, write_json
from fedattack.nodes import NODES, note_node, read_nodes
from fedattack.untrusted import read_json, read_npz

HOLDINGS = "holdings.json"
OWNERS = "owners.npz"
EVALUATION = "evaluation.npz"
POSITIVES = "positives.npz"
PRIVACY = "privacy.json"
ACCURACY = "accuracy"
ATTRIBUTES = "attributes.npz"
RECORDS = "records.npz"
PRIVATE = "private.json"

__all__ = ["NOBODY", "Attributes", "ClientAttribute", "HeldRecords", "Truth", "note_node", "read_truth", "write_truth"]

NOBODY = ""
"""The owner of a target that no client holds."""

SEVERAL = "*"
"""Stands for the owner of a target that several clients hold."""


MECHANISMS = ("dp-sgd", "dp-gaussian", "dp-laplace", "flower-localdp")
"""Defences with differential privacy, by name."""


@dataclass(frozen=True)
class Privacy:
    """What clients with differential privacy may tell; see :func:`fedattack.learning.privacy_spent`.

    Attributes
    ----------
    clip, delta
        The norm C to which gradients of single records (DP-SGD) or whole updates are clipped, 0 for none, and δ.
    rounds
        In how many rounds a client takes part, at most.
    noise, epsilon_round, epsilon_run
        (clients,): DP-SGD's noise multiplier σ or the scale of the update's noise, and ε of one round and of all of
        them; infinite where there is no guarantee.
    mechanism
        One of :data:`MECHANISMS`.
    """

    clip: float
    delta: float
    rounds: int
    noise: tuple[float, ...]
    epsilon_round: tuple[float, ...]
    epsilon_run: tuple[float, ...]
    mechanism: str = "dp-sgd"


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
class ClientAttribute:
    """What clients have of a private attribute.

    Attributes
    ----------
    values
        (clients,): index of each client's value among ``names``, in the order of the truth's clients.
    names
        The possible values for people.
    """

    values: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class HeldRecords:
    """The records that clients train on in every round.

    Attributes
    ----------
    x
        (n, *shape) float32: model inputs.
    y
        (n,): labels, int64, or float32 targets of a regression.
    owners
        (n,): name of the client that holds each record.
    """

    x: NDArray[np.float32]
    y: NDArray[Any]
    owners: tuple[str, ...]


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
        (targets,): name of the client that holds each target record, :data:`NOBODY` for the null targets,
        :data:`SEVERAL` for those in ``shared``. Empty where the truth is about a property that several clients may
        have, or about an attribute.
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
    shared
        The holders of each target that several clients hold, by the target's index.
    privacy
        What the clients' training guarantees; ``None`` without DP-SGD.
    notes
        What a reader of the report must know of the run's data.
    accuracy
        By round, then by client: accuracy of the client's own model on its training records and on records that no
        client holds; empty where clients note none (the record holds their models).
    attributes
        What an attacker who knows all of a record but one column wants to know; likewise.
    records
        What an attacker who reconstructs records wants to see; likewise. Clients of many records may be left out.
    private
        By name, what an attacker who infers private attributes of clients wants to know; empty where the truth is about
        something else.
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
    shared: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    privacy: Privacy | None = None
    notes: tuple[str, ...] = ()
    accuracy: Mapping[int, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    attributes: Attributes | None = None
    records: HeldRecords | None = None
    private: Mapping[str, ClientAttribute] = field(default_factory=dict)

    def check_nodes(self, nodes: Iterable[str], *, seed: int, where: str = "record") -> None:
        """Check that it is known which client hides behind each of some nodes.

        Raises
        ------
        DataError
            If it is not of one; the message says that the node is in ``where``, and names the run's seed.
        """
        unknown = [node for node in nodes if node not in self.nodes]
        if unknown:
            raise DataError(
                f"node {unknown[0]} is in the {where} but not in the truth (seed {seed}); expected a file of its name "
                "in truth/nodes, which its client writes when it first trains"
            )


def write_truth(
    folder: Path,
    *,
    clients: list[str],
    classes: list[str],
    counts: NDArray[np.int64],
    evaluation: tuple[NDArray[np.float32], NDArray[Any]],
    targets: str,
    owners: Sequence[str | Collection[str]] | None = None,
    positives: NDArray[np.bool_] | None = None,
    attributes: Attributes | None = None,
    records: HeldRecords | None = None,
    private: Mapping[str, ClientAttribute] | None = None,
    data: str = "",
    privacy: Privacy | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write all of :class:`Truth` but ``nodes`` and ``accuracy``.

    The clients themselves note these with :func:`note_node` and :func:`note_accuracy`. Parameters are those of
    :class:`Truth`, but that ``owners`` says all there is to say of a target: the name of the client that holds it,
    :data:`NOBODY`, or the names of all clients that hold it.

    Raises
    ------
    DataError
        If an owner is none of the clients, a client has a name that means something else, or there is no record to
        measure the quality of models with.
    """
    if not len(evaluation[1]):
        raise DataError("the truth's evaluation has no record; give some that no client holds, such as a test split")
    sole, shared = _told_apart(owners or [], clients)
    make_private(folder)
    (folder / NODES).mkdir(exist_ok=True)
    holdings = {"clients": clients, "classes": classes, "counts": counts.tolist(), "targets": targets, "data": data}
    write_json(folder / HOLDINGS, holdings | ({"notes": [*notes]} if notes else {}))
    np.savez(folder / OWNERS, owners=sole, shared=shared)
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
    if records is not None:
        np.savez(folder / RECORDS, x=records.x, y=records.y, owners=np.array(records.owners, dtype=np.str_))
    if private:
        write_json(folder / PRIVATE, {name: vars(attribute) for name, attribute in private.items()})
    if privacy is not None:
        write_json(folder / PRIVACY, {name: _finite_or_none(value) for name, value in vars(privacy).items()})
    np.savez(folder / EVALUATION, x=evaluation[0], y=evaluation[1])


def _told_apart(
    owners: Sequence[str | Collection[str]], clients: Sequence[str]
) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Put owners into the two arrays of the file: a name a target, and (target, client) pairs where it is SEVERAL."""
    if taken := {NOBODY, SEVERAL} & {*clients}:
        raise DataError(f"{taken.pop()!r} cannot be a client's name in the truth, where it means something else")
    place = {name: index for index, name in enumerate(clients)}
    sole: list[str] = []
    shared: list[tuple[int, int]] = []
    for target, entry in enumerate(owners):
        names = list(dict.fromkeys([entry] if isinstance(entry, str) else entry))
        names = [name for name in names if name != NOBODY]
        if unknown := [name for name in names if name not in place]:
            raise DataError(f"target {target} is said to be held by {unknown[0]!r}, which is none of the clients")
        sole.append(names[0] if len(names) == 1 else SEVERAL if names else NOBODY)
        shared += [(target, place[name]) for name in names if len(names) > 1]
    return np.array(sole, dtype=np.str_), np.array(shared, dtype=np.int64).reshape(-1, 2)


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
    owned = read_npz(folder / OWNERS, DataError, hint)
    evaluation = read_npz(folder / EVALUATION, DataError, hint, "x", "y")
    there = (folder / POSITIVES).exists()
    positives = read_npz(folder / POSITIVES, DataError, hint, "positives")["positives"] if there else None
    nodes = read_nodes(folder, DataError, hint)
    try:
        truth = Truth(
            clients=tuple(str(name) for name in holdings["clients"]),
            classes=tuple(str(name) for name in holdings["classes"]),
            counts=np.asarray(holdings["counts"], dtype=np.int64),
            owners=owned["owners"],
            evaluation=(evaluation["x"], evaluation["y"]),
            nodes=nodes,
            targets=str(holdings["targets"]),
            data=str(holdings["data"]),
            positives=positives,
            shared=_holders(owned.get("shared", np.zeros((0, 2), dtype=np.int64)), holdings["clients"]),
            privacy=_read_privacy(folder / PRIVACY, len(holdings["clients"]), hint),
            notes=tuple(str(note) for note in holdings.get("notes", ())),
            accuracy=_read_accuracy(folder / ACCURACY),
            attributes=_read_attributes(folder, hint),
            records=_read_records(folder, hint),
            private=_read_private(folder / PRIVATE, len(holdings["clients"]), hint),
        )
    except (KeyError, IndexError, TypeError, ValueError) as cause:
        raise DataError(
            f"{folder}: {HOLDINGS}, {OWNERS} or a file of {NODES}/ or {ACCURACY}/ lacks or misstates {cause}; {hint}"
        ) from None
    told = {name for about in (truth.attributes, truth.records) if about is not None for name in about.owners}
    unknown = sorted(
        {*map(str, truth.owners.tolist()), *truth.nodes.values(), *told} - {*truth.clients, NOBODY, SEVERAL}
    )
    if unknown:
        raise DataError(f"{folder}: {', '.join(unknown)} is no client of {HOLDINGS}; the truth contradicts itself")
    if {*truth.shared} != {*np.flatnonzero(truth.owners == SEVERAL).tolist()}:
        raise DataError(f"{folder / OWNERS}: the targets of several owners are not those of `shared`; {hint}")
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


def _holders(pairs: NDArray[np.int64], clients: Sequence[str]) -> dict[int, tuple[str, ...]]:
    holders: dict[int, tuple[str, ...]] = {}
    for target, client in pairs.tolist():
        if not 0 <= client < len(clients):
            raise IndexError(f"client {client} of {len(clients)}")
        holders[target] = (*holders.get(target, ()), str(clients[client]))
    return holders


def _finite_or_none(value: Any) -> Any:
    """Put ``None`` in the place of infinity, for which JSON has no number."""
    return [item if math.isfinite(item) else None for item in value] if isinstance(value, tuple) else value


def _read_privacy(path: Path, clients: int, hint: str) -> Privacy | None:
    if not path.exists():
        return None
    value = read_json(path, DataError, hint)
    try:
        lists = {
            name: tuple(math.inf if item is None else float(item) for item in value[name])
            for name in ("noise", "epsilon_round", "epsilon_run")
        }
        privacy = Privacy(
            float(value["clip"]),
            float(value["delta"]),
            int(value["rounds"]),
            mechanism=str(value.get("mechanism", Privacy.mechanism)),
            **lists,
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise DataError(f"{path} lacks or misstates {cause}; {hint}") from None
    if privacy.mechanism not in MECHANISMS:
        raise DataError(f"{path}: mechanism {privacy.mechanism!r}, expected one of {', '.join(MECHANISMS)}; {hint}")
    if {len(item) for item in lists.values()} != {clients}:
        raise DataError(f"{path}: expected σ and ε of each of {clients} clients; {hint}")
    return privacy


def _read_accuracy(folder: Path) -> dict[int, dict[str, tuple[float, float]]]:
    accuracy: dict[int, dict[str, tuple[float, float]]] = defaultdict(dict)
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            noted = json.loads(line)
            accuracy[int(noted["round"])][path.stem] = (float(noted["own"]), float(noted["unheld"]))
    return dict(accuracy)


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


def _read_private(path: Path, clients: int, hint: str) -> dict[str, ClientAttribute]:
    if not path.exists():
        return {}
    try:
        found = {
            str(name): ClientAttribute(tuple(int(code) for code in entry["values"]), tuple(map(str, entry["names"])))
            for name, entry in read_json(path, DataError, hint).items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as cause:
        raise DataError(f"{path} lacks or misstates {cause}; {hint}") from None
    for name, attribute in found.items():
        if len(attribute.values) != clients or not {*attribute.values} <= {*range(len(attribute.names))}:
            raise DataError(
                f"{path}: {name}: expected one of {len(attribute.names)} values for each of {clients} clients; {hint}"
            )
    return found


def _read_records(folder: Path, hint: str) -> HeldRecords | None:
    path = folder / RECORDS
    if not path.exists():
        return None
    arrays = read_npz(path, DataError, hint, "x", "y", "owners")
    x, y, owners = arrays["x"], arrays["y"], arrays["owners"]
    if x.ndim < 2 or not len(x) == len(y) == len(owners) > 0 or owners.ndim != 1 or not np.isfinite(x).all():
        raise DataError(
            f"{path}: expected finite records (n, …), each with a label and an owner; got x {x.shape}, y {y.shape} and "
            f"owners {owners.shape}; {hint}"
        )
    return HeldRecords(x.astype(np.float32), y, tuple(owners.tolist()))
