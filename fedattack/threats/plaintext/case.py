"""One seed's plaintext beside the examples that clients hold: what could be an example, and whose is nearest."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.accidents import count_repeats
from fedattack.audit.judge import Case
from fedattack.audit.readoff import BITS, bits_of_repeats
from fedattack.audit.truth import NOBODY, SEVERAL, has_examples
from fedattack.base.errors import DataError
from fedattack.base.structured import fields, finite
from fedattack.threats.plaintext.arrays import SUM, Sent, make_sent
from fedattack.threats.plaintext.contents import Contents, KnownExamples, find_contents
from fedattack.threats.plaintext.groups import GroupSizes, find_group_sizes
from fedattack.threats.plaintext.items import contents_of
from fedattack.threats.plaintext.judged_values import judge_values
from fedattack.threats.plaintext.plaintext import PlainValues
from fedattack.threats.plaintext.row_batches import RowBatches
from fedattack.threats.plaintext.row_links import (
    FEWEST_ROWS,
    ColumnsLink,
    NormsLink,
    OwnRows,
    link_columns,
    link_norms,
    list_own_rows,
)
from fedattack.threats.plaintext.values import likeness, parts_of

THREAT = "plaintext"

# Examples that vectors are compared with, and their numbers in all.
_MOST_EXAMPLES, _MOST_NUMBERS = 2**20, 2**25

# Vectors of a run that are compared, pairs of a vector and an example, and such pairs at once.
_MOST_CANDIDATES, _MOST_PAIRS, _AT_ONCE = 50_000, 2**31, 2**25

# Clients whose rows are linked.
_MOST_LINKED = 64

Floats = NDArray[np.float64]

Candidate = tuple[str, str, Floats]
"""A vector, or a part of one, as long as an example: its client, its name, and its numbers."""

# Rounding of a likeness; by how much farther from being alike all others are than an own example that is sure; and
# different numbers that such a vector has. Each number beyond the first three is then met by an accident about once in
# 30 times, the root of the second.
_ROUNDING, _FARTHER, _DIFFERENT = 1e-6, 1_000, 12


def _fits_labels(answers: Mapping[str, NDArray[Any]]) -> bool:
    """Say whether labels and rows are a number for each example, and clients' names are texts, where there are any."""
    labels, whole, rows = (answers.get(name) for name in ("labels", "whole", "rows"))
    if rows is not None and (rows.shape != answers["owners"].shape or rows.dtype.kind != "i"):
        return False
    if labels is not None and (labels.shape != answers["owners"].shape or labels.dtype.kind != "f"):
        return False
    return whole is None or (whole.ndim == 1 and whole.dtype.kind == "U")


