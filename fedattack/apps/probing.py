"""Ask a client's own step for the gradients of a few single examples, and so what each array is to the examples.

This runs in the process of :mod:`fedattack.apps.answering`, beside a copy of the app.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.apps.player import Player
from fedattack.attacks.roles import OTHER, ArrayRole, Probe, find_roles
from fedattack.attacks.tables import TokenTable
from fedattack.base.errors import DataError
from fedattack.base.structured import finite
from fedattack.record.format import Arrays

EXAMPLES = 12
"""Examples of which gradients are asked for."""

# Numbers of all gradients that are kept; of larger arrays only which rows move.
_MOST_NUMBERS = 2**26

# Seconds after which no further client is asked which rows its examples touch.
_SECONDS = 4.0
_SEED = 0


def ask_roles(player: Player, weights: Arrays, x: NDArray[Any], y: NDArray[Any]) -> tuple[ArrayRole, ...]:
    """Say what each array of the weights is to some of the examples (n, …) with their labels (n,).

    Gradients are asked for at the weights, and once more where the numbers of each array are in another order.

    Raises
    ------
    DataError
        If the step gives no gradients, or none that are finite.
    """
    rows = _choose_rows(x, y)
    x, y = x[rows, ...], y[rows]
    probes = []
    models = [weights, _shuffle(weights)]
    # What travels as whole numbers is not put into another order.
    if all(np.array_equal(models[1][name], array) for name, array in weights.items()):
        models = [weights]
    for model in models:
        player.take(model)
        probe = _probe(player, model, x, y)
        # Weights in another order may lead anywhere.
        if all(np.isfinite(gradient).all() for gradient in probe.gradients.values()):
            probes.append(probe)
    player.take(weights)
    if not probes or not probes[0].gradients:
        raise DataError("the app's step gives no gradients that are finite")
    return find_roles(probes, x, y)


def ask_touched(
    player: Player, tables: Sequence[TokenTable], clients: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]
) -> dict[str, NDArray[Any]] | None:
    """Return which rows of tables have a gradient from each client's examples, under the weights that were taken last.

    Clients are asked one after the other, and after some seconds no further one.

    Parameters
    ----------
    clients
        By name, all examples (n, …) of a client, with their labels (n,).

    Returns
    -------
    dict or None
        As :func:`fedattack.attacks.lookups.used_rows` gives it; ``None`` without a table or a client, and where an
        output layer shares a table, which gives each row a gradient.
    """
    if not tables or any(table.is_tied for table in tables):
        return None
    rows: list[NDArray[np.int64]] = []
    indices: list[NDArray[np.int64]] = []
    owners: list[str] = []
    whole: list[str] = []
    until = time.monotonic() + _SECONDS
    for client, (x, y) in clients.items():
        if whole and time.monotonic() > until:
            break
        touched = [np.zeros(table.rows.max() + 1, dtype=np.bool_) for table in tables]
        for gradients in player.batch_gradients(x, y, [table.name for table in tables]):
            for of_table, table in zip(touched, tables, strict=True):
                if table.name in gradients:
                    moved = table.orient(gradients[table.name]) != 0
                    of_table |= moved.any(axis=1)[: len(of_table)]
        whole.append(client)
        for index, (of_table, table) in enumerate(zip(touched, tables, strict=True)):
            own = table.rows[of_table[table.rows]]
            rows.append(own)
            indices.append(np.full(len(own), index))
            owners += [client] * len(own)
    if not whole:
        return None
    return {
        "names": np.array([table.name for table in tables], dtype=np.str_),
        "rows": np.concatenate(rows).astype(np.int64),
        "tables": np.concatenate(indices).astype(np.int64),
        "owners": np.array(owners, dtype=np.str_),
        "whole": np.array(whole, dtype=np.str_),
    }


def _choose_rows(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.int64]:
    """Choose some examples, of as many labels as there are."""
    usable = np.flatnonzero(finite(x) & np.isfinite(y))
    order = np.random.default_rng(_SEED).permutation(usable)
    # One of each label first: what tells a label shows in examples of several.
    _, first = np.unique(y[order], return_index=True)
    chosen = [*order[np.sort(first)][:EXAMPLES]]
    if len(chosen) < EXAMPLES:
        chosen += [*np.setdiff1d(order, chosen, assume_unique=True)[: EXAMPLES - len(chosen)]]
    return np.array(chosen, dtype=np.int64)


def _shuffle(weights: Arrays) -> dict[str, NDArray[Any]]:
    """Put the numbers of each array into another order: their sizes stay, and what they mean is gone."""
    rng = np.random.default_rng(_SEED)
    shuffled: dict[str, NDArray[Any]] = {}
    for name, array in weights.items():
        shuffled[name] = np.asarray(array)
        if shuffled[name].dtype.kind == "f":
            shuffled[name] = rng.permutation(shuffled[name].reshape(-1)).reshape(np.shape(array))
    return shuffled


def _probe(player: Player, weights: Arrays, x: NDArray[Any], y: NDArray[Any]) -> Probe:
    """Ask for the gradients of examples at these weights, which the player has taken."""
    kept: dict[str, list[NDArray[Any]]] = {}
    touched: dict[str, list[NDArray[np.bool_]]] = {}
    for gradients in player.gradients(x, y):
        left = _MOST_NUMBERS // len(y)
        for name, gradient in sorted(gradients.items(), key=lambda item: item[1].size):
            if gradient.ndim > 2:
                axes = tuple(range(2, gradient.ndim))
                touched.setdefault(name, []).append((gradient != 0).any(axis=axes))
            left -= math.prod(gradient.shape[1:])
            if left >= 0:
                kept.setdefault(name, []).append(gradient)
    missing = {name: "the app's step gives no gradient of it" for name in weights if name not in kept | touched}
    # In the order in which the weights are sent: a bias follows its weights.
    return Probe(
        {name: np.concatenate(kept[name]) for name in weights if name in kept},
        {name: np.concatenate(touched[name]) for name in weights if name in touched},
        missing,
        {name: np.asarray(array) for name, array in weights.items()},
    )


def describe_roles(roles: Sequence[ArrayRole]) -> str:
    """Say what arrays are, with what shows it; empty where nothing is known of any."""
    said = []
    for role in roles:
        if role.kind != OTHER and not role.is_bias:
            said.append(f"{role.name} is a {role.kind} ({role.evidence})")
    return "; ".join(said)
