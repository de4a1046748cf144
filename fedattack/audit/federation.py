"""Are several runs of one federation? Then who holds what was dealt once, and not once a run.

A test exchanges what each run holds by itself. In runs in which the same clients hold the same, an accident of who
holds what happens in all of them together, and the exchange would take it for news each time.
"""

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from fedattack.audit.evidence import Evidence
from fedattack.audit.reach import Prepared
from fedattack.audit.truth import NOBODY, Truth

_MOST = 0.75
"""Runs are of one federation if they have more than this part of what the smaller one holds in common."""


def dealt_anew(evidence: Sequence[Evidence | Prepared]) -> list[int]:
    """Return the places of the runs whose clients hold something else than in all runs before them.

    Runs that have something in common, but no more than three quarters, count as dealt anew.

    Parameters
    ----------
    evidence
        One per seed. A run without the truth counts as dealt anew.
    """
    if len(evidence) == 1:  # nothing to compare, and hashing all targets takes time
        return [0]
    kept: list[int] = []
    seen: list[list[set[Hashable]]] = []
    for place, one in enumerate(evidence):
        holdings = [] if one.truth is None else [set(kind) for kind in _holdings(one, one.truth)]
        if not any(_alike(holdings, before) for before in seen):
            kept.append(place)
            seen.append(holdings)
    return kept


def _alike(holdings: Sequence[set[Hashable]], before: Sequence[set[Hashable]]) -> bool:
    for ours, theirs in zip(holdings, before, strict=False):
        smaller = min(len(ours), len(theirs))
        if smaller and len(ours & theirs) > _MOST * smaller:
            return True
    return False


def _holdings(one: Evidence | Prepared, truth: Truth) -> Iterator[Iterator[Hashable]]:
    """Yield what clients hold, kind by kind: of a kind as many facts as there are."""
    targets = one.knowledge.targets
    examples = range(len(truth.owners)) if targets is None else (hash(row.tobytes()) for row in targets.x)
    yield ((example, owner) for example, owner in zip(examples, truth.owners.tolist(), strict=False) if owner != NOBODY)
    positives = np.zeros((0, 0), dtype=np.bool_) if truth.positives is None else truth.positives
    yield ((question, truth.clients[column]) for question, column in np.argwhere(positives).tolist())
    yield (
        (name, client, value)
        for name, held in truth.private.items()
        for client, value in zip(truth.clients, held.values, strict=True)
    )
    attributes = truth.attributes
    held = () if attributes is None else zip(attributes.owners, attributes.values.tolist(), strict=True)
    yield ((place, *fact) for place, fact in enumerate(held))
    records = truth.records
    shown = () if records is None else zip(records.x, records.owners, strict=True)
    yield ((hash(x.tobytes()), owner) for x, owner in shown)
    yield (
        (threat, name, hash(values.tobytes()))
        for threat, arrays in truth.answers.items()
        for name, values in arrays.items()
    )
