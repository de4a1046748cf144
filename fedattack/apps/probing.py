"""Ask a client's own step for the gradients of a few single examples, and so what each array is to the examples.

This runs in the process of :mod:`fedattack.apps.answering`, beside a copy of the app.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.apps.counting import count_seconds
from fedattack.apps.player import Player
from fedattack.attacks.answers import AskedOutputs
from fedattack.attacks.knowledge import Targets
from fedattack.attacks.last_layer import (
    LastLayer,
    are_labels,
    choose_examples,
    draw_inputs,
    find_outputs,
    interpolate,
    list_shares,
)
from fedattack.attacks.replies import spread_replies
from fedattack.attacks.roles import FEWEST_EXAMPLES, OTHER, ArrayRole, Probe, find_roles
from fedattack.attacks.tables import TokenTable
from fedattack.base.errors import DataError
from fedattack.base.structured import fields, finite
from fedattack.learning import LocalSGD
from fedattack.record import Record
from fedattack.record.format import Arrays

EXAMPLES = 12
"""Examples of which gradients are asked for."""

MOST_REPLIES = 10
"""Replies of each client of which models are asked about, as many as labels are counted in by default."""

# Numbers of all gradients that are kept; of larger arrays only which rows move.
_MOST_NUMBERS = 2**26

# Seconds, counted and not measured, that each of these may take: to find roles, to ask which rows clients' examples
# touch, and to ask models what their last layer computes.
_SECONDS = 4.0
_SEED = 0


def ask_roles(
    player: Player, sent: Sequence[Arrays], x: NDArray[Any], y: NDArray[Any], share: float = 1.0
) -> tuple[ArrayRole, ...]:
    """Say what each array of models of one form is to some of the examples (n, …) with their labels (n,).

    Gradients are asked for at one or more models that were ``sent`` to clients, and once more at the first one with the
    numbers of each array in another order. They take a ``share`` of the counted time.

    Raises
    ------
    DataError
        If the step gives no gradients, or none that are finite.
    """
    rows = _choose_rows(x, y)
    weights = sent[0]
    models = [weights]
    # What travels as whole numbers is not put into another order, and clients may be sent one model in all rounds.
    for other in (*sent[1:], _shuffle(weights)):
        if not all(np.array_equal(other[name], array) for name, array in weights.items()):
            models.append(other)
    player.take(weights)
    seconds = count_seconds(lambda: _probe(player, weights, x[rows[:1], ...], y[rows[:1]]))
    # A few gradients are computed twice, to see whether they may be computed together.
    most = int(share * _SECONDS / (2 * len(models) * seconds))
    rows = rows[: max(most, FEWEST_EXAMPLES)]
    x, y = x[rows, ...], y[rows]
    probes = []
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
    player: Player,
    tables: Sequence[TokenTable],
    clients: Mapping[str, tuple[NDArray[Any], NDArray[Any]]],
    share: float = 1.0,
) -> dict[str, NDArray[Any]] | None:
    """Return which rows of tables have a gradient from each client's examples, under the weights that were taken last.

    Clients are asked one after the other, as many as the counted time allows, and one at least.

    Parameters
    ----------
    clients
        By name, all examples (n, …) of a client, with their labels (n,).
    share
        Of the counted time.

    Returns
    -------
    dict or None
        As :func:`fedattack.attacks.lookups.used_rows` gives it; ``None`` without a table or a client, and where an
        output layer shares a table, which gives each row a gradient.
    """
    if not tables or not clients or any(table.is_tied for table in tables):
        return None
    rows: list[NDArray[np.int64]] = []
    indices: list[NDArray[np.int64]] = []
    owners: list[str] = []
    whole: list[str] = []
    names = [table.name for table in tables]
    first = next(iter(clients.values()))
    of_batch = count_seconds(lambda: next(player.batch_gradients(*first, names)))
    left = share * _SECONDS
    for client, (x, y) in clients.items():
        left -= of_batch * math.ceil(len(y) / player.tape.step.count)
        if whole and left < 0:
            break
        touched = [np.zeros(table.rows.max() + 1, dtype=np.bool_) for table in tables]
        for gradients in player.batch_gradients(x, y, names):
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
    return {
        "names": np.array(names, dtype=np.str_),
        "rows": np.concatenate(rows).astype(np.int64),
        "tables": np.concatenate(indices).astype(np.int64),
        "owners": np.array(owners, dtype=np.str_),
        "whole": np.array(whole, dtype=np.str_),
    }


def ask_outputs(
    player: Player,
    last: LastLayer,
    record: Record,
    own: Targets | None,
    training: LocalSGD | None,
    shape: Sequence[int],
    share: float = 1.0,
) -> AskedOutputs | None:
    """Return what enters and leaves the last layer of examples, at models from what clients were sent to their replies.

    Models that were sent come first. As many are asked about as the counted time allows, and one at least.

    Parameters
    ----------
    own
        Examples of the attacker's own; where it has none, inputs of a ``shape`` are drawn.
    training
        How clients train; ``None`` where nobody knows.
    share
        Of the counted time.

    Returns
    -------
    AskedOutputs or None
        ``None`` where no inputs can be drawn, or no model gives gradients of the layer that are finite.
    """
    x, y, rows = _choose_inputs(last, own, shape)
    models = _list_models(record, last, training)
    if not len(y) or not models:
        return None
    names = [name for name in (last.weight, last.bias) if name is not None]
    softmax: list[NDArray[np.float32]] = []
    inputs: list[NDArray[np.float32]] = []
    # As many examples as are kept of all models.
    most = max(1, _MOST_NUMBERS // 4 // (len(models) * (last.classes + last.inputs)))
    if most < len(y):
        x, y, rows = x[:most, ...], y[:most], rows[:most]

    def ask(weights: Arrays) -> None:
        player.take(weights)
        losses = player.losses_of(x, y)
        found = []
        start = 0
        for gradients in player.gradients(x, y, names):
            part = slice(start, start + len(gradients[last.weight]))
            found.append(find_outputs(last, gradients, y[part], losses[part]))
            start = part.stop
        softmax.append(np.concatenate([part.softmax for part in found]).astype(np.float32))
        inputs.append(np.concatenate([part.inputs for part in found]).astype(np.float32))

    # Models of one form take equally long.
    of_model = count_seconds(lambda: ask(models[0][1]()))
    models = models[: max(1, int(share * _SECONDS / of_model))]
    for _, weights in models[1:]:
        ask(weights())
    is_finite = [
        np.isfinite(one).all() and np.isfinite(other).all() for one, other in zip(softmax, inputs, strict=True)
    ]
    chosen = np.flatnonzero(is_finite)
    if not len(chosen):
        return None
    seqs, nodes, shares = zip(*(models[index][0] for index in chosen), strict=True)
    return AskedOutputs(
        seqs=np.array(seqs, dtype=np.int64),
        nodes=np.array(nodes, dtype=np.str_),
        shares=np.array(shares, dtype=np.float64),
        rows=rows,
        softmax=np.stack([softmax[index] for index in chosen]),
        inputs=np.stack([inputs[index] for index in chosen]),
    )


def join_touched(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Put together which rows clients' examples touch, of clients that train models of several forms.

    A table that several forms have by one name is one.
    """
    names = list(dict.fromkeys(name for part in parts for name in part["names"].tolist()))
    tables = []
    for part in parts:
        indices = np.array([names.index(name) for name in part["names"].tolist()], dtype=np.int64)
        tables.append(indices[part["tables"]])
    joined = {key: np.concatenate([part[key] for part in parts]) for key in ("rows", "owners", "whole")}
    return {"names": np.array(names, dtype=np.str_), "tables": np.concatenate(tables), **joined}


