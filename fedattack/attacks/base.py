"""What every attack is: record + knowledge + seed → scores. Attacks never see the truth."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints

from fedattack.attacks.knowledge import Knowledge, ModelKnowledge, PartialRecords, Targets
from fedattack.attacks.matching import as_models, as_stated, complete_models, how_named, named_for
from fedattack.attacks.needs import UNFIT, InApps, Needs
from fedattack.attacks.options import Options
from fedattack.attacks.replies import without_canaries
from fedattack.base.errors import DataError, NeedsError, short
from fedattack.base.files import make_private, write_npz
from fedattack.base.machine import count_processor_seconds, let_go
from fedattack.base.reasons import NOTHING, Reason, join_reasons
from fedattack.base.stored import ANY_KIND, OPTIONAL, Axes, Name, check_arrays, read_arrays, split
from fedattack.base.untrusted import MAX_INFLATED
from fedattack.learning.stated import LocalSGD
from fedattack.record import Record
from fedattack.record.format import Arrays
from fedattack.record.marks import RecordMark, explain_statement

F = TypeVar("F")
K = TypeVar("K")

KNOWS_ARCHITECTURE = "the model's architecture"
"""How what attacks know of a model's layers begins."""

KNOWS_MODEL = f"{KNOWS_ARCHITECTURE} and loss"
"""What an attack assumes of whoever computes losses; where the clients' own app is asked, it is that app."""

KNOWS_NOTHING = "nothing"
"""How what an attack knows begins that needs the record alone."""

Progress = Callable[[int, int], None]
"""Called with how many steps are done, and of how many."""


@dataclass
class Seen:
    """What an attack receives: what the server saw, and what the attacker knows besides.

    What :attr:`Needs.knowledge` of the attack names is there: :meth:`Attack.run` has looked.

    Attributes
    ----------
    record
        The record of one run, with the names and weights of models that the attacker knows.
    knowledge
        What the attacker knows.
    seed
        Of every random draw.
    device
        ``auto``, ``cpu`` or ``cuda``.
    progress
        Called with the number of steps done and the number of all steps.
    notes
        What a reader of the scores must know, such as clients whose replies could not be used; the attack adds to it.
    """

    record: Record
    knowledge: Knowledge
    seed: int
    device: str
    progress: Progress
    notes: list[str] = field(default_factory=list)

    @property
    def model(self) -> ModelKnowledge:
        """The clients' model."""
        return _require(self.knowledge.model)

    @property
    def training(self) -> LocalSGD:
        """How clients train."""
        return _require(self.knowledge.training)

    @property
    def targets(self) -> Targets:
        """Examples to ask about."""
        return _require(self.knowledge.targets)

    @property
    def auxiliary(self) -> Targets:
        """Examples of the attacker's own."""
        return _require(self.knowledge.auxiliary)

    @property
    def partial(self) -> PartialRecords:
        """Clients' examples without one column."""
        return _require(self.knowledge.partial)


def _require(known: K | None) -> K:
    if known is None:
        raise AssertionError("an attack reads what its needs do not name")
    return known


