"""Who holds what. Somebody who knows it writes it next to the record; only the audit reads it."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, StringConstraints, with_config
from typing_extensions import TypedDict

from fedattack.base.errors import DataError, short
from fedattack.base.files import make_private, write_npz, write_sealed
from fedattack.base.stored import (
    ANY_KIND,
    APART,
    OPTIONAL,
    AsJson,
    Axes,
    Count,
    Finite,
    form_of,
    read_arrays,
    read_with_files,
    split,
    write_with_files,
)
from fedattack.base.structured import fault, fields, finite
from fedattack.base.untrusted import Text, check_folder, parse_json, read_npz, read_sealed, read_text, validate
from fedattack.record.folder import HOLDINGS
from fedattack.record.nodes import NODES, note_node, read_nodes
from fedattack.record.schema import RecordId

# Arrays lie apart from the sealed JSON, which holds the hash of each.
OWNERS = "owners.npz"
EVALUATION = "evaluation.npz"
_LARGEST_LABEL = 10**6
POSITIVES = "positives.npz"
PRIVACY = "privacy.json"
ACCURACY = "accuracy"
ATTRIBUTES = "attributes.npz"
RECORDS = "records.npz"
PRIVATE = "private.json"
_ANSWER = re.compile("[a-z0-9-]+")

__all__ = ["NOBODY", "Attributes", "ClientAttribute", "HeldRecords", "Truth", "note_node", "read_truth", "write_truth"]

NOBODY = ""
"""The owner of a target that no client holds."""

SEVERAL = "*"
"""Stands for the owner of a target that several clients hold."""

_NO_EXAMPLES = np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64)


_Nonnegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _finite_or_none(numbers: tuple[float, ...]) -> list[float | None]:
    return [number if math.isfinite(number) else None for number in numbers]


def _infinite_if_none(numbers: list[float | None]) -> tuple[float, ...]:
    return tuple(math.inf if number is None else number for number in numbers)


# JSON has no number for infinity.
_OR_INFINITE = AsJson(list[_Nonnegative | None], _finite_or_none, _infinite_if_none)


@dataclass(frozen=True)
class Privacy:
    """What clients with differential privacy guarantee; see :func:`fedattack.privacy.spent.privacy_spent`.

    Attributes
    ----------
    clip, delta
        The norm C to which gradients of single examples (DP-SGD) or whole updates are clipped, 0 for none, and δ.
    rounds
        Largest number of rounds in which a client takes part.
    noise, epsilon_round, epsilon_run
        (clients,): DP-SGD's noise multiplier σ or the scale of the update's noise, and ε of one round and of all of
        them; infinite if there is no guarantee.
    mechanism
        The defence: ``dp-sgd``, ``dp-gaussian``, ``dp-laplace`` or ``flower-localdp``.
    """

    clip: _Nonnegative
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
    rounds: Annotated[int, Field(ge=1, le=10**9)]
    noise: Annotated[tuple[float, ...], _OR_INFINITE]
    epsilon_round: Annotated[tuple[float, ...], _OR_INFINITE]
    epsilon_run: Annotated[tuple[float, ...], _OR_INFINITE]
    mechanism: Annotated[str, AsJson(Literal["dp-sgd", "dp-gaussian", "dp-laplace", "flower-localdp"])] = "dp-sgd"


@dataclass(frozen=True, eq=False)
class Attributes:
    """The values of a sensitive attribute.

    Attributes
    ----------
    values
        (n,): index of each example's value among ``names``, in the order of the attacker's partial records.
    names
        The possible values for people.
    owners
        (n,): name of the client that holds each example.
    column
        Name of the column.
    asked
        Fingerprint of the partial records that this is about; empty if it is that of the truth's ``targets``.
    numbers
        (n,): the attribute itself, if it is a number; the values are then the nearest ones of a grid. Otherwise
        ``None``.
    """

    values: Annotated[NDArray[np.int64], Axes("examples", low=0)]
    names: Annotated[tuple[str, ...], Axes("names")]
    owners: Annotated[tuple[str, ...], Axes("examples")]
    column: Annotated[str, Axes()]
    asked: Annotated[str, Axes()] = ""
    numbers: Annotated[NDArray[np.float64] | None, Axes("examples")] = None

    def fault(self) -> str:
        """Say which parts of attributes that were read do not fit together; empty if all do."""
        if not len(self.values) or self.values.max() >= len(self.names) or len({*self.names}) != len(self.names):
            return f"expected indices 0 … {len(self.names) - 1} of at least one example, and different names"
        return ""


@dataclass(frozen=True)
class ClientAttribute:
    """The clients' values of a private attribute.

    Attributes
    ----------
    values
        (clients,): index of each client's value among ``names``, in the order of the truth's clients.
    names
        The possible values for people.
    """

    values: tuple[Count, ...]
    names: tuple[Text, ...]


@dataclass(frozen=True)
class _PrivateFile:
    """All private attributes, by name."""

    attributes: Mapping[Text, ClientAttribute]


@dataclass(frozen=True)
class _AccuracyNote:
    """What a client notes after a round: the accuracy of its model on its own examples, and on those of nobody."""

    round: Count
    own: _Rate
    unheld: _Rate


@dataclass(frozen=True, eq=False)
class HeldRecords:
    """The examples that clients train on in every round.

    Attributes
    ----------
    x
        (n, *shape) float32: model inputs.
    y
        (n,): labels, int64, or float32 targets of a regression.
    owners
        (n,): name of the client that holds each example.
    """

    x: Annotated[NDArray[Any], Axes("examples", rest=True, nan=True, kinds=ANY_KIND)]
    y: Annotated[NDArray[Any], Axes("examples", rest=True, nan=True, kinds=ANY_KIND)]
    owners: Annotated[tuple[str, ...], Axes("examples")]


def _list_counts(counts: NDArray[np.int64]) -> list[list[int]]:
    return [[int(count) for count in row] for row in counts]


@with_config(ConfigDict(extra="forbid", strict=True))
class _SentRow(TypedDict):
    array: Text
    shape: Annotated[list[Count], Field(max_length=32)]
    dtype: Text
    kind: Text
    clients: Count
    least: NotRequired[Finite]
    most: NotRequired[Finite]


@dataclass(frozen=True, eq=False)
class Truth:
    """The truth about one run.

    Attributes
    ----------
    clients, classes
        Names along the axes of ``counts``.
    counts
        (clients, classes): how many training examples of a class a client holds.
    owners
        (targets,): name of the client that holds each target record, :data:`NOBODY` for the null targets,
        :data:`SEVERAL` for those in ``shared``. Empty where the truth is about a property that several clients may
        have, or about an attribute.
    evaluation
        Examples ``x`` and labels ``y`` that no client holds, to measure the quality of models with; none of either
        where nobody knows such examples.
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
    origins
        (targets,): name of the client from whose data a target of :data:`NOBODY` comes, "" where it comes from no
        client in particular, or that is not known. Such a target is like the examples of its label that the client
        trained on. "" for targets that are held, too.
    privacy
        What the clients' training guarantees; ``None`` without DP-SGD.
    notes
        What a reader of the report must know of the run's data.
    accuracy
        By round, then by client: accuracy of the client's own model on its training examples and on examples that no
        client holds; empty where clients note none (the record holds their models).
    attributes
        What an attacker who knows all of an example but one column wants to know; likewise.
    records
        What an attacker who reconstructs examples wants to see; likewise. Clients of many examples may be left out.
    private
        By name, what an attacker who infers private attributes of clients wants to know; empty where the truth is about
        something else.
    answers
        By the name of a threat, further arrays that its judge asks for, of a form that the judge checks.
    canaries
        Names of clients that an auditor put among the others to measure ε. They hold nothing, and are none of
        ``clients``; only ``nodes`` names them, too.
    sent
        How many clients send each array as what; empty where nobody saw that.
    unread
        Which arrays of most clients are not understood, so that no attack reads their models; empty if none are.
    record
        The id of the record that the server wrote; empty where nobody says of which record this is the truth.
    """

    clients: Annotated[tuple[Text, ...], Field(min_length=1)]
    classes: Annotated[tuple[Text, ...], Field(min_length=1)]
    counts: Annotated[NDArray[np.int64], AsJson(list[list[Count]], _list_counts)]
    owners: Annotated[NDArray[np.str_], APART]
    evaluation: Annotated[tuple[NDArray[np.float32], NDArray[Any]], APART]
    nodes: Annotated[dict[str, str], APART]
    targets: Text
    data: Text = ""
    positives: Annotated[NDArray[np.bool_] | None, APART] = None
    shared: Annotated[Mapping[int, tuple[str, ...]], APART] = field(default_factory=dict)
    origins: Annotated[NDArray[np.str_], APART] = field(default_factory=lambda: np.zeros(0, dtype=np.str_))
    privacy: Annotated[Privacy | None, APART] = None
    notes: Annotated[tuple[Annotated[str, StringConstraints(max_length=10_000)], ...], OPTIONAL] = ()
    accuracy: Annotated[Mapping[int, Mapping[str, tuple[float, float]]], APART] = field(default_factory=dict)
    attributes: Annotated[Attributes | None, APART] = None
    records: Annotated[HeldRecords | None, APART] = None
    private: Annotated[Mapping[str, ClientAttribute], APART] = field(default_factory=dict)
    answers: Annotated[Mapping[str, Mapping[str, NDArray[Any]]], APART] = field(default_factory=dict)
    canaries: Annotated[tuple[Text, ...], OPTIONAL] = ()
    sent: Annotated[tuple[Mapping[str, Any], ...], AsJson(list[_SentRow], list, tuple), OPTIONAL] = ()
    unread: Annotated[Text, OPTIONAL] = ""
    record: Annotated[str, AsJson(RecordId), OPTIONAL] = ""

    def __post_init__(self) -> None:
        if not len(self.origins):
            # A truth of an earlier version, or of threats that ask nothing of origins.
            object.__setattr__(self, "origins", np.full(len(self.owners), ""))

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


def has_examples(answers: Mapping[str, NDArray[Any]]) -> bool:
    """Say whether a judge's answers hold finite examples ``x`` (n, columns), and ``owners`` (n,) that name clients."""
    x, owners = answers.get("x"), answers.get("owners")
    if x is None or owners is None or x.ndim != 2 or x.dtype.kind != "f":
        return False
    return owners.dtype.kind == "U" and owners.shape == x.shape[:1] and bool(np.isfinite(x).all())


