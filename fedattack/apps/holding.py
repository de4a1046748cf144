"""The stage `hold` of an audit: who holds what, as far as witnesses can tell, by hashes of examples.

A witness keeps the examples of a client with the smallest hashes. So it lists all of them up to a hash, and says
nothing of those beyond. An example counts only if its hash is one up to which every client lists what it trained on: of
any other nobody knows whether a further client holds it, too.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError, short
from fedattack.base.structured import alike, fields, finite
from fedattack.record import Record
from fedattack.witness import SERVER, UNKNOWN, SeenExamples, Witness
from fedattack.witness.seen import ONLY_APP

_ALL = b"\xff" * 32
"""A hash that none is larger than."""

_MOST_NOTES = 20

# Clients that must all have an example before it counts as public.
_FEWEST_OF_PUBLIC = 3

Example = tuple[NDArray[Any], float]
"""An input and its label."""


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

    def own(self, examples: Mapping[bytes, Example]) -> list[bytes]:
        """List those of its training examples that are among others."""
        # In ascending order of the hashes, as witnesses list them.
        return [key for key in _keys(self.trained) if key in examples]


@dataclass(frozen=True)
class Holding:
    """All examples of which it is certain who trained on them.

    Attributes
    ----------
    witnesses
        From which this is known.
    clients
        By name, those that trained.
    kind
        Whether labels are classes (``i``) or numbers (``f``).
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
    incomplete
        The hashes of those examples that hold a value that is not finite, such as a missing cell. What a model makes of
        them it alone knows: nothing but its losses can be asked about them.
    """

    witnesses: Sequence[Witness]
    clients: Mapping[str, Client]
    kind: str
    sample: NDArray[Any]
    examples: Mapping[bytes, Example]
    holders: Mapping[bytes, Sequence[str]]
    origins: Mapping[bytes, str]
    why_none: str = ""
    notes: Sequence[str] = ()
    incomplete: frozenset[bytes] = frozenset()

    @cached_property
    def complete(self) -> Mapping[bytes, Example]:
        """The examples all of whose values are finite: what can be compared, computed with or rebuilt."""
        return {key: example for key, example in self.examples.items() if key not in self.incomplete}

    def list_copies(self) -> dict[tuple[bytes, float], list[str]]:
        """List who holds each complete example with each label, by its hash and the label.

        A client stands there once for each copy that it has. What nobody holds has an empty list.
        """
        labels = {}
        copies: dict[tuple[bytes, float], list[str]] = {}
        for client in self.clients.values():
            labels[client.name] = dict(zip(_keys(client.trained), client.trained.y.tolist(), strict=True))
        for key, (_, label) in self.complete.items():
            names = self.holders.get(key, ())
            if not names:
                copies[key, label] = []
            for name in names:
                # Two clients may give equal inputs different labels.
                own = labels[name].get(key, UNKNOWN)
                is_known = own != UNKNOWN and math.isfinite(own)
                copies.setdefault((key, own if is_known else label), []).append(name)
        for client in self.clients.values():
            keys = _keys(client.trained)
            for row, label in zip(client.trained.again.tolist(), client.trained.again_y.tolist(), strict=True):
                if keys[row] in self.complete and client.name in self.holders.get(keys[row], ()):
                    copies.setdefault((keys[row], label), []).append(client.name)
        return copies

    def leave_out_incomplete(self, why: str) -> "Holding":
        """Return the same without incomplete examples; ``why`` they are left out is noted.

        Raises
        ------
        DataError
            If no example that a client trained on is left.
        """
        # If only incomplete examples have a holder, nothing is left to attack.
        if not {*self.complete} & {*self.holders}:
            raise DataError(
                f"all training examples hold a value that is not finite, and {why}: no attack takes such examples"
            )
        origins = {key: name for key, name in self.origins.items() if key not in self.incomplete}
        why_none = self.why_none
        if not origins:
            why_none = (
                self.why_none or f"all examples that nobody trained on hold a value that is not finite, and {why}"
            )
        note = f"no attack asks about examples that hold a value that is not finite: {why}"
        return replace(
            self,
            examples=self.complete,
            origins=origins,
            why_none=why_none,
            notes=(*self.notes, note),
            incomplete=frozenset(),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example; of none where the model takes more than one array of numbers."""
        return self.sample.shape[1:]

    def fits(self, x: NDArray[Any]) -> bool:
        """Say whether examples are of the form that most clients' are."""
        return _fits(self.sample, x)