@dataclass(frozen=True, eq=False)
class Scores:
    """What an attack found: raw scores and decisions as arrays, and words about how it got there.

    Attributes
    ----------
    attack
        Name of the attack.
    arrays
        Named arrays; each attack documents its own.
    facts
        JSON-like facts, such as the names of clients along an axis.
    notes
        What a reader of the result must know, such as clients whose replies could not be used.
    seconds
        Processor time that the attack took on this machine; 0 if it was not measured.
    record
        The record that was attacked, and its state; ``None`` if it is not known.
    """

    attack: Name
    arrays: Annotated[Mapping[str, NDArray[Any]], Axes(rest=True, nan=True, kinds=ANY_KIND)]
    facts: Mapping[Name, Any]
    notes: tuple[Annotated[str, StringConstraints(max_length=100_000)], ...] = ()
    seconds: Annotated[float, Field(ge=0)] = 0.0
    record: Annotated[RecordMark | None, OPTIONAL] = None

    @classmethod
    def of(
        cls,
        attack: str,
        found: Any,
        notes: Sequence[str] = (),
        seconds: float = 0.0,
        record: RecordMark | None = None,
    ) -> "Scores":
        """Make scores from what an attack found, an object of its :attr:`Attack.found`."""
        facts, arrays = split(found)
        scores = cls(attack, arrays, facts, tuple(notes), seconds, record)
        object.__setattr__(scores, "_found", found)
        return scores

    def as_found(self, form: type[F], where: object = "") -> F:
        """Return what the attack found in its own form: arrays and facts in one object, which is made once.

        ``where`` is what an error names.

        Raises
        ------
        DataError
            If arrays or facts do not have this form.
        """
        # No field of the dataclass: a changed copy of these scores makes its own.
        made = getattr(self, "_found", None)
        if not isinstance(made, form):
            name = where or f"scores of {self.attack}"
            made = check_arrays(form, self.arrays, name, DataError, _AGAIN, entry=self.facts)
            object.__setattr__(self, "_found", made)
        return made

    def save(self, path: Path) -> None:
        """Write to ``path`` as an ``.npz`` whose array ``facts`` is a JSON text; no pickle."""
        about, arrays = split(self)
        text = json.dumps(about, allow_nan=False)
        make_private(path.parent)
        write_npz(path, {_ABOUT: np.array(text), **arrays}, compress=True)

    @classmethod
    def load(cls, path: Path) -> "Scores":
        """Read what :meth:`save` wrote.

        Raises
        ------
        DataError
            If the file is missing or was not written by :meth:`save`.
        """
        return read_arrays(cls, path, DataError, _AGAIN, text=_ABOUT, most=IN_MEMORY, inflated=MAX_INFLATED)


IN_MEMORY = 16 * 2**20
"""Bytes of an array of scores that is read into memory; larger ones stay on disk."""

_AGAIN = "run `fedattack attack` again"
# The array that holds the text of all that is no array.
_ABOUT = "facts"


