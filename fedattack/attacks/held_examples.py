"""Which examples clients hold, as a judge needs them beside those that were read off."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.first_layer import find_known_first_layer
from fedattack.attacks.knowledge import Knowledge
from fedattack.base.errors import FedAttackError
from fedattack.base.structured import fields
from fedattack.record import Record

_MOST_NUMBERS = 2**24
"""Numbers of all examples that are kept; further clients are not judged."""


@dataclass(frozen=True)
class HeldByClients:
    """What clients hold, as far as it is known: of which threats take what their judges need.

    Attributes
    ----------
    knowledge, record
        Of the attacker; before a run there is no record.
    content
        What replies hold in the place of a model's arrays, as a threat's ``find_content`` says; empty for arrays.
    seen
        By client, its training examples that are known, one of each, and of which all values are finite. All are of one
        form: a client of another has none.
    whole
        Clients of which all are known.
    examples
        (n, …): all examples of one array that are known and of which all values are finite, each with each of its
        labels once; ``None`` where they are of several arrays, there are none, or nobody gathered them.
    holders
        (n,): who holds each, none for one of nobody; a client stands there once for each copy that it has.
    labels
        (n,): the label of each of ``examples``; ``None`` where nobody gathered them.
    touched
        The rows of tables that have a gradient from clients' examples in the app's own step, as
        :func:`fedattack.attacks.lookups.used_rows` gives rows; ``None`` where the app was not asked.
    rows
        By index of an example and holder, which row of this client's table it is, where the owner states that.
    """

    knowledge: Knowledge
    record: Record | None
    content: str
    seen: Mapping[str, NDArray[Any]]
    whole: Sequence[str]
    examples: NDArray[Any] | None = None
    holders: Sequence[Sequence[str]] = ()
    labels: NDArray[Any] | None = None
    touched: Mapping[str, NDArray[Any]] | None = None
    rows: Mapping[tuple[int, str], int] = field(default_factory=dict)

    def of_whole(self) -> list[tuple[str, NDArray[Any]]]:
        """List the clients of which all examples are known, and these."""
        return [(name, self.seen[name]) for name in self.whole]


def held_examples(
    knowledge: Knowledge, examples: Iterable[tuple[str, NDArray[Any]]]
) -> Mapping[str, NDArray[Any]] | None:
    """Return the training examples of each client of which all are known.

    Returns
    -------
    dict or None
        ``x`` (n, inputs) float32 and ``owners`` (n,): the numbers of each example that enter the first layer. ``None``
        where the model has no first layer that gives examples away, or no client is known.
    """
    if not knowledge.has("layers") or knowledge.structure():
        return None
    try:
        # Examples are read off a first layer alone; without one no judge asks for them.
        columns = find_known_first_layer(knowledge).columns
    except FedAttackError:
        return None
    kept: list[tuple[str, NDArray[Any]]] = []
    size = 0
    for client, x in examples:
        if fields(x) or not len(x):
            continue
        size += x.size
        if size > _MOST_NUMBERS:
            break
        if columns:
            x = x.reshape(len(x), -1)[:, list(columns)]
        kept.append((client, x))
    return join_examples(kept)


def join_examples(examples: Iterable[tuple[str, NDArray[Any]]]) -> Mapping[str, NDArray[Any]] | None:
    """Put all clients' examples into rows: ``x`` (n, inputs) float32 and ``owners`` (n,); ``None`` without any."""
    parts: list[NDArray[np.float32]] = []
    owners: list[str] = []
    for client, x in examples:
        if not len(x):
            continue
        # The judge compares number by number: an example is one row, whatever its shape.
        parts.append(np.asarray(x, dtype=np.float32).reshape(len(x), -1))
        owners += [client] * len(x)
    return {"x": np.concatenate(parts), "owners": np.array(owners, dtype=np.str_)} if owners else None