def write_truth(
    folder: Path,
    *,
    clients: list[str],
    classes: list[str],
    counts: NDArray[np.int64],
    evaluation: tuple[NDArray[np.float32], NDArray[Any]] | None,
    targets: str,
    owners: Sequence[str | Collection[str]] | None = None,
    origins: Sequence[str] | None = None,
    positives: NDArray[np.bool_] | None = None,
    attributes: Attributes | None = None,
    records: HeldRecords | None = None,
    private: Mapping[str, ClientAttribute] | None = None,
    answers: Mapping[str, Mapping[str, NDArray[Any]]] | None = None,
    data: str = "",
    privacy: Privacy | None = None,
    notes: Sequence[str] = (),
    canaries: Sequence[str] = (),
    sent: Sequence[Mapping[str, Any]] = (),
    unread: str = "",
    record: str = "",
) -> None:
    """Write all of :class:`Truth` but ``nodes`` and ``accuracy``.

    The clients themselves note these with :func:`note_node` and :func:`note_accuracy`. Parameters are those of
    :class:`Truth`, but that ``owners`` says all there is to say of a target: the name of the client that holds it,
    :data:`NOBODY`, or the names of all clients that hold it; and that ``evaluation`` is ``None`` where nobody knows
    examples that no client holds.

    Raises
    ------
    DataError
        If an owner or an origin is none of the clients, a target with an origin is held, a client has a name that means
        something else, there is no example to measure the quality of models with, or the name of an answer is none of
        letters a-z, digits and hyphens.
    """
    _check_evaluation(evaluation, records)
    # NumPy holds one text a target: several holders go into an array of pairs.
    sole, shared = _told_apart(owners or [], clients)
    come_from = np.full(len(sole), "")
    if origins is not None:
        come_from = np.array(origins, dtype=np.str_)
    _check_origins(come_from, sole, clients, "the truth's origins")
    make_private(folder)
    (folder / NODES).mkdir(exist_ok=True)
    tables = {OWNERS: {"owners": sole, "shared": shared, "origins": come_from}}
    if evaluation is not None:
        tables[EVALUATION] = {"x": evaluation[0], "y": evaluation[1]}
    if positives is not None:
        tables[POSITIVES] = {"positives": positives}
    for name, part in ((ATTRIBUTES, attributes), (RECORDS, records)):
        if part is not None:
            tables[name] = split(part)[1]
    # Each threat's answers are a file, whose name says whose they are.
    for name, answered in (answers or {}).items():
        tables[_file_of_answer(name)] = dict(answered)
    files = {name: write_npz(folder / name, arrays) for name, arrays in tables.items()}
    for name, value in _list_objects(private, privacy).items():
        files[name] = write_sealed(folder / name, value)
    truth = Truth(
        clients=tuple(clients),
        classes=tuple(classes),
        counts=counts,
        owners=sole,
        evaluation=evaluation or _NO_EXAMPLES,
        nodes={},
        targets=targets,
        data=data,
        notes=tuple(notes),
        canaries=tuple(canaries),
        sent=tuple(sent),
        unread=unread,
        record=record,
    )
    # Written last, with the hashes of all other files: a truth that was cut short is none.
    write_with_files(folder / HOLDINGS, truth, files)