def hold(witnesses: Sequence[Witness], record: Record | None = None) -> Holding:
    """Find out who holds what.

    With sums, no example is asked about whose holders may be in none of them: it may count as held, or as nobody's.

    Raises
    ------
    DataError
        If no client's training was witnessed, or the model's inputs are of a kind that cannot be asked about.
    """
    clients = _find_clients(witnesses)
    if not clients:
        raise DataError(_why_nobody(witnesses))
    notes = list_witness_notes(witnesses)
    form = _ExampleForm.of_most(clients.values())
    notes += form.list_others(clients.values())
    notes += _count_incomplete(form, clients.values())
    holders, examples = _find_trained(clients, form, notes)
    if not examples:
        raise DataError(_why_nothing(clients.values()))
    # Before sums are looked at: an example that nobody may ask about still has a holder.
    origins: dict[bytes, str] = {}
    if _changes(witnesses):
        # A client may evaluate on its training examples as they are, which have other hashes than what it trained on.
        notes.append(
            "clients change their training examples each time, so nobody knows which of them clients also "
            "evaluate on; no example counts as one that nobody holds"
        )
    else:
        origins = _find_origins(clients, form, examples, witnesses, notes)
    why_none = ""
    if not origins:
        why_none = _why_none(form, witnesses)
    if record is not None and record.view == "aggregate":
        _leave_out_unheard(clients, record, holders, examples, notes)
    # One example at a time, since their forms may hold several arrays.
    incomplete = frozenset(key for key, (x, _) in examples.items() if not finite(np.asarray(x)[None])[0])
    return Holding(
        witnesses, clients, form.kind, form.sample, examples, holders, origins, why_none, tuple(notes), incomplete
    )


@dataclass(frozen=True)
class _ExampleForm:
    """What examples must have in common to be asked about.

    Attributes
    ----------
    kind
        Of labels: classes (``i``) or numbers (``f``).
    sample
        Some inputs.
    outputs
        How many classes the model tells apart that most clients train; infinite where that bounds no labels.
    """

    kind: str
    sample: NDArray[Any]
    outputs: float = math.inf

    @classmethod
    def of_most(cls, clients: Collection[Client]) -> "_ExampleForm":
        """Return the form that most clients have."""
        kinds, samples = Counter[str](), list[list[NDArray[Any]]]()
        for client in clients:
            kinds[client.trained.y.dtype.kind] += 1
            # Samples of the same form lie together; fields of structured types cannot be keys of a Counter.
            for same in samples:
                if _fits(same[0], client.trained.x):
                    same.append(client.trained.x)
                    break
            else:
                samples.append([client.trained.x])
        sample = max(samples, key=len)[0]
        shape = sample.shape[1:]
        # No feature at all: an example of a scalar, or of an axis of length 0.
        if not fields(sample) and (not shape or 0 in shape):
            raise DataError(f"the model takes examples of shape {shape}; expected one feature or more")
        kind = kinds.most_common(1)[0][0]
        outputs = math.inf
        if kind == "i":
            outputs = _count_outputs(clients)
        return cls(kind, sample, outputs)

    def list_others(self, clients: Iterable[Client]) -> Iterator[str]:
        """Name the clients of another form."""
        for client in clients:
            seen = client.trained
            if len(seen) and not _fits(self.sample, seen.x):
                yield (
                    f"client {client.name} trains on examples of {_describe(seen.x)}, and most clients on "
                    f"{_describe(self.sample)}: no attack asks about its examples"
                )
            elif len(seen) and seen.y.dtype.kind != self.kind:
                yield (
                    f"client {client.name} has labels of a different type from most clients: no attack asks about its "
                    "examples"
                )
            elif (labels := _largest_label(client)) >= self.outputs:
                yield (
                    f"client {client.name} has labels up to {labels:g}, and the model that most clients train has "
                    f"{self.outputs:g} outputs: no attack asks about such examples"
                )

    def takes(self, client: Client) -> bool:
        """Say whether any of a client's training examples is of this form."""
        return any(True for witness in client.witnesses for _ in self.take(witness.trained))

    def is_labelled(self, seen: SeenExamples) -> NDArray[np.bool_]:
        """Say of each example whether it has a label: a class, or a finite number."""
        labelled = np.isfinite(seen.y) & _is_labelled(seen)
        if self.kind == "i":
            # Class labels are 0 and more; −1 stands for none.
            labelled = seen.y >= 0
        return np.asarray(labelled & (seen.y < self.outputs))

    def take(self, seen: SeenExamples) -> Iterator[tuple[bytes, Example]]:
        """Yield by its hash each example of this form that has a label."""
        if not _fits(self.sample, seen.x) or seen.y.dtype.kind != self.kind:
            return
        for row in np.flatnonzero(self.is_labelled(seen)):
            # `...` keeps the array of a structured example, which an integer index alone would make a tuple of.
            yield bytes(seen.hashes[row]), (seen.x[row, ...], seen.y[row].item())


