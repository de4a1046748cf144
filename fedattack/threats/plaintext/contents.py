"""What stands in all that clients of a run send: whose examples, statistics and labels, and which of it is certain."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.readoff import BITS
from fedattack.threats.plaintext.arrays import SUM, Sent
from fedattack.threats.plaintext.items import EXAMPLES, MEANS_BY_CLASS, NONE, Known
from fedattack.threats.plaintext.matching import Matcher, Matches

# Bits by which an item must be surer than the best accident, so that it counts beside others of its name.
_COUNTING = 4.0

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class KnownExamples:
    """Examples whose holders are known.

    Attributes
    ----------
    x, owners, labels
        (n, size), (n,), (n,): an example once for each copy that each client has of it, "" for nobody; and its label,
        NaN for none.
    whole
        Clients all of whose examples these are.
    rows
        (n,): which row of its holder's table each is, -1 where that is not known; ``None`` where it is of none.
    """

    x: NDArray[np.float32]
    owners: NDArray[np.str_]
    labels: NDArray[np.float64]
    whole: frozenset[str]
    rows: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Contents:
    """What stands in what clients send.

    Attributes
    ----------
    clients
        Those that send something, in the order of indices.
    matches
        What was found: by client, name and kind.
    certain
        For each of these, which items are certain to be the client's own.
    sizes
        (kind, client): how many items of a kind a client has.
    """

    clients: Sequence[str]
    matches: Sequence[Matches]
    certain: Sequence[frozenset[int]]
    sizes: Mapping[tuple[str, int], int]

    def shares(self, *, examples: bool) -> dict[str, Floats]:
        """Return, by name and kind, which share of the items of a client (columns) another one (rows) sends.

        Of examples, or of all other kinds.
        """
        count = len(self.clients)
        shares: dict[str, Floats] = {}
        for matches in self.matches:
            if (matches.kind == EXAMPLES) != examples:
                continue
            share = shares.setdefault(say_content(matches), np.zeros((count, count)))
            for holder, items in matches.items.items():
                if 0 <= holder < count:
                    share[matches.sender, holder] = len(items) / self.sizes[matches.kind, holder]
        return shares

    def count_read(self, *, examples: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Count for each client (clients,) its own items that stand somewhere, and those that are certain."""
        right: dict[int, set[tuple[str, int]]] = defaultdict(set)
        certain: dict[int, set[tuple[str, int]]] = defaultdict(set)
        for matches, sure in zip(self.matches, self.certain, strict=True):
            if (matches.kind == EXAMPLES) == examples:
                # A statistic under two names is one.
                right[matches.sender].update((matches.kind, item) for item in matches.own)
                certain[matches.sender].update((matches.kind, item) for item in sure)
        counts = [[len(of[client]) for client in range(len(self.clients))] for of in (right, certain)]
        return np.array(counts[0], dtype=np.int64), np.array(counts[1], dtype=np.int64)


def say_content(matches: Matches) -> str:
    """Name what was found: the name of the array, and the kind of the items."""
    return f"{matches.name}: {matches.kind}"


def find_contents(sent: Sequence[tuple[str, Sent]], examples: KnownExamples, shape: tuple[int, ...]) -> Contents:
    """Find what stands in all that clients sent.

    Parameters
    ----------
    sent
        Arrays and vectors, each with the client that sent it.
    examples
        What is known of clients.
    shape
        Of an example.
    """
    clients = sorted({client for client, _ in sent}, key=lambda name: (len(name), name))
    indices = {client: index for index, client in enumerate(clients)}
    # A sum is of all clients: whoever holds an example, it is the sum's own.
    pooled = SUM in indices
    others = {name: len(clients) + index for index, name in enumerate(sorted({*examples.owners.tolist()}))}
    holders = []
    for name in examples.owners.tolist():
        if not name:
            holders.append(NONE)
        elif pooled:
            holders.append(indices[SUM])
        else:
            # Whoever sends nothing still holds examples.
            holders.append(indices.get(name, others[name]))
    whole = np.array([client in examples.whole for client in clients], dtype=np.bool_)
    known = Known(examples.x, examples.labels, np.array(holders, dtype=np.int64), whole, shape)
    matcher = Matcher(known)
    by_name: dict[tuple[str, str, str], list[Sent]] = defaultdict(list)
    for client, array in sent:
        by_name[client, array.name, array.type].append(array)
    found: list[Matches] = []
    for (client, _, _), arrays in by_name.items():
        found += matcher.look(indices[client], arrays)
    sizes: dict[tuple[str, int], int] = {}
    for matches in found:
        for holder in matches.items:
            sizes[matches.kind, holder] = matcher.count_items(matches.kind, holder)
    certain = list(_find_certain(found, len(clients)))
    # No one of equal examples of one class is the only one; what is the only one stands among the first copies.
    singles = np.isin(known.firsts, [*known.singles]).nonzero()[0]
    return Contents(clients, found, _add_single_examples(found, certain, frozenset(singles.tolist())), sizes)


def _add_single_examples(
    found: Sequence[Matches], certain: Sequence[frozenset[int]], singles: frozenset[int]
) -> list[frozenset[int]]:
    """Add, of arrays that certainly hold means by class, the examples that are the only ones of their class."""
    holds_means = set()
    for matches, sure in zip(found, certain, strict=True):
        if sure and matches.kind == MEANS_BY_CLASS:
            holds_means.add((matches.name, matches.type))
    added = []
    for matches, sure in zip(found, certain, strict=True):
        if matches.kind == EXAMPLES and (matches.name, matches.type) in holds_means:
            sure = sure | (singles & matches.own & matches.alone)
        added.append(sure)
    return added


def _find_certain(found: Sequence[Matches], clients: int) -> Iterator[frozenset[int]]:
    """Yield for all that was found the items that no accident would give.

    One is certain by itself, or by all that stands under the same name: an accident there is one in all clients.
    """
    by_content: dict[tuple[str, str, str], float] = defaultdict(float)
    # Under so many names so many kinds were sought: the best of these was chosen.
    tried = math.log2(1 + len(found))
    chosen = 1 + math.log2(max(1, clients))
    for matches in found:
        for bits in matches.count_surplus().values():
            if bits - chosen >= _COUNTING:
                by_content[matches.name, matches.type, matches.kind] += bits - chosen
    for matches in found:
        together = by_content[matches.name, matches.type, matches.kind] - tried
        sure = set()
        for item, bits in matches.count_surplus().items():
            if bits - tried >= BITS or (together >= BITS and bits - chosen >= _COUNTING):
                sure.add(item)
        yield frozenset(sure)