def _check_evaluation(evaluation: tuple[NDArray[np.float32], NDArray[Any]] | None, records: HeldRecords | None) -> None:
    if evaluation is not None and not len(evaluation[1]):
        raise DataError("the truth's evaluation has no example; give some that no client holds, such as a test split")
    if evaluation is None and _lacks_others(records):
        raise DataError(
            "reconstructed examples are judged beside examples that no client holds, or other clients: give "
            "evaluation, too, or examples of several clients"
        )


def _lacks_others(records: HeldRecords | None) -> bool:
    """Say whether examples that clients train on are all of one client."""
    return records is not None and len({*records.owners}) < 2


def _list_objects(private: Mapping[str, ClientAttribute] | None, privacy: Privacy | None) -> dict[str, dict[str, Any]]:
    """Return by file what is no table."""
    objects: dict[str, dict[str, Any]] = {}
    if private:
        objects[PRIVATE] = split(_PrivateFile(private))[0]
    if privacy is not None:
        objects[PRIVACY] = split(privacy)[0]
    return objects


def _file_of_answer(name: str) -> str:
    if not _ANSWER.fullmatch(name):
        raise DataError(f"the truth's answer {short(name, 60)!r}: expected a name of letters a-z, digits and hyphens")
    return f"answer.{name}.npz"


