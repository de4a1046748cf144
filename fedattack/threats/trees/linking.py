"""What a participant sees: the common model, whose trees it puts together by the thresholds that they share."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedattack.threats.trees.booster import Tree
from fedattack.threats.trees.boxes import find_cuts
from fedattack.threats.trees.replies import SentTrees

Places = NDArray[np.int64]


def link_trees(by_node: Mapping[str, Sequence[SentTrees]], nodes: Sequence[str]) -> tuple[Places, Places]:
    """Put each tree after the first round to the client whose earlier trees share most of its thresholds.

    The trees of the first round stand in the common model client by client. Of what comes later a participant sees the
    thresholds alone, in any order.

    Returns
    -------
    tuple of ndarray
        (trees,) and (trees,): to which client a tree is put, and whose it is, as places among ``nodes``.
    """
    known: list[set[tuple[int, float]]] = []
    first = min(replies[0].number for replies in by_node.values())
    later: list[tuple[int, int, Tree]] = []
    for place, node in enumerate(nodes):
        known.append(set())
        for reply in by_node[node]:
            for tree in reply.trees:
                if reply.number == first:
                    known[place] |= find_cuts(tree)
                else:
                    later.append((reply.number, place, tree))
    linked: list[int] = []
    owners: list[int] = []
    # Who has no tree in the first round is not known: nothing can be put to it.
    if all(known):
        for _, place, tree in sorted(later, key=lambda one: one[:2]):
            cuts = find_cuts(tree)
            shares = [len(cuts & own) / len(own) ** 0.5 for own in known]
            chosen = int(np.argmax(shares))
            known[chosen] |= cuts
            linked.append(chosen)
            owners.append(place)
    return np.array(linked, dtype=np.int64), np.array(owners, dtype=np.int64)
