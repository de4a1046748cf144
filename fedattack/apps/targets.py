"""Choose which examples are asked about, which measure what models are worth, and which the attacker has."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from fedattack.apps.holding import Holding

FEW = 8
"""Training examples of a client up to which it is attempted to reconstruct them, whoever else has few."""

SOME = 256
"""Training examples of the smallest client up to which it is attempted to reconstruct them, where nobody has few."""

_MOST_SHARED = 100
_MOST_EVALUATION = 2000
_MOST_AUXILIARY = 2000
_LEAST_AUXILIARY = 10

# Streams of the seed's random numbers.
_CHOOSING = 1


@dataclass(frozen=True)
class ExampleChoice:
    """Examples by their hashes.

    Attributes
    ----------
    targets
        What is asked about, in an order that says nothing of owners.
    evaluation
        What nobody trained on and is not asked about.
    auxiliary
        The same, other examples: those that the attacker has.
    """

    targets: Sequence[bytes]
    evaluation: Sequence[bytes]
    auxiliary: Sequence[bytes] = ()


def choose_targets(holding: Holding, *, most: int, seed: int, of_clients: bool = False) -> ExampleChoice:
    """Choose targets: as many of each client, as far as there are; and as many of nobody as of all clients.

    Where there are none of nobody, all are of clients: then half of them stand for what a client did not train on.

    At most ``most`` are asked about; ``seed`` draws which, and their order. With ``of_clients`` the attacker's examples
    come from the evaluation of one client each. Examples that are not complete are asked about, and are nothing else.
    """
    rng = np.random.default_rng((seed, _CHOOSING))
    alone, shared = _split_held(holding)
    free: dict[str, list[bytes]] = {}
    # Sorted, as sets and dicts of hashes would draw otherwise in each process.
    for key in sorted(holding.origins):
        free.setdefault(holding.origins[key], []).append(key)
    most_held = most
    if holding.origins:
        # Half for clients' examples, half for nobody's.
        most_held = most - most // 2
    of_one = _draw([*alone.values()], most_held, rng)
    of_several = _draw([shared], min(_MOST_SHARED, most // 10), rng)
    # Half of nobody's examples at most are asked about: the rest evaluates and trains shadows.
    wanted = min(len(of_one) + len(of_several), most // 2, len(holding.origins) // 2)
    of_nobody = _draw([*free.values()], wanted, rng)
    asked = [*of_one, *of_several, *of_nobody]
    # Shuffled: the order of targets must not tell who holds them.
    targets = [asked[index] for index in rng.permutation(len(asked))]
    # Models are measured by, and shadows trained on, what anything can be computed with.
    rest = _leave_out(chain.from_iterable(free.values()), {*of_nobody, *holding.incomplete})
    fits = rest
    if of_clients:
        fits = [key for key in rest if holding.origins[key] in holding.clients]
    # Half of what is left, so that evaluation has as much.
    auxiliary = _draw([fits], min(_MOST_AUXILIARY, len(rest) // 2), rng)
    # Too few to train anything on: they evaluate better.
    if len(auxiliary) < _LEAST_AUXILIARY:
        auxiliary = []
    evaluation = _draw([_leave_out(rest, auxiliary)], _MOST_EVALUATION, rng)
    return ExampleChoice(targets, evaluation, auxiliary)


def _leave_out(keys: Iterable[bytes], others: Collection[bytes]) -> list[bytes]:
    left_out = {*others}
    return [key for key in keys if key not in left_out]


def _split_held(holding: Holding) -> tuple[dict[str, list[bytes]], list[bytes]]:
    """Return the examples that one client alone holds, by client, and those that several hold."""
    alone: dict[str, list[bytes]] = {name: [] for name in holding.clients}
    shared: list[bytes] = []
    for key in sorted({*holding.holders} & {*holding.examples}):
        names = holding.holders[key]
        if len(names) == 1:
            alone[names[0]].append(key)
        else:
            shared.append(key)
    return alone, shared


def _draw(groups: Sequence[Sequence[bytes]], most: int, rng: np.random.Generator) -> list[bytes]:
    """Draw from each group, as many from each as its size allows."""
    # In each group every example is as likely as the others.
    chosen: list[bytes] = []
    for group, count in zip(groups, even(list(map(len, groups)), most), strict=True):
        chosen += [group[index] for index in rng.permutation(len(group))[:count]]
    return chosen


def even(sizes: Sequence[int], total: int) -> list[int]:
    """Share a total among groups as evenly as their sizes allow.

    Examples
    --------
    >>> even([1, 9, 9], 11)
    [1, 5, 5]
    """
    shares = [0] * len(sizes)
    smallest_first = sorted(range(len(sizes)), key=sizes.__getitem__)
    # The smallest first: what they cannot take goes to those that are left.
    for served, index in enumerate(smallest_first):
        shares[index] = min(sizes[index], total // (len(sizes) - served))
        total -= shares[index]
    return shares
