"""One hostile reply: an attack names it in a note, or it changes nothing about the others."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, get_type_hints

import numpy as np
import pytest

from fedattack.attacks import read_knowledge
from fedattack.base.stored import Axes
from fedattack.record import Record
from fedattack.record.project import rewrite_record
from tests.attacks.test_contract import case  # noqa: F401 - a fixture

Arrays = Mapping[str, np.ndarray]


def fill(value: float) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {name: np.full_like(array, value) for name, array in arrays.items()}


def fill_bytes(arrays: Arrays) -> Arrays:
    return {name: np.full(array.shape, 255, dtype=np.uint8) for name, array in arrays.items()}


def largest(arrays: Arrays) -> Arrays:
    found = {}
    for name, array in arrays.items():
        limits = np.finfo(array.dtype) if array.dtype.kind == "f" else np.iinfo(array.dtype)
        found[name] = np.full_like(array, limits.max)
    return found


ARRAYS: dict[str, Callable[[Arrays], Arrays]] = {
    "a column more": lambda arrays: {
        name: np.concatenate([array, array[..., :1]], axis=-1) if array.ndim else array
        for name, array in arrays.items()
    },
    "other names": lambda arrays: {f"other {name}": array for name, array in arrays.items()},
    "an array less": lambda arrays: dict(list(arrays.items())[1:]),
    "an array more": lambda arrays: {**arrays, "further": np.zeros(3, np.float32)},
    "no array": lambda arrays: {},
    "no number": lambda arrays: {name: np.zeros(0, np.float32) for name in arrays},
    "one number": lambda arrays: {name: np.float32(1).reshape(()) for name in arrays},
    "not a number": lambda arrays: fill(math.nan)({name: array.astype(np.float32) for name, array in arrays.items()}),
    "infinite": lambda arrays: fill(math.inf)({name: array.astype(np.float32) for name, array in arrays.items()}),
    "largest": largest,
    "double precision": lambda arrays: {name: array.astype(np.float64) * 1e300 for name, array in arrays.items()},
    "whole numbers": lambda arrays: {name: array.astype(np.int64) for name, array in arrays.items()},
    "bytes": fill_bytes,
    "yes or no": lambda arrays: {name: array != 0 for name, array in arrays.items()},
    "zeros": lambda arrays: fill(0)(arrays),
}

COUNTS: dict[str, Any] = {
    "10^15 examples": 10**15,
    "10^7 examples": 10**7,
    "half an example": 0.5,
    "no example": 0,
    "fewer than none": -5,
    "count is no number": math.nan,
    "no count": None,
}


# Of these nothing can be used by any attack that reads arrays.
UNUSABLE = {"a column more", "no array", "no number", "one number", "not a number", "infinite"}


def change_one(record: Record, out, node: str, change) -> Record:
    """Copy a record in which all replies of one node are other ones."""

    def change_round(round_, exchange):
        replies = [
            change(reply) if reply.node == node and reply.arrays is not None else reply for reply in exchange.replies
        ]
        return replace(exchange, replies=replies)

    return rewrite_record(record, out, change_round)


def kinds():
    for name, change in ARRAYS.items():
        yield name, lambda reply, change=change: replace(reply, arrays=change(reply.arrays))
    for name, count in COUNTS.items():
        yield name, lambda reply, count=count: replace(reply, num_examples=count)


def axes_by_name(attack) -> dict[str, tuple[str, ...]]:
    """Return the names of axes by the name of an array, or by what names begin with and an asterisk."""
    if not hasattr(attack, "found"):
        return {name: form.axes for name, form in attack.form.arrays.items()}
    axes = {}
    for name, hint in get_type_hints(attack.found, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            if isinstance(mark, Axes):
                axes[f"{mark.prefix}*" if mark.prefix else mark.called or name] = mark.names
    return axes


def about_others(attack, scores, names: set[str]) -> dict[str, np.ndarray]:
    """Return the arrays of scores that have an axis of clients or nodes, without some of these."""
    found = {}
    for name, array in scores.arrays.items():
        for key, axes in axes_by_name(attack).items():
            matches = name == key or (key.endswith("*") and name.startswith(key[:-1]))
            for axis in {"clients", "nodes"} & {*axes}:
                if matches:
                    indices = [index for index, one in enumerate(scores.facts[axis]) if one not in names]
                    found[name] = np.take(array, indices, axis=axes.index(axis))
    # How likely each client is before anything was seen depends on how many there are.
    found.pop("log_prior", None)
    return found


def listed_clients(scores) -> set[str]:
    listed = set()
    for name in ("clients", "nodes"):
        names = scores.facts.get(name)
        if isinstance(names, list):
            listed |= {name for name in names if isinstance(name, str)}
    return listed


@pytest.mark.slow
def test_one_hostile_reply_takes_nothing_from_the_others(case, tmp_path):  # noqa: F811
    attack, folder = case
    record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
    if record.view != "individual":
        pytest.skip("sums have no single reply")
    node = record.nodes[0]
    client = known.client_of(node) or node
    alone = attack.run(record.without([node]), known, device="cpu")
    wanted = about_others(attack, alone, {node, client})
    for number, (kind, change) in enumerate(kinds()):
        changed = change_one(record, tmp_path / str(number), node, change)
        scores = attack.run(changed, known, device="cpu")
        scores.save(tmp_path / "scores.npz")
        attack.load_scores(tmp_path / "scores.npz")
        assert listed_clients(scores) >= listed_clients(alone) - {node, client}, kind
        named = any(f"client {node}" in note or f"client {client}" in note for note in scores.notes)
        got = about_others(attack, scores, {node, client})
        for name, array in wanted.items():
            where = f"{kind}: {name}"
            assert got[name].shape == array.shape or named, where
            if got[name].shape == array.shape and array.dtype.kind == "f":
                assert (np.isnan(got[name]) <= np.isnan(array)).all() or named, where
            if kind in UNUSABLE and not named:
                np.testing.assert_allclose(got[name], array, rtol=1e-3, atol=1e-6, err_msg=where)