def _told_apart(
    owners: Sequence[str | Collection[str]], clients: Sequence[str]
) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Put owners into the two arrays of the file: a name a target, and (target, client) pairs where it is SEVERAL."""
    # A client of that name could hide who holds what.
    if taken := {NOBODY, SEVERAL} & {*clients}:
        raise DataError(f"{taken.pop()!r} cannot be a client's name in the truth, where it means something else")
    index_of = {name: index for index, name in enumerate(clients)}
    sole: list[str] = []
    shared: list[tuple[int, int]] = []
    for target, entry in enumerate(owners):
        if isinstance(entry, str):
            entry = [entry]
        # A dict keeps the order in which holders were named, each once.
        names = dict.fromkeys(entry)
        names.pop(NOBODY, None)
        for name in names:
            if name not in index_of:
                raise DataError(f"target {target} is said to be held by {name!r}, which is none of the clients")
        if len(names) > 1:
            sole.append(SEVERAL)
            shared += [(target, index_of[name]) for name in names]
        else:
            sole.append(next(iter(names), NOBODY))
    # reshape, as an empty list would make an array of one axis.
    return np.array(sole, dtype=np.str_), np.array(shared, dtype=np.int64).reshape(-1, 2)


def _check_origins(origins: NDArray[Any], owners: NDArray[np.str_], clients: Sequence[str], where: str) -> None:
    """Refuse origins that are no clients, or of targets that somebody holds."""
    if origins.shape != owners.shape or origins.dtype.kind != "U":
        raise DataError(
            f"{where}: expected a client's name or nothing for each of {len(owners)} targets; got {origins.dtype} "
            f"{origins.shape}"
        )
    stated = np.flatnonzero(origins != "")
    if unknown := {*origins[stated].tolist()} - {*clients}:
        raise DataError(f"{where}: {short(min(unknown), 60)!r} is not a client; expected one, or nothing")
    wrong = stated[owners[stated] != NOBODY]
    if len(wrong):
        raise DataError(
            f"{where}: target {wrong[0]} has an origin, but somebody holds it; expected origins of targets of nobody"
        )


def note_accuracy(folder: Path | str, *, client: str, server_round: int, own: float, unheld: float) -> None:
    """Note, on the client's side, how good its model is after a round, where no model ever leaves the client.

    Its accuracy, in 0 … 1, on its own training examples, and on examples that no client holds.
    """
    path = Path(folder) / ACCURACY / f"{client}.jsonl"
    # Each client appends to a file of its own, so that no two processes write to one.
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(split(_AccuracyNote(server_round, own, unheld))[0]) + "\n")


_HINT = "without the truth a result can be computed but not judged"


def read_truth(folder: Path) -> Truth:
    """Read the truth at ``folder``.

    Raises
    ------
    DataError
        If a file is missing or damaged, the parts contradict each other, or a link leaves the folder.
    """
    check_folder(folder, DataError)
    stated, files = read_with_files(Truth, folder / HOLDINGS, DataError, _HINT)
    clients, canaries = stated["clients"], stated.get("canaries", ())
    everyone = {*clients, *canaries}
    # Names must be unique, since all else names clients by them.
    if len(everyone) != len(clients) + len(canaries) or {NOBODY, SEVERAL} & everyone:
        raise DataError(f"{folder / HOLDINGS}: clients: a name occurs twice, or has another meaning; {_HINT}")
    owned = read_npz(folder / OWNERS, DataError, _HINT, "owners", "shared", "origins")
    owners = _read_owners(owned["owners"], folder)
    origins = owned["origins"]
    _check_origins(origins, owners, clients, f"{folder / OWNERS}: origins")
    further = {
        "counts": _read_counts(stated, folder),
        "owners": owners,
        "origins": origins,
        "evaluation": _read_evaluation(folder / EVALUATION, files),
        "nodes": read_nodes(folder, DataError, _HINT),
        "positives": _read_positives(folder / POSITIVES, len(clients)),
        "shared": _holders(owned["shared"], len(owners), clients, folder),
        "privacy": _read_privacy(folder / PRIVACY, len(clients)),
        "accuracy": _read_accuracy(folder / ACCURACY, clients),
        "attributes": _read_attributes(folder),
        "records": _read_records(folder),
        "private": _read_private(folder / PRIVATE, len(clients)),
        "answers": _read_answers(folder, files),
    }
    truth = Truth(**{**stated, **further})
    named = {*truth.owners.tolist()} - {NOBODY, SEVERAL}
    # Canaries are clients of the auditor, and hold nothing.
    named |= {*truth.nodes.values()} - {*canaries}
    for about in (truth.attributes, truth.records):
        if about is not None:
            named |= {*about.owners}
    if unknown := named - {*truth.clients}:
        listed = short(", ".join(sorted(unknown)), 100)
        raise DataError(f"{folder}: {listed} is not a client of {HOLDINGS}; the truth contradicts itself")
    if _lacks_others(truth.records) and not len(truth.evaluation[1]):
        raise DataError(f"{folder}: {RECORDS} holds examples of one client, and there is no {EVALUATION}; {_HINT}")
    # Either of the two arrays, changed alone, is found out here.
    if {*truth.shared} != {*np.flatnonzero(truth.owners == SEVERAL).tolist()}:
        raise DataError(f"{folder / OWNERS}: the targets of several owners are not those of `shared`; {_HINT}")
    return truth


def _read_counts(stated: Mapping[str, Any], folder: Path) -> NDArray[np.int64]:
    clients, classes = len(stated["clients"]), len(stated["classes"])
    if list(map(len, stated["counts"])) != [classes] * clients:
        raise DataError(f"{folder / HOLDINGS}: counts: expected {classes} classes of {clients} clients; {_HINT}")
    return np.array(stated["counts"], dtype=np.int64)


def _read_owners(owners: NDArray[Any], folder: Path) -> NDArray[np.str_]:
    # An empty array has the type float in NumPy.
    if owners.ndim != 1 or (owners.dtype.kind != "U" and len(owners)):
        raise DataError(
            f"{folder / OWNERS}: expected a client's name for every target; got {owners.dtype} {owners.shape}; {_HINT}"
        )
    return owners.astype(np.str_)


def _read_evaluation(path: Path, files: Collection[str]) -> tuple[NDArray[np.float32], NDArray[Any]]:
    # Who has no examples that nobody holds writes none: the list of files then says so.
    if files and EVALUATION not in files:
        return _NO_EXAMPLES
    arrays = read_npz(path, DataError, _HINT, "x", "y")
    return _checked_records(path, arrays["x"], arrays["y"])


def _checked_records(path: Path, x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Check examples x and labels y of the truth: as many of both, numbers, and finite."""
    # An example may be one record of fields: then its array has one axis.
    fits = x.ndim + bool(fields(x)) >= 2 and y.ndim >= 1 and len(x) == len(y) > 0 and x.size > 0 and y.size > 0
    if not fits or fault(x) or y.dtype.kind not in "iuf":
        raise DataError(
            f"{path}: expected examples (n, …), each with a label; got x {x.dtype} {x.shape} and y {y.dtype} {y.shape}"
            f"; {_HINT}"
        )
    if not finite(x).all() or not np.isfinite(y).all():
        raise DataError(f"{path}: expected finite numbers; got others; {_HINT}")
    if y.dtype.kind in "iu":
        if not 0 <= y.min() <= y.max() <= _LARGEST_LABEL:
            raise DataError(f"{path}: expected labels 0 … {_LARGEST_LABEL}, got {y.min()} … {y.max()}; {_HINT}")
        # Any whole type becomes the one that torch takes as labels.
        y = y.astype(np.int64)
    if not fields(x):
        x = x.astype(np.float32)
    return x, y