class Attack(ABC):
    """An attack on a record.

    Subclasses are found by name in :data:`fedattack.attacks.ATTACKS`. They only read the record.

    Parameters
    ----------
    options
        Its options, if they differ from the subclass's own.
    """

    options: Options
    """What declares the attack, and how it computes. A subclass states its own: ``options = TokensOptions()``."""
    knows: ClassVar[tuple[str, ...]]
    """The assumed knowledge in words, for the report."""
    asks_peers: ClassVar[bool] = False
    """Whether it also asks what a client learns of others by the models that it is sent."""
    found: ClassVar[type[Any]]
    """The frozen dataclass of what it finds: its own form on disk, see :mod:`fedattack.base.stored`."""

    def __init__(self, options: Options | None = None) -> None:
        if options is not None:
            self.options = options

    @property
    def name(self) -> str:
        """What commands call it."""
        return self.options.name

    @property
    def title(self) -> str:
        """What people call it."""
        return self.options.title

    @property
    def paper(self) -> str:
        """Who described it."""
        return self.options.paper

    @property
    def needs(self) -> Needs:
        """What it needs of a record and of knowledge."""
        return self.options.needs

    @property
    def in_apps(self) -> InApps:
        """How it is made where an app is audited."""
        return self.options.in_apps

    def load_scores(self, path: Path) -> Scores:
        """Read scores of this attack; a DataError if they are another attack's, or of another form."""
        scores = Scores.load(path)
        if scores.attack != self.name:
            raise DataError(f"{path} holds scores of {short(scores.attack, 60)!r}, not of {self.name}; {_AGAIN}")
        scores.as_found(self.found, path)
        for array in scores.arrays.values():
            let_go(array)
        return scores

    def with_options(self, choices: Mapping[str, str]) -> Self:
        """Return this attack with ``choices`` among its options; a ConfigError if one is unknown or cannot be taken."""
        options = self.options.choose(choices)
        if options == self.options:
            return self
        return type(self)(options)

    def run(
        self,
        record: Record,
        knowledge: Knowledge,
        *,
        seed: int = 0,
        device: str = "auto",
        progress: Progress | None = None,
    ) -> Scores:
        """Check that the record and the knowledge suffice, then attack.

        Parameters
        ----------
        seed
            Of every random draw; the same seed gives the same scores on the CPU.
        device
            ``auto``, ``cpu`` or ``cuda``.
        progress
            Called now and then with steps done and steps in all.

        Raises
        ------
        NeedsError
            If the record is of another view or protocol than the attack needs, or was thinned too much for it,
            knowledge is missing or of another record, or there are no rounds in which a client answered.
        """
        if stranger := explain_statement("the knowledge", knowledge.record, record):
            raise NeedsError(f"attack {self.name}: {stranger}")
        mark = RecordMark.of(record)
        record = record.singled_out()
        if obstacles := self.find_obstacles(record, knowledge):
            raise NeedsError(f"attack {self.name} cannot be made of {record.path}: {join_reasons(obstacles)}")
        record = as_models(without_canaries(record, knowledge), knowledge)
        is_untrained = not len(record) and record.has_contents
        if not len(record) and not (is_untrained and "untrained" in self.needs.takes):
            raise NeedsError(f"attack {self.name} needs at least one whole round, and {record.path} holds none")
        if record.view == "individual" and record.silence:
            raise NeedsError(f"attack {self.name} needs replies of clients, and in {record.path} {record.silence}")
        named = named_for(record, knowledge.model, knowledge.frozen or ())
        whole = complete_models(named, knowledge)
        if whole is not named and "frozen" not in self.needs.takes:
            raise NeedsError(
                f"attack {self.name} needs a record of all that clients train; it cannot use frozen weights, because "
                "nobody sent their gradients"
            )
        before = count_processor_seconds()
        seen = Seen(whole, knowledge, seed, device, progress or (lambda done, total: None))
        found = self.attack(seen)
        seconds = round(max(count_processor_seconds() - before, 0.01), 2)
        notes = how_named(record, named)
        if whole is not named:
            added = len(whole.parameters) - len(named.parameters)
            notes.append(
                f"{added} arrays are not in the record; they are treated as frozen, with the attacker's own values"
            )
        return Scores.of(self.name, found, [*notes, *seen.notes], seconds, mark)

    def find_obstacles(self, record: Record, knowledge: Knowledge) -> list[Reason]:
        """List why this attacker cannot attack this record; empty if it can.

        Commands, apps, pages and forecasts ask here.
        """
        record = as_stated(record, knowledge)
        reasons = self.needs.find_lacks(record, knowledge)
        never = f"{NOTHING}the question is about {self.needs.about or 'other models'}"
        reasons += [Reason(what, UNFIT, never) for what in self.unfit(record, knowledge)]
        return reasons

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """List the models that the attack cannot use; empty if there are none.

        A subclass says what it finds in the model. It names the kind that it takes, and reads no array.
        """
        return []

    @abstractmethod
    def attack(self, seen: Seen) -> Any:
        """Attack, and return an object of :attr:`found`; everything that the attack needs is there."""


PLANTED, SHOWN = "planted", "shown"
"""What clients do in a control of such an attack: they send trees that split by their own values, or some of their own
examples as they are."""


class Plants(ABC):
    """An attack whose positive control in audits of apps is a reply that gives away some of a client's own rows.

    Attributes
    ----------
    planted
        :data:`PLANTED` or :data:`SHOWN`.
    """

    planted: ClassVar[str]

    @abstractmethod
    def plant(self, reply: Arrays, rows: NDArray[np.float32], count: int) -> Arrays:
        """Return a reply in the place of another that gives up to so many values of a client's rows (n, columns) away.

        Raises
        ------
        DataError
            If nothing can be planted in such a reply.
        """
