"""Files for reviewers: the rows of a judge's tables, client by client and target by target."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Cell = str | int | float | bool | None
"""A cell of a listing; None where there is nothing to say, or nobody knows."""

_MOST_NAMES = 5


@dataclass(frozen=True)
class Listing:
    """The rows of a table for a file, from which a finding's value can be counted again.

    Attributes
    ----------
    name
        What a row is about, as a plain word: ``clients``, ``records``.
    about
        The table in one sentence, for a page that links it.
    header
        The columns' names.
    rows
        Rows as long as the header; they may be made one by one, and are read once.
    attack
        The attack whose results these are.
    """

    name: str
    about: str
    header: Sequence[str]
    rows: Iterable[Sequence[Cell]]
    attack: str

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.attack}-{self.name}.csv"


def several(names: Sequence[str]) -> str:
    """Write one name, or several that are alike; of many, how many they are."""
    # Alike means: the scores do not tell these apart.
    if len(names) > _MOST_NAMES:
        return f"{len(names)} alike"
    return " | ".join(names)
