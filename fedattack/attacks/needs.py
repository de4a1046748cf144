"""What an attack needs of a record and of knowledge; declared without torch, so that a listing can show it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedattack.base.errors import short
from fedattack.base.reasons import NOTHING, Reason
from fedattack.record.format import PROTOCOLS

if TYPE_CHECKING:
    from fedattack.attacks.knowledge import Knowledge
    from fedattack.record import Record


@dataclass(frozen=True)
class Needs:
    """What an attack needs.

    Attributes
    ----------
    views, protocols
        The kinds of record that it can use.
    knowledge
        Names of the attributes of :class:`Knowledge` that must be there; or ``losses`` or ``layers``, which come from a
        model, or from the clients' own app.
    takes
        What may be missing in the record without making a number wrong: ``rounds`` and other ``clients``, as
        :class:`fedattack.record.Keep` leaves them out; and ``frozen`` weights, which the attacker puts back: for
        attacks that compute with models alone, or with gradients of what is trained. Besides these,
        ``structures``: examples that are more than one array, such as ids with a mask; ``models``: sums of clients
        that an active server sent different models; and ``untrained``: a run in which nothing is trained, and clients
        answer messages of other kinds.
    sgd
        Whether it reads gradients out of updates, as only SGD leaves them there.
    clipped
        Whether gradients may be clipped and noised, as those of private SGD.
    server
        The one server whose record it reads; empty for any.
    remedy
        What the owner of an app would have to say or do, so that the attacker knows what is asked about.
    about
        What the clients' model or replies must have, where the attack takes some kinds of these alone: a noun.
    asked_of
        The only examples of which it can be asked: ``tables``, ``classes``, or ``arrays``; empty for all.
    """

    views: tuple[str, ...]
    protocols: tuple[str, ...]
    knowledge: tuple[str, ...]
    takes: tuple[str, ...] = ()
    sgd: bool = False
    clipped: bool = False
    server: str = ""
    remedy: str = ""
    about: str = ""
    asked_of: str = ""

    def find_lacks(self, record: Record, knowledge: Knowledge) -> list[Reason]:
        """Say what is neither in a record nor known besides, and what is of a kind that the attack does not take."""
        reasons = []
        if record.view not in self.views:
            reasons.append(NEEDS_VIEW[self.views[0]])
        if record.protocol not in self.protocols:
            wanted = " or ".join(PROTOCOLS[name].replies for name in self.protocols)
            sent = PROTOCOLS[record.protocol].replies
            what = f"it needs {wanted}, but these clients send {sent}"
            reasons.append(Reason(what, PROTOCOL, f"{NOTHING}the question is about clients that send {wanted}"))
        reasons += self._find_too_little(record)
        unknown = [need for need in self.knowledge if not knowledge.has(need)]
        if unknown:
            reasons += self._explain_unknown(unknown, knowledge)
        if knowledge.structure() and "structures" not in self.takes:
            what = f"it needs examples that are one array of numbers, but this model takes {knowledge.structure()}"
            reasons.append(Reason(what, UNFIT, f"{NOTHING}the question is about examples of one array"))
        if knowledge.training is not None:
            reasons += self.find_unread(record, [knowledge.training.optimizer])
        return reasons

    def _find_too_little(self, record: Record) -> list[Reason]:
        """Say what of a record is too little, as where it is thinned, and what it keeps; nothing if nothing is."""
        if self.server not in ("", record.server):
            what = f"it needs a server that is {self.server}, but this one is {record.server}"
            return [Reason(what, KEPT, f"another run, of the preset of a {self.server} server")]
        # Sums of clients that were sent different models are no updates of one model.
        if record.view == "aggregate" and record.server != "passive" and "models" not in self.takes:
            what = f"it needs sums of clients that all received one model, but this server is {record.server}"
            return [Reason(what, KEPT, "another run, whose server sends all clients one model")]
        for kind in record.keep.kinds:
            if kind not in self.takes:
                what = f"it needs {_WHOLE[kind]}; {record.path} keeps {record.keep.describe(kind)}"
                return [Reason(what, KEPT, "the record before it was thinned, or another run that is recorded whole")]
        return []

    def _explain_unknown(self, unknown: Sequence[str], knowledge: Knowledge) -> list[Reason]:
        """Say what the attacker does not know, and what it would take, or why nothing would do."""
        what = f"the attacker does not know {' or '.join(_KNOWLEDGE.get(need, need) for need in unknown)}"
        targets, model = knowledge.targets, knowledge.model
        options = [*dict.fromkeys(_OPTIONS[need] for need in unknown if need in _OPTIONS)]
        given = f"{' and '.join(options)} of `fedattack attack`"
        # Without examples and a model nobody can say whether the owner of an app could do something.
        if not self.remedy or targets is None or model is None:
            return [Reason(what, UNKNOWN, given)]
        if knowledge.structure() and self.asked_of in ("tables", "arrays"):
            # That the attack takes no such examples is a reason of its own.
            return [Reason(what, UNKNOWN, given)]
        unfit = ""
        if self.asked_of == "tables" and targets.x.ndim != 2:
            unfit = f"it is asked only of tables, but the model takes examples of shape {targets.x.shape[1:]}"
        if self.asked_of == "classes" and (targets.y.dtype.kind == "f" or model.classes == 1):
            unfit = "it is asked only of classes, but these examples have none"
        if unfit:
            return [
                Reason(what, UNKNOWN, given),
                Reason(unfit, UNFIT, f"{NOTHING}the question is about other examples"),
            ]
        remedy = self.remedy
        if knowledge.auxiliary is None and "auxiliary" in self.knowledge:
            remedy += ", and clients that evaluate on examples of their own"
        return [Reason(what, UNKNOWN, remedy)]

    def find_unread(self, record: Record, optimizers: Collection[str]) -> list[Reason]:
        """Say that gradients cannot be read out of updates, where all clients train by other optimizers than SGD."""
        # A gradient needs no optimizer on the client: the server makes the step.
        if not self.sgd or not optimizers or record.protocol == "fedsgd":
            return []
        # One client that trains by SGD is enough for the attack to read something.
        readable = ("SGD", "private SGD") if self.clipped else ("SGD",)
        if any(name.startswith(readable) for name in optimizers):
            return []
        names = short(", ".join(sorted(optimizers)), 80)
        what = f"it reads gradients from updates of SGD, but these clients train by {names}"
        return [Reason(what, UNFIT, "another run, whose clients train by SGD")]


@dataclass(frozen=True)
class InApps:
    """How an attack is made where an app is audited and nobody chooses.

    Attributes
    ----------
    place
        The report begins with the attack of the lowest place; those of one place stand by name.
    options
        Options by which it takes minutes less, and finds hardly less: a round's work, or numbers of rounds or searches.
    is_slow
        Whether it takes minutes, so that it is not made where no outcome could be a leak.
    of_few
        Whether it is asked about clients of few examples alone, by its option ``clients``, in one run.
    for_many
        Options with which it is asked about one client of more examples, where none has few.
    of_sums
        Whether it is asked of the sums that single replies make, where replies are seen.
    reads_steps
        Whether it reads updates, so that its positive control plants a plain step in the place of each reply.
    reads_all
        Whether what it reads is held against all that a client holds, so that the planted step is on all of it.
    """

    place: int = 2
    options: Mapping[str, int] = field(default_factory=dict)
    is_slow: bool = False
    of_few: bool = False
    for_many: Mapping[str, str] = field(default_factory=dict)
    of_sums: bool = False
    reads_steps: bool = False
    reads_all: bool = False


VIEW, PROTOCOL, KEPT, UNKNOWN, UNFIT, FAILED = "view", "protocol", "kept", "unknown", "unfit", "failed"
"""Kinds of reasons why an attack cannot be made: the view, the protocol, what the record keeps, what is not known, what
is of a kind that the attack does not take, and what went wrong."""

READS_MODELS = frozenset({"model", "losses", "layers"})
"""What attacks need to know that read a model out of replies."""

NEEDS_VIEW = {
    "individual": Reason(
        "it needs each client's reply, but this server sees only sums", VIEW, "another run, without secure aggregation"
    ),
    "aggregate": Reason(
        "it is about sums of updates, but this server sees each client's reply",
        VIEW,
        "sums of this record, which `fedattack project` makes",
    ),
}
"""By the view that an attack needs, what keeps it from a record of the other one."""

_KNOWLEDGE = {
    "model": "the clients' model",
    "losses": "the clients' model and loss",
    "layers": "the clients' model",
    "targets": "examples to ask about",
    "auxiliary": "examples of the attacker's own",
    "attributes": "attributes of the attacker's examples",
    "training": "how clients train",
    "property": "a property to ask about",
    "partial": "clients' examples without one column",
}
_OPTIONS = {
    "model": "--model module:function",
    "losses": "--model module:function",
    "layers": "--model module:function",
    "targets": "--targets FILE",
    "auxiliary": "--auxiliary FILE",
    "attributes": "--attributes FILE",
    "training": "--training epochs=NUMBER",
    "property": "--property NAME",
    "partial": "--partial FILE",
}
"""By what an attacker may lack, how `fedattack attack` takes it."""

_WHOLE = {
    "rounds": "every round",
    "clients": "the replies of all clients",
}
