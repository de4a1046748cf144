"""Who holds what, as far as witnesses can tell: by hashes of examples, across all clients.

A witness keeps the examples of a client with the smallest hashes. So it lists all of them up to a hash, and says
nothing of those beyond. An example counts only if its hash is one up to which every client lists what it trained on: of
any other nobody knows whether a further client holds it, too.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError, short
from fedattack.base.structured import alike, fields, finite
from fedattack.witness import SERVER, UNKNOWN, SeenExamples, Witness

_ALL = b"\xff" * 32
"""A hash that none is larger than."""

_MOST_NOTES = 20

_Usable = tuple[bytes, NDArray[Any], float]


@dataclass(frozen=True)
class Client:
    """What the witnesses of one client saw; it may have had several nodes, one after the other.

    Attributes
    ----------
    name
        Its ``partition-id``, or its node where there is none.
    witnesses
        Those of its nodes, the one first that saw most.
    """

    name: str
    witnesses: tuple[Witness, ...]

    @property
    def trained(self) -> SeenExamples:
        """What it trained on."""
        return self.witnesses[0].trained

    @property
    def nodes(self) -> list[str]:
        """Its nodes."""
        return [witness.node for witness in self.witnesses]


@dataclass
class Holding:
    """All examples of which it is certain who trained on them.

    Attributes
    ----------
    clients
        By name, those that trained.
    kind
        Whether labels are classes (``i``) or numbers (``f``).
    shape
        Shape of one example; of none where the model takes more than one array of numbers.
    sample
        Some examples, like which all others are.
    examples
        By hash, an example and its label.
    holders
        By hash, the names of the clients that trained on it; also of what has no label, and is no example here.
    origins
        By hash of what nobody trained on, the client from whose evaluation alone it comes; empty where several
        evaluated on it, or the server, or it is not certain.
    why_none
        Why there is no example that nobody trained on; empty if there are some.
    notes
        What a reader must know.
    """

    clients: dict[str, Client]
    kind: str = "i"
    shape: tuple[int, ...] = ()
    sample: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 1), np.float32))
    examples: dict[bytes, tuple[NDArray[Any], float]] = field(default_factory=dict)
    holders: dict[bytes, list[str]] = field(default_factory=dict)
    origins: dict[bytes, str] = field(default_factory=dict)
    why_none: str = ""
    notes: list[str] = field(default_factory=list)


def hold(witnesses: Sequence[Witness]) -> Holding:
    """Find out who holds what.

    Raises
    ------
    DataError
        If no client's training was witnessed, or the model's inputs are of a kind that cannot be asked about.
    """
    holding = Holding(_clients_of(witnesses))
    holding.notes += _notes_of(witnesses)
    if not holding.clients:
        raise DataError(
            f"no client's training was witnessed{_why_unseen(witnesses)}: what PyTorch, scikit-learn or XGBoost "
            "trains is seen, in the client's own process; state what trains otherwise by "
            "fedattack.witness.trained_on(x, y) where the client trains"
        )
    holding.kind, holding.sample = _form_of(holding.clients.values())
    holding.shape = holding.sample.shape[1:]
    holding.notes += _other_forms(holding)
    _note_the_trained(holding)
    if not holding.examples:
        raise DataError(_why_nothing(holding))
    _note_the_evaluated(holding, witnesses)
    if not holding.origins:
        holding.why_none = _why_none(holding, witnesses)
    return holding


def _why_unseen(witnesses: Iterable[Witness]) -> str:
    """Return, in brackets, the first thing that a witness could not see; empty if there was none."""
    for witness in witnesses:
        for note in witness.notes:
            if "not seen" in note or "not covered" in note:
                return f" ({note})"
    return ""


def _why_nothing(holding: Holding) -> str:
    """Say why no example that a client trained on can be asked about."""
    trained = [client.trained for client in holding.clients.values()]
    labelled = [seen.x[np.flatnonzero(_is_labelled(seen)), ...] for seen in trained]
    if any(map(len, labelled)):
        if not any(finite(x).any() for x in labelled):
            return "the training examples hold numbers that are not finite, and no attack takes such"
        return (
            "of no training example with a label is it certain who trained on it: a witness lists a part of a large "
            "client's examples, and these parts must reach equally far"
        )
    return (
        "no training example was seen with a label of one number: state it by fedattack.witness.trained_on(x, y); "
        "where there is none, as of an autoencoder, state 0, and name by --model a model of the same arrays that "
        "returns its own loss, with --loss own"
    )


def _is_labelled(seen: SeenExamples) -> NDArray[np.bool_]:
    return np.asarray(seen.y != UNKNOWN)


def _why_none(holding: Holding, witnesses: Sequence[Witness]) -> str:
    """Say why no example that was evaluated on can count as one that nobody trained on."""
    evaluated = [witness.evaluated for witness in witnesses if witness.evaluated.total]
    if not evaluated:
        return "nobody was seen to evaluate on examples that nobody trained on"
    count = sum(seen.total for seen in evaluated)
    if _changes(witnesses):
        why = "whether clients trained on them is not known, since they change their examples each time"
    elif not any(_fits(holding.sample, seen.x) for seen in evaluated):
        why = "they were taken in another form than training examples"
    elif not any((_is_labelled(seen) & (seen.y.dtype.kind == holding.kind)).any() for seen in evaluated):
        why = "they were seen without labels, or with others than training examples have"
    else:
        why = "somebody trained on them, or may have"
    return f"none of {count:,} examples that were only evaluated on can be asked about: {why}"


def _changes(witnesses: Iterable[Witness]) -> bool:
    """Say whether clients change their examples each time."""
    return any(witness.training is not None and bool(witness.training.augmented) for witness in witnesses)


def _clients_of(witnesses: Iterable[Witness]) -> dict[str, Client]:
    """Put the witnesses of each client that trained together."""
    found: dict[str, list[Witness]] = {}
    for witness in witnesses:
        if witness.node != SERVER and witness.trained.total:
            found.setdefault(witness.client or witness.node, []).append(witness)
    clients = {}
    for name in sorted(found, key=lambda name: (len(name), name)):
        most_first = sorted(found[name], key=lambda witness: -witness.trained.total)
        clients[name] = Client(name, tuple(most_first))
    return clients


def _form_of(clients: Iterable[Client]) -> tuple[str, NDArray[Any]]:
    """Return kind of labels, and examples of the form that most clients have.

    Raises
    ------
    DataError
        If the inputs have no features.
    """
    kinds, forms = Counter[str](), list[list[NDArray[Any]]]()
    for client in clients:
        kinds[client.trained.y.dtype.kind] += 1
        for form in forms:
            if _fits(form[0], client.trained.x):
                form.append(client.trained.x)
                break
        else:
            forms.append([client.trained.x])
    sample = max(forms, key=len)[0]
    shape = sample.shape[1:]
    if not fields(sample) and (not shape or 0 in shape):
        raise DataError(f"the model takes examples of shape {shape}; expected one feature or more")
    return kinds.most_common(1)[0][0], sample


def _fits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Say whether examples are of the same form; floating-point numbers may be of several widths."""
    if fields(one) or fields(other):
        return alike(one, other)
    return one.shape[1:] == other.shape[1:] and one.dtype.kind == other.dtype.kind