def _read_positives(path: Path, clients: int) -> NDArray[np.bool_] | None:
    if not path.exists():
        return None
    positives = read_npz(path, DataError, _HINT, "positives")["positives"]
    if positives.dtype != np.bool_ or positives.ndim != 2 or positives.shape[1] != clients:
        raise DataError(
            f"{path}: expected yes or no for every target and each of {clients} clients, got {positives.dtype} of "
            f"shape {positives.shape}; {_HINT}"
        )
    return positives


def _holders(pairs: NDArray[Any], targets: int, clients: Sequence[str], folder: Path) -> dict[int, tuple[str, ...]]:
    """Name the holders of each target that several hold, from pairs (target, client)."""
    # Before an index is used: a negative one would name a client from the end.
    fits = pairs.ndim == 2 and pairs.shape[1] == 2 and pairs.dtype.kind in "iu"
    if not fits or not ((pairs >= 0) & (pairs[:, 1:] < len(clients))).all():
        raise DataError(
            f"{folder / OWNERS}: shared: expected pairs of a target and one of {len(clients)} clients; {_HINT}"
        )
    # Checked before the dictionary is made: a hostile file could repeat one pair without end.
    if len(pairs) > targets * len(clients) or len(np.unique(pairs, axis=0)) < len(pairs):
        raise DataError(
            f"{folder / OWNERS}: shared: expected each pair once of {targets} targets and {len(clients)} clients, got "
            f"{len(pairs):,}; {_HINT}"
        )
    holders: dict[int, list[str]] = {}
    for target, client in pairs.tolist():
        holders.setdefault(target, []).append(clients[client])
    return {target: tuple(names) for target, names in holders.items()}