def join_outputs(parts: Sequence[AskedOutputs]) -> AskedOutputs:
    """Put together what models of several forms compute in their last layers, of one or more outputs.

    Forms of other outputs than the first one are left out.
    """
    alike = [part for part in parts if part.softmax.shape[2] == parts[0].softmax.shape[2]]
    # The same examples for each form, as many as were asked for the form with the fewest.
    count = min(len(part.rows) for part in alike)
    widest = max(part.inputs.shape[2] for part in alike)
    inputs = [np.pad(part.inputs[:, :count], ((0, 0), (0, 0), (0, widest - part.inputs.shape[2]))) for part in alike]
    return AskedOutputs(
        seqs=np.concatenate([part.seqs for part in alike]),
        nodes=np.concatenate([part.nodes for part in alike]),
        shares=np.concatenate([part.shares for part in alike]),
        rows=alike[0].rows[:count],
        softmax=np.concatenate([part.softmax[:, :count] for part in alike]),
        inputs=np.concatenate(inputs),
    )


def _choose_inputs(
    last: LastLayer, own: Targets | None, shape: Sequence[int]
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Choose examples with their labels, and which of the attacker's own they are; −1 for drawn inputs."""
    if own is not None and are_labels(own.y, last.classes):
        rows = choose_examples(len(own), _SEED)
        return own.x[rows, ...], own.y[rows], rows
    if own is not None and fields(own.x):
        return own.x[:0], own.y[:0], np.zeros(0, np.int64)
    x = draw_inputs(tuple(shape), _SEED)
    # Whatever the label is, it is taken out of the gradient again.
    return x, np.zeros(len(x), np.int64), np.full(len(x), -1)


def _list_models(
    record: Record, last: LastLayer, training: LocalSGD | None
) -> list[tuple[tuple[int, str, float], Callable[[], Arrays]]]:
    """List the models that are asked about, those that clients were sent first; and how each is made."""
    chosen = spread_replies(record, MOST_REPLIES)
    found: dict[tuple[int, str, float], Callable[[], Arrays]] = {}
    for round_ in record:
        for reply in round_.observations:
            if reply.node not in chosen.get(round_.seq, set()) or reply.received is None or reply.arrays is None:
                continue
            start, end = dict(reply.received), dict(reply.arrays)
            if not (last.fits(start) and last.fits(end)) or not reply.count:
                continue
            # The player plays models of one form.
            if start[last.weight].size != last.classes * last.inputs:
                continue
            known = training
            if round_.protocol == "fedsgd":
                known = None
            for share in list_shares(known, int(reply.count)):
                node = reply.node
                if not share and not reply.singled_out:
                    node = ""
                found.setdefault((round_.seq, node, share), partial(_lie_between, start, end, share))
    return sorted(found.items(), key=lambda item: item[0][2] > 0)


def _lie_between(start: Arrays, end: Arrays, share: float) -> Arrays:
    return interpolate(start, end, share) if share else start


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
    missing = {name: _say_missing(name, weights, kept | touched) for name in weights if name not in kept | touched}
    # In the order in which the weights are sent: a bias follows its weights.
    return Probe(
        {name: np.concatenate(kept[name]) for name in weights if name in kept},
        {name: np.concatenate(touched[name]) for name in weights if name in touched},
        missing,
        {name: np.asarray(array) for name, array in weights.items()},
    )


def _say_missing(name: str, weights: Arrays, known: Collection[str]) -> str:
    """Say why an array has no gradients."""
    for other in known:
        # An array that stands in a model twice, such as tied weights, has one gradient.
        if np.array_equal(weights[name], weights[other]) and np.any(weights[name]):
            return f"it is {other} under another name"
    return "the app's step gives no gradient of it"


def describe_roles(roles: Sequence[ArrayRole]) -> str:
    """Say what arrays are, with what shows it; empty where nothing is known of any."""
    said = []
    for role in roles:
        if role.kind != OTHER and not role.is_bias:
            said.append(f"{role.name} is a {role.kind} ({role.evidence})")
    return "; ".join(said)