def _other_forms(holding: Holding) -> Iterator[str]:
    """Name the clients whose examples or labels are of another form than those of most."""
    for client in holding.clients.values():
        seen = client.trained
        if not len(seen):
            continue
        if not _fits(holding.sample, seen.x):
            yield (
                f"client {client.name} trains on examples of shape {seen.x.shape[1:]}, and most clients on "
                f"{holding.shape}: it is asked about none of its examples"
            )
        elif seen.y.dtype.kind != holding.kind:
            yield f"client {client.name} has labels of another kind than most: it is asked about none of its examples"


def _note_the_trained(holding: Holding) -> None:
    """Note who trained on what, up to the largest hash of which it is certain."""
    bound = _find_bound([witness.trained for client in holding.clients.values() for witness in client.witnesses])
    for client in holding.clients.values():
        asked = 0
        for witness in client.witnesses:
            for key in filter(bound.__ge__, _keys(witness.trained)):
                names = holding.holders.setdefault(key, [])
                if client.name not in names:
                    names.append(client.name)
            for key, x, y in _one_of_each_place(witness.trained, _usable(witness.trained, holding)):
                if key <= bound:
                    holding.examples.setdefault(key, (x, y))
                    asked += 1
        if not asked:
            holding.notes.append(f"client {client.name}: of no example of it is it certain that it alone holds it")