def _describe(x: NDArray[Any]) -> str:
    """Say of what form examples are."""
    if fields(x):
        return f"the arrays {short(', '.join(fields(x)), 100)}"
    return f"{x.dtype.name} of shape {x.shape[1:]}"


def _fits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Say whether examples are of the same form; floating-point numbers may be of several widths."""
    if fields(one) or fields(other):
        return alike(one, other)
    return one.shape[1:] == other.shape[1:] and one.dtype.kind == other.dtype.kind


def _count_outputs(clients: Collection[Client]) -> float:
    """Count the outputs of the model that most clients train, if these bound the labels of most clients.

    Cross-entropy refuses a label of no output: nobody trained on it by that model, whatever a witness says.
    """
    counts = Counter[int]()
    for client in clients:
        model = client.witnesses[0].model
        if model is not None and model.loss == "cross-entropy" and model.classes > 1:
            counts[model.classes] += 1
    if not counts:
        return math.inf
    outputs = counts.most_common(1)[0][0]
    beyond = sum(_largest_label(client) >= outputs for client in clients)
    # With half of the clients beyond it, the outputs are likely read wrongly, and bound nothing.
    if 2 * beyond >= len(clients):
        return math.inf
    return outputs


def _largest_label(client: Client) -> float:
    """Return the largest label of a client's examples; -1 without any."""
    labels = [witness.trained.y.max() for witness in client.witnesses if len(witness.trained)]
    return float(max(labels, default=-1))


def _find_clients(witnesses: Iterable[Witness]) -> dict[str, Client]:
    """Put the witnesses of each client that trained together."""
    found: dict[str, list[Witness]] = {}
    for witness in witnesses:
        if witness.node != SERVER and witness.trained.total:
            # A client that was restarted, or moved, has a node for each time.
            found.setdefault(witness.client or witness.node, []).append(witness)
    clients = {}
    for name in sorted(found, key=lambda name: (len(name), name)):
        # The first stands for all: it saw most.
        most_first = sorted(found[name], key=lambda witness: -witness.trained.total)
        clients[name] = Client(name, tuple(most_first))
    return clients


def _find_trained(
    clients: Mapping[str, Client], form: _ExampleForm, notes: list[str]
) -> tuple[dict[bytes, list[str]], dict[bytes, Example]]:
    """Return who trained on what, and the examples, up to the largest hash of which it is certain."""
    witnesses = chain.from_iterable(client.witnesses for client in clients.values())
    # Up to this hash every witness lists all that it saw: who is not listed does not hold it.
    bound = _find_bound(witness.trained for witness in witnesses)
    holders: dict[bytes, list[str]] = {}
    examples: dict[bytes, Example] = {}
    for client in clients.values():
        is_asked = False
        for witness in client.witnesses:
            # `bound.__ge__` keeps the hashes up to the bound.
            for key in filter(bound.__ge__, _keys(witness.trained)):
                names = holders.setdefault(key, [])
                if client.name not in names:
                    names.append(client.name)
            for key, example in _take_one_a_place(witness.trained, form):
                if key <= bound:
                    examples.setdefault(key, example)
                    is_asked = True
        if not is_asked and form.takes(client):
            notes.append(f"client {client.name}: it is not certain who else holds its examples")
    return holders, examples