def _read_privacy(path: Path, clients: int) -> Privacy | None:
    if not path.exists():
        return None
    privacy = read_sealed(path, form_of(Privacy), DataError, _HINT)
    if {len(privacy.noise), len(privacy.epsilon_round), len(privacy.epsilon_run)} != {clients}:
        raise DataError(f"{path}: expected σ and ε of each of {clients} clients; {_HINT}")
    return privacy


def _read_accuracy(folder: Path, clients: Collection[str]) -> dict[int, dict[str, tuple[float, float]]]:
    accuracy: dict[int, dict[str, tuple[float, float]]] = defaultdict(dict)
    for path in sorted(folder.glob("*.jsonl")):
        # The file's name is the client's; anybody may have put a file there.
        if path.stem not in clients:
            raise DataError(f"{path}: {short(path.stem, 60)} is not a client of {HOLDINGS}; {_HINT}")
        for number, line in enumerate(read_text(path, DataError, _HINT).splitlines(), start=1):
            where = f"{path}, line {number}"
            try:
                parsed = parse_json(line)
            except ValueError as cause:
                raise DataError(f"{where} is not valid JSON ({short(str(cause), 100)}); {_HINT}") from None
            noted = validate(form_of(_AccuracyNote), parsed, where, DataError, _HINT)
            accuracy[noted.round][path.stem] = (noted.own, noted.unheld)
    return dict(accuracy)


