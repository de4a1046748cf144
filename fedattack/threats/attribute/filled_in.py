"""What every attack on attributes finds: the one column of clients' examples, filled in by several methods."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.knowledge import Knowledge
from fedattack.base.stored import Axes, Name

MOST_BELIEF = 1 + 1e-6
"""The largest probability, but for rounding."""


def refuse_numbers(knowledge: Knowledge) -> list[str]:
    """Say that a column of numbers is none of some values, for attacks that choose among these; nothing elsewhere."""
    if knowledge.partial is None or knowledge.partial.span is None:
        return []
    return ["it chooses among the values of a column, and this column is a number, which attribute-number asks for"]


@dataclass(frozen=True, eq=False)
class FilledIn:
    """The attribute of n examples, filled in by several methods.

    Attributes
    ----------
    methods
        What fills it in.
    values
        Names of the v values of the attribute.
    targets
        Fingerprint of the examples that are asked about.
    decisions
        (methods, n): indices into the values, −1 for no answer.
    beliefs
        (methods, n, v): how likely each value is; rows sum to one.
    """

    methods: tuple[Name, ...]
    values: tuple[Name, ...]
    targets: Name
    decisions: Annotated[NDArray[np.int64], Axes("methods", "records", low=-1, into="values")]
    beliefs: Annotated[NDArray[np.float64], Axes("methods", "records", "values", low=0, high=MOST_BELIEF, nan=True)]
