"""What can be asked of a client: properties, each with a recipe for batches with and without it.

A property is a plug-in. A user's own is an import path ``module:function``: the function takes the auxiliary records
and the target records (either may be ``None``) and returns a list of :class:`Property`, one for each question.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.knowledge import Targets, class_asked
from fedattack.base.errors import NeedsError
from fedattack.learning.importing import import_callable

Behaviour = Literal["descend", "invert", "ascend"]
"""What a client with the property does: trains, sends −Δ, or ascends the loss."""

Draw = Callable[[bool, int, int, NDArray[np.int64], np.random.Generator], NDArray[np.int64]]
"""Draws the examples of shadow clients: (with the property?, how many clients, examples each, the auxiliary records
that may be used, generator) → (clients, examples) of indices. Indices from the number of auxiliary records on mean
``extra``."""

BEHAVIOURS: tuple[Behaviour, ...] = ("descend", "invert", "ascend")


@dataclass(frozen=True)
class Property:
    """One question to every client.

    Attributes
    ----------
    name
        For people.
    draw
        Recipe for batches with and without the property, from the auxiliary records.
    behaviour
        What clients with the property do with their batch.
    extra
        Examples beside the auxiliary ones, such as the target record, or ``None``.
    """

    name: str
    draw: Draw
    behaviour: Behaviour = "descend"
    extra: Targets | None = field(default=None)

    @property
    def extra_count(self) -> int:
        """How many examples there are beside the auxiliary ones."""
        return 0 if self.extra is None else len(self.extra)

    def __post_init__(self) -> None:
        if self.behaviour not in BEHAVIOURS:
            raise NeedsError(
                f"property {self.name}: unknown behaviour {self.behaviour!r}; expected one of {', '.join(BEHAVIOURS)}"
            )


def draw_records(count: int, size: int, rows: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw ``count`` clients' batches of ``size`` different examples from ``rows``; returns (count, size).

    Raises
    ------
    NeedsError
        If there are fewer examples than a batch takes.
    """
    if len(rows) < size:
        raise NeedsError(
            f"a client's batch takes {size} different auxiliary records, and there are {len(rows)} to draw from; add "
            "auxiliary records"
        )
    if 4 * size * size > len(rows):
        order = generator.random((count, len(rows))).argpartition(size - 1, axis=1)[:, :size]
        return np.asarray(rows[order])
    # few repeats are likely: drawing those batches again is faster than ordering all records for every batch
    batches = generator.integers(len(rows), size=(count, size))
    while True:
        ordered = np.sort(batches, axis=1)
        again = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if not len(again):
            return np.asarray(rows[batches])
        batches[again] = generator.integers(len(rows), size=(len(again), size))


def _draw_again(count: int, size: int, rows: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw as :func:`draw_records` does; of fewer examples than a batch takes, some several times."""
    if 0 < len(rows) < size:
        return np.asarray(generator.choice(rows, size=(count, size)))
    return draw_records(count, size, rows, generator)


def membership(auxiliary: Targets, target: Targets, name: str = "membership") -> Property:
    """Ask whether the one example of ``target`` is among a client's training data (PROLIN, Section 5.1.2)."""

    def draw(
        has: bool, count: int, size: int, rows: NDArray[np.int64], generator: np.random.Generator
    ) -> NDArray[np.int64]:
        batches = draw_records(count, size, rows, generator)
        if has:
            batches[:, 0] = len(auxiliary)
        return batches

    return Property(name, draw, extra=target)


def behaviour(kind: Behaviour, name: str) -> Property:
    """Ask whether a client poisons: sends −Δ, or ascends the loss (PROLIN, Sections 4 and 5.1.2)."""

    def draw(
        has: bool, count: int, size: int, rows: NDArray[np.int64], generator: np.random.Generator
    ) -> NDArray[np.int64]:
        return draw_records(count, size, rows, generator)

    return Property(name, draw, behaviour=kind)


def containing(
    auxiliary: Targets, flags: NDArray[np.bool_], share: float, name: str, *, again: bool = False
) -> Property:
    """Ask whether examples of a kind are among a client's training data.

    Parameters
    ----------
    auxiliary
        The auxiliary records.
    flags
        (n,): which of them are of that kind.
    share
        How much of a client's data is of that kind if it has the property, at least one example; without the property
        there is none.
    again
        Whether a batch may hold an auxiliary record several times, where there are fewer than it takes.
    """
    kind, rest = np.flatnonzero(flags), np.flatnonzero(~flags)
    draw_from = _draw_again if again else draw_records

    def draw(
        has: bool, count: int, size: int, rows: NDArray[np.int64], generator: np.random.Generator
    ) -> NDArray[np.int64]:
        if not has:
            return draw_from(count, size, np.intersect1d(rows, rest), generator)
        some = max(1, round(share * size))
        others = draw_from(count, size - some, np.intersect1d(rows, rest), generator)
        of_kind = draw_from(count, some, np.intersect1d(rows, kind), generator)
        return np.concatenate([of_kind, others], axis=1)

    return Property(name, draw)


def _memberships(auxiliary: Targets | None, targets: Targets | None) -> list[Property]:
    if auxiliary is None or targets is None:
        raise NeedsError("property membership needs auxiliary and target records")
    properties = []
    for row in range(len(targets)):
        properties.append(membership(auxiliary, targets.take(slice(row, row + 1)), f"target {row}"))
    return properties


def _holding(auxiliary: Targets, label: int, share: float) -> list[Property]:
    if not (auxiliary.y == label).any():
        raise NeedsError(f"there is no auxiliary record of class {label}, so the attack cannot look for it")
    return [containing(auxiliary, auxiliary.y == label, share, f"examples of class {label}", again=True)]


Questions = Callable[[Targets | None, Targets | None], Sequence[Property]]

PROPERTIES: Mapping[str, Questions] = {
    "membership": _memberships,
    "inversion": lambda auxiliary, targets: [behaviour("invert", "inversion")],
    "ascent": lambda auxiliary, targets: [behaviour("ascend", "ascent")],
}
"""Built-in properties by name."""


def questions(spec: str, auxiliary: Targets, targets: Targets | None) -> list[Property]:
    """Build the questions that ``spec`` names.

    Raises
    ------
    ModelError
        If it is neither built in nor an import path.
    NeedsError
        If the examples that it needs are missing, or the user's function does not return properties.
    """
    holding = class_asked(spec)
    if holding is not None:
        return _holding(auxiliary, *holding)
    function = PROPERTIES[spec] if spec in PROPERTIES else import_callable(spec, what="property", known=PROPERTIES)
    properties = list(function(auxiliary, targets))
    if not properties or not all(isinstance(question, Property) for question in properties):
        raise NeedsError(
            f"property {spec!r}: expected a list of at least one fedattack.threats.property.properties.Property"
        )
    return properties