def _count_incomplete(form: _ExampleForm, clients: Iterable[Client]) -> Iterator[str]:
    """Say how many training examples of which clients lack a label, or a value that is finite."""
    unlabelled, incomplete, all_seen = Counter[str](), Counter[str](), 0
    for client in clients:
        seen = client.trained
        if not _fits(form.sample, seen.x) or seen.y.dtype.kind != form.kind:
            continue
        all_seen += len(seen)
        unlabelled[client.name] = int((~form.is_labelled(seen)).sum())
        incomplete[client.name] = int((~finite(seen.x)).sum())
    for counts, what in (
        (incomplete, "hold a value that is not finite, such as a missing cell"),
        (unlabelled, "had no label that the witness saw; no attack asks about them"),
    ):
        if counts.total():
            whose = ", ".join(f"{name}: {count:,}" for name, count in counts.items() if count)
            yield (
                f"{counts.total():,} of the {all_seen:,} training examples that were seen {what} (by client, "
                f"{short(whose, 200)})"
            )


def _take_one_a_place(seen: SeenExamples, form: _ExampleForm) -> Iterator[tuple[bytes, Example]]:
    """Yield one input of each example that came as several."""
    # An example may come as several inputs, such as windows of one series; they share a place.
    places = dict(zip(_keys(seen), seen.places.tolist(), strict=False))
    asked = set()
    for key, example in form.take(seen):
        place = places.get(key)
        if place is None or place not in asked:
            yield key, example
        asked.add(place)


def _find_origins(
    clients: Mapping[str, Client],
    form: _ExampleForm,
    examples: dict[bytes, Example],
    witnesses: Sequence[Witness],
    notes: list[str],
) -> dict[bytes, str]:
    """Add the examples that nobody trained on, and return the one client that evaluated on each."""
    trained = [witness.trained for witness in witnesses]
    # What anybody trained on, the server too, is no example of nobody's.
    touched = {*chain.from_iterable(map(_keys, trained))}
    # Up to `bound` it is certain that nobody trained on it; up to `certain`, that nobody else evaluated on it.
    bound, certain = _find_bound(trained), _find_bound(witness.evaluated for witness in witnesses)
    seen_by: dict[bytes, set[str]] = {}
    for witness in witnesses:
        name = witness.client or witness.node
        if witness.node == SERVER:
            name = ""
        for key, example in form.take(witness.evaluated):
            if key <= bound and key not in touched:
                examples.setdefault(key, example)
                seen_by.setdefault(key, set()).add(name)
    origins = {}
    for key, names in seen_by.items():
        origins[key] = ""
        # Evaluated on by exactly one client that also trains: it is an example drawn as this client's are.
        if len(names) == 1 and key <= certain and names <= {*clients}:
            origins[key] = min(names)
    unchanged = any(witness.training and witness.training.augmented is False for witness in witnesses)
    if not unchanged and any(names != {""} for names in seen_by.values()):
        notes.append(
            "no client is known to train on its examples unchanged; if clients change them each time, training "
            "examples may be among those that they evaluate on and that count as held by nobody"
        )
    return origins


def _leave_out_unheard(
    clients: Mapping[str, Client],
    record: Record,
    holders: Mapping[bytes, Sequence[str]],
    examples: dict[bytes, Example],
    notes: list[str],
) -> None:
    heard = {*chain.from_iterable(round_.participants for round_ in record)}
    unheard = {name for name, client in clients.items() if not heard & {*client.nodes}}
    for key, names in holders.items():
        # All holders of an example are clients whose reply the sum may lack.
        if unheard.issuperset(names):
            examples.pop(key, None)
    if unheard:
        notes.append(
            f"a sum may lack what the clients {short(', '.join(sorted(unheard)), 60)} trained: no attack asks "
            "about their examples"
        )


def _find_bound(seen: Iterable[SeenExamples]) -> bytes:
    """Return the largest hash up to which all list what they saw."""
    bound = _ALL
    for each in seen:
        # A witness whose list is cut says nothing of hashes beyond its last one.
        if each.total > len(each):
            bound = min(bound, max(_keys(each), default=b""))
    return bound


def _keys(seen: SeenExamples) -> list[bytes]:
    return list(map(bytes, seen.hashes))


def _is_labelled(seen: SeenExamples) -> NDArray[np.bool_]:
    return np.asarray(seen.y != UNKNOWN)


def _changes(witnesses: Iterable[Witness]) -> bool:
    """Say whether clients change their examples each time."""
    return any(witness.training is not None and witness.training.augmented for witness in witnesses)