def _one_of_each_place(seen: SeenExamples, usable: Iterable[_Usable]) -> Iterator[_Usable]:
    """Yield one input of each example that came as several."""
    places = dict(zip(_keys(seen), seen.places.tolist(), strict=False))
    asked = set()
    for one in usable:
        place = places.get(one[0])
        if place is None or place not in asked:
            yield one
        asked.add(place)


def _note_the_evaluated(holding: Holding, witnesses: Sequence[Witness]) -> None:
    """Note what was only evaluated on, and by whom, up to the largest hash of which it is certain."""
    if _changes(witnesses):
        # A client may evaluate on its training examples as they are, which have other hashes than what it trained on.
        holding.notes.append(
            "clients train on examples that are changed each time, so that nobody knows which of those that they "
            "evaluate on are among them; none is taken for one that nobody holds"
        )
        return
    seen_by = _find_evaluators(holding, witnesses)
    certain = _find_bound([witness.evaluated for witness in witnesses])
    for key, names in seen_by.items():
        alone = len(names) == 1 and key <= certain and names <= {*holding.clients}
        holding.origins[key] = min(names) if alone else ""
    unchanged = any(witness.training and witness.training.augmented is False for witness in witnesses)
    if not unchanged and any(names != {""} for names in seen_by.values()):
        holding.notes.append(
            "of no client is it known that it trains on its examples as they are; if it changes them each time, those "
            "that it evaluates on may be among them, and are taken for ones that nobody holds"
        )


def _find_evaluators(holding: Holding, witnesses: Sequence[Witness]) -> dict[bytes, set[str]]:
    """Add the examples that nobody trained on, and return by hash who evaluated on them; the server has no name."""
    trained = [witness.trained for witness in witnesses]
    touched = {key for seen in trained for key in _keys(seen)}
    bound = _find_bound(trained)
    seen_by: dict[bytes, set[str]] = {}
    for witness in witnesses:
        name = "" if witness.node == SERVER else witness.client or witness.node
        for key, x, y in _usable(witness.evaluated, holding):
            if key <= bound and key not in touched:
                holding.examples.setdefault(key, (x, y))
                seen_by.setdefault(key, set()).add(name)
    return seen_by


def _find_bound(seen: Iterable[SeenExamples]) -> bytes:
    """Return the largest hash up to which all list what they saw."""
    bound = _ALL
    for each in seen:
        if each.total > len(each):
            bound = min(bound, max(_keys(each), default=b""))
    return bound


def _keys(seen: SeenExamples) -> list[bytes]:
    return list(map(bytes, seen.hashes))


def _usable(seen: SeenExamples, holding: Holding) -> Iterator[_Usable]:
    """Yield hash, example and label of those that are finite, have a label, and are of the form of the others."""
    if not _fits(holding.sample, seen.x) or seen.y.dtype.kind != holding.kind:
        return
    labels = seen.y >= 0 if holding.kind == "i" else np.isfinite(seen.y) & _is_labelled(seen)
    for row in np.flatnonzero(labels & finite(seen.x)):
        yield bytes(seen.hashes[row]), seen.x[row, ...], seen.y[row].item()


def _notes_of(witnesses: Iterable[Witness]) -> list[str]:
    """Put the notes of all witnesses together, each with the clients that it is about."""
    about: dict[str, list[str]] = {}
    for witness in witnesses:
        for note in witness.notes:
            about.setdefault(note, []).append(witness.client or witness.node)
    notes = []
    for note, names in about.items():
        listed = short(", ".join(names), 60)
        who = f"clients {listed}" if len(names) > 1 else f"client {listed}"
        notes.append(f"{'server' if names == [SERVER] else who}: {note}")
    if len(notes) > _MOST_NOTES:
        notes = [*notes[:_MOST_NOTES], f"and {len(notes) - _MOST_NOTES} notes of witnesses more"]
    return notes


def class_counts(clients: Mapping[str, Client], classes: int) -> NDArray[np.int64]:
    """Return (clients, classes): how many training examples of each class each client holds."""
    counts = np.zeros((len(clients), classes), dtype=np.int64)
    for row, client in enumerate(clients.values()):
        for label, count in client.trained.counts.items():
            if 0 <= label < classes:
                counts[row, label] = count
    return counts
