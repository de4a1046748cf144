"""What a participant sees: the common model, whose trees it puts together by the thresholds that they share."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedattack.threats.trees.boxes import find_cuts
from fedattack.threats.trees.replies import SentTrees

Places = NDArray[np.int64]
Cuts = set[tuple[int, float]]


def link_trees(by_node: Mapping[str, Sequence[SentTrees]], nodes: Sequence[str]) -> dict[str, Places]:
    """Put each tree after the first round to the client whose earlier trees share most of its thresholds.

    The trees of the first round stand in the common model client by client. Of what comes later a participant sees the
    thresholds alone, in any order, and how many trees a client adds in a round. So the trees of a round are dealt out
    to the clients together, such that most thresholds are shared in all (an assignment problem).

    Returns
    -------
    dict of str to ndarray
        ``linked`` (trees,) and ``owners`` (trees,): to which client a tree is put, and whose it is, as places among
        ``nodes``; ``sent_in`` (trees,): in which round.
    """
    first = min(replies[0].number for replies in by_node.values())
    known: list[Cuts] = [set() for _ in nodes]
    later: dict[int, list[tuple[Cuts, int]]] = {}
    for place, node in enumerate(nodes):
        for reply in by_node[node]:
            for tree in reply.trees:
                if reply.number == first:
                    known[place] |= find_cuts(tree)
                else:
                    later.setdefault(reply.number, []).append((find_cuts(tree), place))
    found: list[tuple[int, int, int]] = []
    # Who has no tree in the first round is not known: nothing can be put to it.
    if all(known):
        # What shares nothing is dealt out by what it holds: the order of nodes is by chance, and says whose a tree is.
        clients = sorted(range(len(nodes)), key=lambda place: sorted(known[place]))
        for number, trees in sorted(later.items()):
            trees.sort(key=lambda one: sorted(one[0]))
            each = max(Counter(place for _, place in trees).values())
            for chosen, (cuts, place) in zip(
                _deal(trees, [known[client] for client in clients], each), trees, strict=True
            ):
                known[clients[chosen]] |= cuts
                found.append((clients[chosen], place, number))
    columns = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return dict(zip(("linked", "owners", "sent_in"), columns, strict=True))


def _deal(trees: Sequence[tuple[Cuts, int]], known: Sequence[Cuts], each: int) -> list[int]:
    """Return to which client each tree of a round is put, at most so many to each."""
    shares = np.zeros((len(trees), len(known)))
    for row, (cuts, _) in enumerate(trees):
        for column, own in enumerate(known):
            shares[row, column] = len(cuts & own) / len(own) ** 0.5
    _, chosen = linear_sum_assignment(np.repeat(shares, each, axis=1), maximize=True)
    return [int(column) // each for column in chosen]