def _why_nobody(witnesses: Sequence[Witness]) -> str:
    """Say why there is no training to ask about: none was seen, or one that no attack asks about."""
    if unasked := find_unasked(witnesses):
        return unasked
    return (
        f"no client's training was witnessed{_why_unseen(witnesses)}: the witness sees what PyTorch, scikit-learn "
        "or XGBoost trains in the client's own process; if your clients train otherwise, give their examples by "
        "--examples module:function, or call fedattack.witness.trained_on(x, y) where the client trains"
    )


def find_public(holding: Holding) -> list[bytes]:
    """Return the hashes of the examples that all clients train on, as on public ones; none of fewer than three clients.

    Two clients may have an example in common by accident.
    """
    everybody = {*holding.clients}
    if len(everybody) < _FEWEST_OF_PUBLIC:
        return []
    return [key for key, names in holding.holders.items() if everybody <= {*names}]


def find_unasked(witnesses: Iterable[Witness]) -> str:
    """Say what clients train that no attack asks about, if a witness saw such; empty if not."""
    for witness in witnesses:
        for note in witness.notes:
            if note.endswith(ONLY_APP):
                return f"{note}; the page lists what reached the server"
    return ""


def _why_unseen(witnesses: Iterable[Witness]) -> str:
    """Return, in brackets, the first thing that a witness could not see; empty if there was none."""
    for witness in witnesses:
        for note in witness.notes:
            if any(words in note for words in ("not seen", "not covered", "left out")):
                return f" ({note})"
    return ""


def _why_nothing(clients: Iterable[Client]) -> str:
    """Say why no example that a client trained on can be asked about."""
    if not any(_is_labelled(client.trained).any() for client in clients):
        return (
            "no training example was seen with a label of one number: state it by fedattack.witness.trained_on(x, "
            "y); if there is no label, as for an autoencoder, state 0, and use --loss own with a --model of the "
            "same arrays that returns its own loss"
        )
    return (
        "fedattack is not certain of the owner of any training example with a label: a witness lists only a part of a "
        "large client's examples, and for all clients these parts must cover the same range of hashes"
    )


def _why_none(form: _ExampleForm, witnesses: Sequence[Witness]) -> str:
    """Say why no example that was evaluated on can count as one that nobody trained on."""
    evaluated = [witness.evaluated for witness in witnesses if witness.evaluated.total]
    if not evaluated:
        return "no client or server was seen to evaluate on examples that nobody trained on"
    if _changes(witnesses):
        why = "clients change their examples each time, so nobody knows whether they trained on them"
    elif not any(_fits(form.sample, seen.x) for seen in evaluated):
        why = "their form differs from that of the training examples"
    elif not any((_is_labelled(seen) & (seen.y.dtype.kind == form.kind)).any() for seen in evaluated):
        why = "they were seen without labels, or with labels unlike those of training examples"
    else:
        why = "somebody trained on them, or may have done so"
    count = sum(seen.total for seen in evaluated)
    return f"none of {count:,} examples that were only evaluated on can be asked about: {why}"


def list_witness_notes(witnesses: Iterable[Witness]) -> list[str]:
    """Put the notes of all witnesses together, each with the clients that it is about."""
    about: dict[str, list[str]] = {}
    for witness in witnesses:
        for note in witness.notes:
            about.setdefault(note, []).append(witness.client or witness.node)
    notes = []
    for note, names in about.items():
        who = f"client {short(names[0], 60)}"
        if names == [SERVER]:
            who = "server"
        elif len(names) > 1:
            who = f"clients {short(', '.join(names), 60)}"
        notes.append(f"{who}: {note}")
    if len(notes) > _MOST_NOTES:
        notes = [*notes[:_MOST_NOTES], f"and {len(notes) - _MOST_NOTES} more notes of witnesses"]
    return notes


def count_classes(clients: Mapping[str, Client], classes: int) -> NDArray[np.int64]:
    """Return (clients, classes): how many training examples of each class each client holds."""
    counts = np.zeros((len(clients), classes), dtype=np.int64)
    for row, client in enumerate(clients.values()):
        for label, count in client.trained.counts.items():
            if 0 <= label < classes:
                counts[row, label] = count
        for label in client.trained.again_y.tolist():
            if 0 <= label < classes:
                counts[row, int(label)] += 1
    return counts