@dataclass(frozen=True, eq=False)
class PlaintextCase(Case[PlainValues]):
    """One seed's plaintext beside its truth."""

    @cached_property
    def contents(self) -> list[Contents]:
        """What stands in what clients send, and what stands in sums, where there is either and examples are known."""
        if self.examples is None:
            return []
        sent = [(client, array) for client, array in self._sent if client != SUM]
        sums = [(client, array) for client, array in self._sent if client == SUM]
        targets = self.knowledge.targets
        shape: tuple[int, ...] = (self.examples.x.shape[1],)
        if targets is not None and not fields(targets.x) and math.prod(targets.x.shape[1:]) == shape[0]:
            shape = targets.x.shape[1:]
        return [find_contents(part, self.examples, shape) for part in (sent, sums) if part]

    @cached_property
    def _sent(self) -> list[tuple[str, Sent]]:
        """Arrays and vectors that clients send, each with the client; those of sums go by :data:`SUM`."""
        sent: list[tuple[str, Sent]] = []
        for array in self.found.list_sent():
            client = SUM
            if array.node != SUM:
                client = self.truth.nodes.get(array.node, f"node {array.node}")
            sent.append((client, array))
        for described, (client, name, numbers) in zip(self.found.vectors, self.vectors, strict=True):
            sent.append((client, make_sent(client, described.type, name, numbers)))
        return sent

    @cached_property
    def group_sizes(self) -> list[GroupSizes]:
        """What may be sizes of groups of all examples of a client, of those of which all are known."""
        if self.examples is None:
            return []
        counts = Counter(self.examples.owners.tolist())
        return find_group_sizes(self._sent, {client: counts[client] for client in self.examples.whole})

    @cached_property
    def values(self) -> Contents | None:
        """Whose single examples' values clients send; ``None`` where they send none, or nobody knows."""
        targets = self.knowledge.targets
        if targets is None or len(targets) != len(self.truth.owners):
            return None
        return judge_values(self.found, self.node_clients, self.truth)

    @cached_property
    def query_rows(self) -> list[str]:
        """The names of arrays in replies to queries that may have a row for each example."""
        names = []
        for batches in self.found.list_batches():
            form = batches.form
            if form.type.startswith("query") and not form.is_sent and sum(form.sizes) >= FEWEST_ROWS:
                names.append(f"{form.name} ({form.type})")
        return [*dict.fromkeys(names)]

    def link_columns(self, rng: np.random.Generator) -> list[tuple[str, ColumnsLink]]:
        """Link columns of clients, by their names, to arrays that these send with rows for examples."""
        links = []
        for client, own, batches in self._own_rows(is_sent=False):
            link = link_columns(own, batches, rng)
            if link is not None:
                links.append((client, link))
        return links

    def link_norms(self, rng: np.random.Generator) -> list[tuple[str, NormsLink]]:
        """Link labels of clients, by their names, to the norms of rows that these are sent."""
        links = []
        for client, own, batches in self._own_rows(is_sent=True):
            link = link_norms(own, batches, rng)
            if link is not None:
                links.append((client, link))
        return links

    def _own_rows(self, *, is_sent: bool) -> Iterator[tuple[str, OwnRows, list[RowBatches]]]:
        """Yield clients of whose examples it is known which row of their table each is, these, and what passed."""
        by_client: dict[str, list[RowBatches]] = {}
        for batches in self.found.list_batches():
            client = self.truth.nodes.get(self.found.nodes[batches.form.node], "")
            if client and batches.form.is_sent == is_sent:
                by_client.setdefault(client, []).append(batches)
        for client in sorted(by_client, key=lambda name: (len(name), name))[:_MOST_LINKED]:
            own = None
            if self.examples is not None:
                own = list_own_rows(self.examples, client)
            if own is not None:
                yield client, own, by_client[client]

    @cached_property
    def node_clients(self) -> list[str]:
        """The client behind each node; one that only evaluates may be nobody's in the truth, and goes by its node."""
        return [self.truth.nodes.get(node, SUM if node == SUM else f"node {node}") for node in self.found.nodes]

    @cached_property
    def examples(self) -> KnownExamples | None:
        """What vectors are compared with; ``None`` where no example of one array is known with its holder."""
        answers = self.truth.answers.get(THREAT)
        if answers is not None:
            if not has_examples(answers) or not len(answers["x"]) or not _fits_labels(answers):
                raise DataError(
                    f"seed {self.seed}: the truth's answer {THREAT!r}: expected x (n, size) of numbers and owners (n,) "
                    "of names, perhaps with labels (n,) of numbers and whole (clients,) of names; write it again"
                )
            if len(answers["x"]) > _MOST_EXAMPLES or answers["x"].size > _MOST_NUMBERS:
                raise DataError(
                    f"seed {self.seed}: the truth's answer {THREAT!r}: x has {len(answers['x']):,} examples of "
                    f"{answers['x'].shape[1]:,} numbers; at most {_MOST_EXAMPLES:,} of {_MOST_NUMBERS:,} numbers in "
                    "all are compared"
                )
            none = np.full(len(answers["x"]), np.nan)
            return KnownExamples(
                answers["x"].astype(np.float32, copy=False),
                answers["owners"],
                answers.get("labels", none),
                frozenset(answers.get("whole", np.zeros(0, np.str_)).tolist()),
                answers.get("rows"),
            )
        targets = self.knowledge.targets
        if targets is None or fields(targets.x) or len(targets) != len(self.truth.owners):
            return None
        rows, owners = self._list_holders()
        x = np.asarray(targets.x[rows]).reshape(len(rows), -1)
        comparable = finite(x)
        y = np.asarray(targets.y)[rows].astype(np.float64) if targets.y.ndim == 1 else np.full(len(rows), np.nan)
        sizes = dict(zip(self.truth.clients, self.truth.counts.sum(axis=1).tolist(), strict=True))
        counts = Counter(np.array(owners)[comparable].tolist())
        whole = frozenset(name for name, size in sizes.items() if size and counts[name] == size)
        known = KnownExamples(x[comparable], np.array(owners)[comparable], y[comparable], whole)
        if not {*known.owners.tolist()} - {NOBODY}:
            return None
        return known

    def _list_holders(self) -> tuple[list[int], list[str]]:
        """Return each target once for each client that holds it: its row, and the client."""
        rows: list[int] = []
        owners: list[str] = []
        for row, owner in enumerate(self.truth.owners.tolist()):
            names = self.truth.shared[row] if owner == SEVERAL else (owner,)
            for name in names:
                rows.append(row)
                owners.append(name)
        return rows, owners

    @cached_property
    def vectors(self) -> list[tuple[str, str, NDArray[Any]]]:
        """For each vector the client that sent it, its name, and its numbers."""
        vectors, start = [], 0
        for described, node in zip(self.found.vectors, self.found.whose.tolist(), strict=True):
            end = start + described.length
            vectors.append((self.node_clients[node], described.name, self.found.numbers[start:end]))
            start = end
        return vectors

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The vectors, and parts of vectors, that are as long as an example and not the same throughout.

        If there are more than can be compared, the first ones of each client are taken, as many of each.
        """
        if self.examples is None:
            return []
        size = self.examples.x.shape[1]
        counts: Counter[str] = Counter()
        for client, _, vector in self.vectors:
            counts[client] += len(parts_of(vector, size))
        most = min(_MOST_CANDIDATES, max(1, _MOST_PAIRS // len(self.examples.x)))
        left = dict(counts)
        if counts.total() > most:
            left = dict.fromkeys(counts, max(1, most // len(counts)))
        candidates = []
        for client, name, vector in self.vectors:
            parts = parts_of(vector, size)[: left[client]]
            left[client] -= len(parts)
            for part in parts:
                if np.ptp(part) > 0:
                    candidates.append((client, name, part))
        return candidates

    @cached_property
    def senders(self) -> list[str]:
        """The clients of the candidates, in the order of the clients."""
        senders = {client for client, _, _ in self.candidates}
        return [client for client in self.clients if client in senders]

    @cached_property
    def nearest(self) -> list[tuple[str, str, dict[str, float], float]]:
        """For each candidate its client, its name, whose example is nearest with shares, and how alike they are."""
        if self.examples is None:
            return []
        owners, nearest = self.examples.owners, []
        for (client, name, _), row in self._compare(self.candidates):
            best = float(row.max())
            holders = sorted({*owners[row >= best - _ROUNDING].tolist()})
            nearest.append((client, name, dict.fromkeys(holders, 1 / len(holders)), best))
        return nearest

    def _compare(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, NDArray[np.float32]]]:
        """Yield each candidate, and how alike it is to each example (examples,); some are compared at once."""
        if self.examples is None:
            return
        at_once = max(64, _AT_ONCE // len(self.examples.x))
        for start in range(0, len(candidates), at_once):
            block = candidates[start : start + at_once]
            alike = likeness(np.stack([part for _, _, part in block]), self.examples.x)
            yield from zip(block, alike, strict=True)

    def count_certain(self, equal: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Count for each sender (senders,) which of its vectors are an example of its own, and which are so for sure.

        A vector is one from this likeness on. It is so for sure if it has enough different numbers, and if its example
        is far nearer than any that another client or nobody holds. Each example counts once.
        """
        right, certain = (np.zeros(len(self.senders), dtype=np.int64) for _ in range(2))
        if self.examples is None:
            return right, certain
        own_vectors = []
        for candidate, (client, _, holders, best) in zip(self.candidates, self.nearest, strict=True):
            if best >= equal and client in holders:
                own_vectors.append(candidate)
        indices = {client: index for index, client in enumerate(self.senders)}
        owners = np.array([indices.get(owner, -1) for owner in self.examples.owners.tolist()])
        seen: set[tuple[int, bytes]] = set()
        for (client, _, part), row in self._compare(own_vectors):
            sender = indices[client]
            rows = np.flatnonzero(owners == sender)
            nearest = rows[row[rows].argmax()]
            example = self.examples.x[nearest].tobytes()
            if (sender, example) in seen:
                continue
            seen.add((sender, example))
            right[sender] += 1
            other = float(row[owners != sender].max(initial=0))
            is_far = 1 - other >= _FARTHER * max(1 - float(row[nearest]), _ROUNDING)
            certain[sender] += is_far and len(np.unique(part)) >= _DIFFERENT
        _, things = np.unique(contents_of(self.examples.x), return_inverse=True)
        holders = {name: number for number, name in enumerate(sorted({*self.examples.owners.tolist()} - {NOBODY}))}
        whose = np.array([holders.get(owner, -1) for owner in self.examples.owners.tolist()])
        repeats, pairs = count_repeats(things, whose, len(holders))
        tried = Counter(client for client, *_ in self.candidates)
        for client, sender in indices.items():
            if bits_of_repeats(int(certain[sender]), tried[client], repeats, pairs) < BITS:
                certain[sender] = 0
        return right, certain

    def shares(self, asked: str) -> NDArray[np.float64]:
        """(senders, senders): of one's candidates of a name the share whose nearest example is held by another."""
        indices = {client: index for index, client in enumerate(self.senders)}
        sums, counts = np.zeros((len(indices), len(indices))), np.zeros(len(indices))
        for client, name, holders, _ in self.nearest:
            if name != asked:
                continue
            counts[indices[client]] += 1
            for holder, share in holders.items():
                if holder in indices:
                    sums[indices[client], indices[holder]] += share
        return np.asarray(sums / np.maximum(counts, 1)[:, None])
