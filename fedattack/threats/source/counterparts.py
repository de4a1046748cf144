"""What targets are like that nobody learned: what labels, and what a client's data have in common, give by themselves.

The targets are drawn evenly over clients, and matched nulls evenly over examples. So targets are weighted by what their
owners hold.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedattack.audit.measures import Rate
from fedattack.audit.naming import Alike
from fedattack.threats.source.case import Floats, Rows, SourceCase

Compared = tuple[Rate, Rate, list[tuple[Alike, Floats]]]
"""The weighted success on targets, that on their counterparts; of each run what may be exchanged, and its holders'
weights."""


def compare_with_labels(cases: Sequence[SourceCase]) -> Compared:
    """Compare with examples that nobody holds: each belongs to a client drawn in proportion to its label's holders."""
    found, null, runs = [], [], []
    for case in cases:
        blame = case.credit[case.null]
        likely = np.where(np.isnan(blame), 0.0, case.label_shares)
        total = likely.sum(axis=1)
        held = total > 0
        traced = np.nansum(blame * likely, axis=1)[held] / total[held]
        null.append((float(traced.sum()), int(held.sum())))
        found.append(_weigh(case.right, _weights_of(case, case.owner[case.counted])))
        runs.append((case.alike, _weights_of_holders(case, case.alike)))
    return Rate(*zip(*found, strict=True)), Rate(*zip(*null, strict=True)), runs


def compare_with_held_out(cases: Sequence[SourceCase]) -> Compared | None:
    """Compare with held-out examples of the same clients and labels: like the targets, but nobody learned them."""
    found, null, runs = [], [], []
    for case in cases:
        alike = _put_beside_held_out(case)
        slots, others = alike.slots, np.flatnonzero(alike.owner < 0)
        weights = _weights_of(case, alike.owner[slots])
        successes, size = _weigh(alike.observed()[0], weights)
        if not size:  # there are none, or the truth knows of no client how many examples it holds
            continue
        found.append((successes, size))
        runs.append((alike, _weights_of_holders(case, alike)))
        # A held-out example stands for its part of the targets in its cell, of which all are one client's.
        client_of = np.zeros(alike.cells.max() + 1, dtype=np.int64)
        client_of[alike.cells[slots]] = alike.owner[slots]
        weight_of = np.bincount(alike.cells[slots], weights=weights) / np.bincount(alike.cells[others])
        cells = alike.cells[others]
        null.append(_weigh(alike.credit[others, client_of[cells]], weight_of[cells]))
    if not runs:
        return None
    return Rate(*zip(*found, strict=True)), Rate(*zip(*null, strict=True)), runs


def explain_success(cases: Sequence[SourceCase]) -> dict[str, Any]:
    """Take the success apart: each part is what one null has more than the one before it; empty where that is unknown.

    The nulls of a target are guessing, examples of its label that nobody holds, and held-out ones of its client.
    """
    with_origins = any((case.origin >= 0).any() for case in cases)
    names = ["guessing", "labels", "site or examples"]
    if with_origins:
        names = ["guessing", "labels", "site", "examples"]
    rows = []
    for case in cases:
        columns = [1 / (~np.isnan(case.credit[case.counted])).sum(axis=1), _trace_by_label(case)]
        if with_origins:
            columns.append(_trace_by_site(case))
        rows.append(np.stack([*columns, case.right], axis=1))
    nulls = np.concatenate(rows)
    nulls = nulls[~np.isnan(nulls).any(axis=1)]
    if not len(nulls):
        return {}
    parts = np.diff(nulls.mean(axis=0), prepend=0.0).tolist()
    return {
        "value": float(nulls[:, -1].mean()),
        "n": len(nulls),
        "parts": [{"part": name, "value": part} for name, part in zip(names, parts, strict=True)],
    }


def _trace_by_label(case: SourceCase) -> Floats:
    """(n,): how often examples of a target's label that nobody holds are traced to its owner; NaN without any."""
    owner, cells = case.owner[case.counted], case.cells[case.counted]
    traced = np.full(len(owner), np.nan)
    for cell in np.unique(cells):
        alike = case.credit[case.null & (case.cells == cell)]
        inside = cells == cell
        if len(alike):
            traced[inside] = np.nan_to_num(alike).mean(axis=0)[owner[inside]]
    return traced


def _trace_by_site(case: SourceCase) -> Floats:
    """(n,): how often held-out examples of a target's label and owner are traced to that owner; NaN without any."""
    held_out = np.flatnonzero(case.origin >= 0)
    traced = np.nan_to_num(case.credit[held_out, case.origin[held_out]])
    clients, size = len(case.clients), len(case.clients) * (int(case.cells.max()) + 1)
    site_of = case.cells[held_out] * clients + case.origin[held_out]
    counts = np.bincount(site_of, minlength=size)
    rates = np.where(counts, np.bincount(site_of, traced, size) / np.maximum(counts, 1), np.nan)
    return np.asarray(rates[case.cells[case.counted] * clients + case.owner[case.counted]])


def _put_beside_held_out(case: SourceCase) -> Alike:
    """Take the targets, and the held-out examples of their clients, of all clients and labels that have both."""
    client = np.where(case.owner >= 0, case.owner, case.origin)
    rows = np.flatnonzero(client >= 0)
    rows = rows[~np.isnan(case.credit[rows, client[rows]])]
    _, cells = np.unique(case.cells[rows] * len(case.clients) + client[rows], return_inverse=True)
    members = case.owner[rows] >= 0
    both = (np.bincount(cells, members) > 0) & (np.bincount(cells, ~members) > 0)
    kept = both[cells]
    _, cells = np.unique(cells[kept], return_inverse=True)
    rows = rows[kept]
    return Alike(np.nan_to_num(case.credit[rows]), case.owner[rows], cells)


def _weights_of(case: SourceCase, owner: Rows) -> Floats:
    """Weigh targets (n,) so that each client weighs as much as it holds examples."""
    targets = np.bincount(owner, minlength=len(case.sizes))
    return np.asarray((case.sizes / np.maximum(targets, 1))[owner])


def _weights_of_holders(case: SourceCase, alike: Alike) -> Floats:
    """(holders,): the weight of a target of each, as :func:`_weights_of` gives it."""
    return np.asarray(case.sizes[alike.holders] / alike.sizes)


def _weigh(credit: Floats, weights: Floats) -> tuple[float, int]:
    """Sum weighted credits as of fewer targets: as many as they are worth (Kish's effective size)."""
    total = float(weights.sum())
    if total <= 0:
        return 0.0, 0
    # A rounding error must not take a target away.
    effective = int(total**2 / float((weights**2).sum()) + 1e-9)
    return effective * float((credit * weights).sum() / total), effective
