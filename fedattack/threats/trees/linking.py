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


# Trees of a round, times clients, times trees of each: the table of the assignment problem, which is solved at once.
_MOST_NUMBERS = 2**21


def link_trees(by_node: Mapping[str, Sequence[SentTrees]], nodes: Sequence[str], notes: list[str]) -> dict[str, Places]:
    """Put each tree after the first round to the client whose earlier trees share most of its thresholds.

    The trees of the first round stand in the common model client by client. In later rounds a participant sees the
    thresholds alone, in any order, and how many trees a client adds in a round. So the trees of a round are dealt out
    to the clients together, such that most thresholds are shared in all (an assignment problem). Trees of a client of
    whom nothing is known from the first round, or who sends more than can be dealt, are left out, with a note.

    Returns
    -------
    dict of str to ndarray
        ``linked`` (trees,) and ``owners`` (trees,): to which client a tree is put, and whose it is, as indices into
        ``nodes``; ``sent_in`` (trees,): in which round.
    """
    first = min(replies[0].number for replies in by_node.values() if replies)
    known: list[Cuts] = [set() for _ in nodes]
    later: dict[int, list[tuple[Cuts, int]]] = {}
    for client, node in enumerate(nodes):
        for reply in by_node[node]:
            for tree in reply.trees:
                cuts = find_cuts(tree)
                if reply.number == first:
                    known[client] |= cuts
                else:
                    later.setdefault(reply.number, []).append((cuts, client))
    # What shares nothing is dealt out by what it holds: the order of nodes is by chance, and says whose a tree is.
    clients = [client for client, own in enumerate(known) if own]
    clients.sort(key=lambda client: sorted(known[client]))
    linked: list[tuple[int, int, int]] = []
    left_out: dict[int, int] = {}
    for number, trees in sorted(later.items()):
        # Where most clients are not known, most trees have nobody to whom they could be put.
        dealt = _leave_out(trees, clients, left_out) if 2 * len(clients) > len(nodes) else []
        if not dealt:
            continue
        dealt.sort(key=lambda one: sorted(one[0]))
        each = max(Counter(owner for _, owner in dealt).values())
        chosen = _deal(dealt, [known[client] for client in clients], each)
        for column, (cuts, owner) in zip(chosen, dealt, strict=True):
            known[clients[column]] |= cuts
            linked.append((clients[column], owner, number))
    for client, rounds in sorted(left_out.items()):
        notes.append(f"client {nodes[client]}: its trees of {rounds} rounds are assigned to nobody; {_WHY}")
    columns = np.array(linked, dtype=np.int64).reshape(-1, 3).T
    return dict(zip(("linked", "owners", "sent_in"), columns, strict=True))


_WHY = "none of the first round has a threshold, or there are too many"


def _leave_out(
    trees: Sequence[tuple[Cuts, int]], clients: Sequence[int], left_out: dict[int, int]
) -> list[tuple[Cuts, int]]:
    """Return the trees of a round that are dealt out; of whom none is counts one round more in ``left_out``."""
    counts = Counter(owner for _, owner in trees)
    leaving = [owner for owner in counts if owner not in clients]
    left = len(trees) - sum(counts[owner] for owner in leaving)
    for owner, most in counts.most_common():
        if owner in leaving:
            continue
        if left * len(clients) * most <= _MOST_NUMBERS:
            break
        leaving.append(owner)
        left -= most
    for owner in leaving:
        left_out[owner] = left_out.get(owner, 0) + 1
    return [tree for tree in trees if tree[1] not in leaving]


def _deal(trees: Sequence[tuple[Cuts, int]], known: Sequence[Cuts], each: int) -> list[int]:
    """Return to which client each tree of a round is put, at most so many to each."""
    shares = np.zeros((len(trees), len(known)))
    for row, (cuts, _) in enumerate(trees):
        for column, own in enumerate(known):
            # By the root, so that a client of many thresholds does not draw all trees.
            shares[row, column] = len(cuts & own) / len(own) ** 0.5
    _, chosen = linear_sum_assignment(np.repeat(shares, each, axis=1), maximize=True)
    return [int(column) // each for column in chosen]
