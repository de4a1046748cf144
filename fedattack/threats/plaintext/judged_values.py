"""Hold the examples that lists of values tell against who holds them: which are the sender's own, and which certain."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from fedattack.audit.readoff import BITS
from fedattack.audit.truth import SEVERAL, Truth
from fedattack.threats.plaintext.contents import Contents
from fedattack.threats.plaintext.matching import Matches
from fedattack.threats.plaintext.plaintext import PlainValues
from fedattack.threats.plaintext.single_values import COUNTING

TRAINED_ON, HELD_OUT = "values of examples", "values of examples that were held out"
"""The kinds of items that are values of single examples: of those that a client trained on, and of its other ones."""

# By kind of items, for each target the indices of the clients whose it is.
_Holders = Mapping[str, Sequence[set[int]]]


def judge_values(found: PlainValues, node_clients: Sequence[str], truth: Truth) -> Contents | None:
    """Say whose examples each client's values are; ``None`` where no client sends any, or holders are not known.

    In replies to training they are of examples that clients train on. In others, such as evaluations, they are of
    these or of held-out ones, whichever are found more often.

    Parameters
    ----------
    node_clients
        The client of each node.
    """
    lists = [entry for entry in found.values if entry.what]
    if not lists or not len(truth.owners):
        return None
    clients = sorted({node_clients[entry.node] for entry in found.values}, key=lambda name: (len(name), name))
    indices = {client: index for index, client in enumerate(clients)}
    holders = _list_holders(truth, indices)
    sizes: dict[tuple[str, int], int] = {}
    for kind, of_kind in holders.items():
        for holder in range(len(clients)):
            sizes[kind, holder] = sum(holder in each for each in of_kind)
    by_name: dict[tuple[str, str], dict[str, dict[int, Matches]]] = {}
    for index, entry in enumerate(found.values):
        if entry.what:
            kinds = by_name.setdefault((entry.name, entry.type), {kind: {} for kind in holders})
            if entry.type == "train":
                kinds.pop(HELD_OUT, None)
            sender = indices[node_clients[entry.node]]
            for kind, of_sender in kinds.items():
                matches = of_sender.setdefault(sender, Matches(sender, entry.name, entry.type, kind))
                _add(matches, found.list_told(index), holders[kind])
    all_matches: list[Matches] = []
    for kinds in by_name.values():
        most = max(kinds.values(), key=lambda of_sender: sum(len(matches.own) for matches in of_sender.values()))
        all_matches += most.values()
    # The choice between two kinds costs a bit.
    choices = 1 + max(entry.choices for entry in lists)
    return Contents(clients, all_matches, _find_certain(all_matches, sizes, len(clients), choices), sizes)


def _list_holders(truth: Truth, indices: Mapping[str, int]) -> _Holders:
    """Return whose targets are: of those that train on them, and of those from whose data they were taken."""
    trained: list[set[int]] = []
    taken: list[set[int]] = []
    for target, (owner, origin) in enumerate(zip(truth.owners.tolist(), truth.origins.tolist(), strict=True)):
        names = truth.shared[target] if owner == SEVERAL else (owner,)
        trained.append({indices[name] for name in names if name in indices})
        taken.append({indices[name] for name in (origin,) if name in indices})
    return {TRAINED_ON: trained, HELD_OUT: taken}


def _add(matches: Matches, told: Iterable[tuple[int, float, bool]], holders: Sequence[set[int]]) -> None:
    """Add the examples that one list tells: their indices, bits, and whether no other comes as near."""
    for target, bits, is_alone in told:
        for holder in holders[target]:
            matches.items.setdefault(holder, set()).add(target)
        if matches.sender in holders[target]:
            matches.bits[target] = max(matches.bits.get(target, 0.0), bits)
            # Alike for several clients, it tells nothing of one.
            if is_alone and len(holders[target]) == 1:
                matches.alone.add(target)


def _find_certain(
    found: Sequence[Matches], sizes: Mapping[tuple[str, int], int], clients: int, choices: float
) -> list[frozenset[int]]:
    """Return for all that was found the own examples that no accident would tell.

    A single number is met by accident now and then. So many of a client's, under one name, are not: these count
    together, and those of all clients. Some of its known examples are chosen, which costs as many bits as there are
    choices.
    """
    together: dict[tuple[str, str], float] = defaultdict(float)
    for matches in found:
        bits = matches.count_surplus()
        if bits:
            known = sizes[matches.kind, matches.sender]
            of_client = sum(bits.values()) - math.log2(math.comb(known, len(bits)))
            together[matches.name, matches.type] += max(0.0, of_client - 1 - math.log2(max(1, clients)))
    certain = []
    for matches in found:
        sure = frozenset(item for item, bits in matches.count_surplus().items() if bits >= COUNTING)
        is_sure = together[matches.name, matches.type] - choices >= BITS
        certain.append(sure if is_sure else frozenset())
    return certain
