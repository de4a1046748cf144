"""Are several runs of one federation? Then who holds what was dealt once, and not once a run.

A test exchanges what each run holds by itself. In runs in which the same clients hold the same, an accident of who
holds what happens in all of them together, and the exchange would take it for news each time.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.opened import Run
from fedattack.audit.reach import Prepared
from fedattack.audit.truth import NOBODY

_MOST = 0.75
"""Runs are of one federation if they have more than this part of what the smaller one holds in common."""


def dealt_anew(runs: Sequence[Run | Prepared]) -> list[int]:
    """Return the indices of the runs whose clients hold something else than in all runs before them.

    Runs that have something in common, but no more than three quarters, count as dealt anew, as does one without truth.
    """
    if len(runs) == 1:  # nothing to compare, and hashing all targets takes time
        return [0]
    kept: list[int] = []
    seen: list[list[set[Hashable]]] = []
    for index, run in enumerate(runs):
        holdings = _list_holdings(run)
        if not any(_alike(holdings, before) for before in seen):
            kept.append(index)
            seen.append(holdings)
    return kept


def _alike(holdings: Sequence[set[Hashable]], before: Sequence[set[Hashable]]) -> bool:
    # Kinds stand in one order for all runs; of an empty one nothing is compared.
    for ours, theirs in zip(holdings, before, strict=False):
        smaller = min(len(ours), len(theirs))
        if smaller and len(ours & theirs) > _MOST * smaller:
            return True
    return False


def _list_holdings(run: Run | Prepared) -> list[set[Hashable]]:
    """List what clients hold, kind by kind: of a kind as many facts as there are; nothing without the truth."""
    truth = run.truth
    if truth is None:
        return []
    targets = run.knowledge.targets
    examples: Iterable[Hashable] = range(len(truth.owners))
    if targets is not None:
        # Only the hash of examples is kept: two runs with the same data are one federation.
        examples = _hash_each(targets.x)
    owned = zip(examples, truth.owners.tolist(), strict=False)
    kinds: list[set[Hashable]] = [{(example, owner) for example, owner in owned if owner != NOBODY}]
    positives: set[Hashable] = set()
    if truth.positives is not None:
        for question, column in np.argwhere(truth.positives).tolist():
            positives.add((question, truth.clients[column]))
    private: set[Hashable] = set()
    # Attributes of clients are few; they are told apart by attribute, client and value.
    for name, held in truth.private.items():
        for client, value in zip(truth.clients, held.values, strict=True):
            private.add((name, client, value))
    attributes: set[Hashable] = set()
    if truth.attributes is not None:
        owners, values = truth.attributes.owners, truth.attributes.values.tolist()
        attributes.update(enumerate(zip(owners, values, strict=True)))
    records: set[Hashable] = set()
    if truth.records is not None:
        records.update(zip(_hash_each(truth.records.x), truth.records.owners, strict=True))
    answers: set[Hashable] = set()
    for threat, arrays in truth.answers.items():
        # Answers have any form; a run with the same ones as another has the same array.
        for name, array in arrays.items():
            answers.add((threat, name, hash(array.tobytes())))
    return [*kinds, positives, private, attributes, records, answers]


def _hash_each(examples: NDArray[Any]) -> list[int]:
    return [hash(example.tobytes()) for example in examples]