def _read_attributes(folder: Path) -> Attributes | None:
    path = folder / ATTRIBUTES
    if not path.exists():
        return None
    return read_arrays(Attributes, path, DataError, _HINT)


def _read_private(path: Path, clients: int) -> dict[str, ClientAttribute]:
    if not path.exists():
        return {}
    found = dict(read_sealed(path, form_of(_PrivateFile), DataError, _HINT).attributes)
    for name, attribute in found.items():
        # Values are indices into the names.
        if len(attribute.values) != clients or not {*attribute.values} <= {*range(len(attribute.names))}:
            raise DataError(
                f"{path}: {short(name, 60)}: expected one of {len(attribute.names)} values for each of {clients} "
                f"clients; {_HINT}"
            )
    return found


def _read_answers(folder: Path, files: Collection[str]) -> dict[str, dict[str, NDArray[Any]]]:
    """Read the answers that the holdings list; a file that they do not list is none."""
    answers = {}
    for file in files:
        name = file.removeprefix("answer.").removesuffix(".npz")
        # The name is made into a path again and compared, so that no other path can hide behind it.
        if _ANSWER.fullmatch(name) and file == _file_of_answer(name):
            answers[name] = read_npz(folder / file, DataError, _HINT)
    return answers


def _read_records(folder: Path) -> HeldRecords | None:
    path = folder / RECORDS
    if not path.exists():
        return None
    records = read_arrays(HeldRecords, path, DataError, _HINT)
    x, y = _checked_records(path, records.x, records.y)
    if fields(x):
        raise DataError(f"{path}: expected examples that are one array each; got {short(str(x.dtype), 100)}; {_HINT}")
    return HeldRecords(x, y, records.owners)
