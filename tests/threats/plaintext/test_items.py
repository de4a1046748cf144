"""What is computed of rows block by block is, bit for bit, what all rows at once give."""

import numpy as np
import pytest
from scipy.spatial import cKDTree

from fedattack.threats.plaintext import items
from fedattack.threats.plaintext.items import Items, Known, Spread, contents_of
from tests.threats.plaintext.sending import find

CLIENTS = 4


def draw_parts(seed: int, columns: int):
    """Draw clients' tables with equal rows, a column without variation, and negative zeros."""
    draw = np.random.default_rng(seed)
    middle, width = 50 * draw.normal(size=columns), draw.uniform(0.1, 5, size=columns)
    parts = []
    for _ in range(CLIENTS):
        x = draw.normal(middle, width, size=(23, columns)).astype(np.float32).astype(np.float64)
        x[:2] = x[0]
        x[3:6, -1] = -0.0
        x[:, 1] = 7
        parts.append((x, draw.integers(3, size=len(x))))
    return parts


def says_of(parts):
    """What each client sends: rows in many forms, statistics, others' rows and noise."""
    every = np.concatenate([x for x, _ in parts])
    draw = np.random.default_rng(9)

    def says(client, x, y):
        return {
            "rows": x[:9],
            "float16": x[:5].astype(np.float16),
            "standardised": (x - x.mean(0)) / (x.std(0) + 1e-9),
            "standardised by all": (every - every.mean(0)) / (every.std(0) + 1e-9),
            "from 0 to 1": (x - x.min(0)) / (np.ptp(x, axis=0) + 1e-9),
            "each row scaled": 1 - 3 * x[:5],
            "labelled": np.column_stack([y[:6], x[:6]]),
            "part": x[:6, 2:],
            "ascending": np.sort(x[3]),
            "means": np.stack([x.mean(0), *(x[y == label].mean(0) for label in np.unique(y))]),
            "spread": np.stack([x.var(0), np.median(x, axis=0), x.max(0)]),
            "others": parts[client - 1][0][:4],
            "noise": draw.normal(size=(40, x.shape[1])),
        }

    return says


def compute_at_once(monkeypatch) -> None:
    """Put the obvious ways in the place of those that work block by block."""

    def compare_rows(rows):
        single = np.ascontiguousarray(rows, dtype=np.float32) + np.float32(0)
        return single.view(f"V{single.shape[1] * 4}").ravel()

    def spread(rows):
        x = rows.astype(np.float64)
        return Spread(x.mean(axis=0), x.std(axis=0), x.min(axis=0), np.ptp(x, axis=0))

    def find_scale(these):
        largest = np.abs(these.numbers(slice(None))).max(axis=0)
        return np.where(largest > 0, largest, 1.0)

    def plant_tree(these):
        return cKDTree(these.numbers(slice(None)) / these.scale, compact_nodes=False, balanced_tree=False)

    def list_statistics(known):
        groups = {"": [], " by class": []}
        for client in np.flatnonzero(known.whole):
            own = known.holders == client
            groups[""].append((client, own))
            groups[" by class"] += [(client, own & (known.y == label)) for label in known.classes]
        for suffix, parts in groups.items():
            for name, (compute, least) in items._STATISTICS.items():
                values, holders = [], []
                for client, rows in parts:
                    x = known.x[rows].astype(np.float64)
                    value = compute(x) if len(x) >= least else np.zeros(x.shape[1])
                    is_example = (value.astype(np.float32) == known.x).all(axis=1).any()
                    if np.ptp(value) > 0 and not is_example:
                        values.append(value)
                        holders.append(client)
                if values:
                    yield Items(name + suffix, np.stack(values), np.array(holders))

    monkeypatch.setattr(items, "contents_of", compare_rows)
    monkeypatch.setattr(Spread, "of", spread)
    monkeypatch.setattr(Items, "scale", property(find_scale))
    monkeypatch.setattr(Items, "tree", property(plant_tree))
    monkeypatch.setattr(Known, "list_statistics", list_statistics)


@pytest.mark.parametrize("columns", [3, 9, 40])
def test_blocks_find_bit_for_bit_what_all_rows_at_once_find(columns, monkeypatch):
    parts = draw_parts(columns, columns)
    monkeypatch.setattr(items, "_AT_ONCE", 100)
    monkeypatch.setattr(items, "_COLUMNS", 4)
    found = find(parts, says_of(parts))
    compute_at_once(monkeypatch)
    assert found == find(parts, says_of(parts))
    assert {how for matches in found.matches for how in matches.how} == {"", "scaled", "in part", "in any order"}
    assert found.count_read(examples=True)[1].min() > 0
    assert found.count_read(examples=False)[1].min() > 0


def test_equal_rows_alone_have_equal_contents(monkeypatch):
    monkeypatch.setattr(items, "_AT_ONCE", 12)
    rows = np.random.default_rng(0).integers(2, size=(60, 4)).astype(np.float32)
    rows[rows == 0] *= -1
    contents = contents_of(rows)
    _, expected = np.unique(np.abs(rows), axis=0, return_inverse=True)
    assert len(contents) == len(rows)
    assert np.array_equal(contents[:, None] == contents, expected.ravel()[:, None] == expected.ravel())
