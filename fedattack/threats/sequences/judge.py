"""Judge sequences: how many of a client's sequences are found exactly, and how much of the others."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress, pairwise
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedattack.attacks.accidents import count_repeats
from fedattack.audit.clients import ClientsCase, ClientsJudge
from fedattack.audit.measures import Measurement, measure, no_value
from fedattack.audit.readoff import BITS, bits_of_repeats, read_off
from fedattack.audit.table import Row, rows_of
from fedattack.base.stored import Axes
from fedattack.threats.sequences.dager import ReadSequences
from fedattack.threats.sequences.tables import CLIENTS, SEQUENCES

Floats = NDArray[np.float64]
Tokens = tuple[int, ...]


def split_tokens(tokens: NDArray[Any], lengths: NDArray[Any]) -> list[Tokens]:
    """Return the sequences that lie one after another in an array."""
    ends = np.cumsum(lengths)
    return [tuple(tokens[end - length : end].tolist()) for end, length in zip(ends, lengths, strict=True)]


@dataclass(frozen=True, eq=False)
class TrainedSequences:
    """The sequences on which clients train, one after another; :mod:`fedattack.attacks.lookups`.

    ``whole`` are the clients of which all examples are known.
    """

    tokens: Annotated[NDArray[np.int64], Axes("tokens")]
    lengths: Annotated[NDArray[np.int64], Axes("sequences", low=0)]
    owners: Annotated[NDArray[np.str_], Axes("sequences")]
    whole: Annotated[NDArray[np.str_], Axes("whole")]

    def fault(self) -> str:
        """Say where sequences are of other lengths in all than there are tokens."""
        if self.lengths.sum() == len(self.tokens):
            return ""
        return f"lengths: expected {len(self.tokens)} tokens in all, got {self.lengths.sum()}"


@dataclass(frozen=True, eq=False)
class SequencesCase(ClientsCase[ReadSequences, TrainedSequences]):
    """One seed's sequences beside its truth."""

    ANSWERS, FORM = "sequences", TrainedSequences

    @cached_property
    def asked(self) -> list[str]:
        """The clients of which updates were looked at, and of which all examples are known."""
        if self.answers is None:
            return []
        whole, holding = {*self.answers.whole.tolist()}, {*self.answers.owners.tolist()}
        return self.list_seen(whole & holding)

    @cached_property
    def read(self) -> list[list[Tokens]]:
        """For each client that is asked about, the sequences that were found of it, each once."""
        owners = [self.node_clients[node] for node in self.found.whose.tolist()]
        of_clients = self._part_by_client(self.found.tokens, self.found.lengths, owners)
        return [[*dict.fromkeys(sequences)] for sequences in of_clients]

    @cached_property
    def true(self) -> list[list[Tokens]]:
        """For each client that is asked about, the sequences that it trained on."""
        return self._part_by_client(self.known.tokens, self.known.lengths, self.known.owners.tolist())

    def _part_by_client(self, tokens: NDArray[Any], lengths: NDArray[Any], owners: Sequence[str]) -> list[list[Tokens]]:
        """Return for each client that is asked about its sequences, of those that lie one after another."""
        of_clients: list[list[Tokens]] = [[] for _ in self.asked]
        for sequence, owner in zip(split_tokens(tokens, lengths), owners, strict=True):
            if owner in self.places:
                of_clients[self.places[owner]].append(sequence)
        return of_clients

    @cached_property
    def matches(self) -> dict[str, Floats]:
        """By metric, (clients, sequences): how well the best sequence found of a client matches each true one."""
        true = [tokens for of_client in self.true for tokens in of_client]
        matches = {"exact": _match_exactly(self.read, true)}
        for metric, size in (("rouge1", 1), ("rouge2", 2)):
            matches[metric] = np.maximum(_match_parts(self.read, true, size), matches["exact"])
        return matches

    @cached_property
    def right_of(self) -> NDArray[np.int64]:
        """(clients,): how many different sequences of each client are found exactly."""
        counts = []
        for read, true in zip(self.read, self.true, strict=True):
            counts.append(len({*read} & {*true}))
        return np.array(counts, dtype=np.int64)

    @cached_property
    def certain_of(self) -> NDArray[np.int64]:
        """(clients,): how many of these are certain: no other client's sequence has nearly the same tokens."""
        sequences = split_tokens(self.known.tokens, self.known.lengths)
        of_owner: dict[str, list[Tokens]] = {}
        for tokens, owner in zip(sequences, self.known.owners.tolist(), strict=True):
            of_owner.setdefault(owner, []).append(tokens)
        counts = np.zeros(len(self.asked), dtype=np.int64)
        repeats, pairs = _count_long_repeats(of_owner, sequences)
        for index, client in enumerate(self.asked):
            right = sorted({*self.read[index]} & {*self.true[index]})
            if not right:
                continue
            others = [tokens for owner, own in of_owner.items() if owner != client for tokens in own]
            sure = int((bits_of_sequences(right, others, sequences) >= BITS).sum())
            if bits_of_repeats(sure, len(self.read[index]), repeats, pairs) >= BITS:
                counts[index] = sure
        return counts

    def fits(self, metric: str) -> Floats:
        """Compare what was found of a client with the sequences of each one, as means."""
        sizes = [len(of_client) for of_client in self.true]
        columns = np.split(self.matches[metric], np.cumsum(sizes)[:-1], axis=1)
        return np.stack([of_client.mean(axis=1) for of_client in columns], axis=1)


def _match_exactly(found: Sequence[Sequence[Tokens]], true: Sequence[Tokens]) -> Floats:
    """Return (clients, sequences): 1 where a sequence is among those that were found of a client."""
    matches = np.zeros((len(found), len(true)))
    for row, sequences in enumerate(found):
        known = {*sequences}
        matches[row] = [tokens in known for tokens in true]
    return matches


def _match_parts(found: Sequence[Sequence[Tokens]], true: Sequence[Tokens], size: int) -> Floats:
    """Return (clients, sequences): the best F1 score of parts of one or two tokens (ROUGE-1 and ROUGE-2)."""
    numbers: dict[tuple[Any, int], int] = {}
    right = _count_parts(true, size, numbers)
    matches = np.zeros((len(found), len(true)))
    for row, sequences in enumerate(found):
        own = _count_parts(sequences, size, numbers)
        width = len(numbers)
        common = _as_matrix(own, width) @ _as_matrix(right, width).T
        lengths = np.add.outer([len(parts) for parts in own], [len(parts) for parts in right])
        if sequences:
            matches[row] = (2 * np.asarray(common.todense()) / np.maximum(lengths, 1)).max(axis=0)
    return matches


def bits_of_sequences(asked: Sequence[Tokens], others: Sequence[Tokens], known: Sequence[Tokens]) -> Floats:
    """Say how many bits tell each sequence from the nearest of others, (asked,), in whatever order its tokens stand.

    A token tells as many bits as it is rare in the other known sequences, where each token is seen once more than it
    is. Those count which the nearest one has not as often.
    """
    counts = Counter(chain.from_iterable(known))
    total, times = counts.total(), Counter(known)
    numbers: dict[tuple[Any, int], int] = {}
    own, of_others = _count_parts(asked, 1, numbers), _count_parts(others, 1, numbers)
    token_of = [token for token, _ in numbers]
    parts = _as_matrix(own, len(numbers))
    for row, tokens in enumerate(asked):
        equals, of_row = times[tokens], slice(parts.indptr[row], parts.indptr[row + 1])
        below = total - equals * len(tokens) + len(counts)
        inside = Counter(tokens)
        for entry, number in enumerate(parts.indices[of_row].tolist(), start=of_row.start):
            token = token_of[number]
            parts.data[entry] = np.log2(below / (counts[token] - equals * inside[token] + 1))
    bits = np.asarray(parts.sum(axis=1), dtype=np.float64).reshape(-1)
    if not others or not len(asked):
        return bits
    common = parts @ _as_matrix(of_others, len(numbers)).T
    return np.asarray(bits - common.max(axis=1).toarray().reshape(-1))


def _count_long_repeats(of_owner: Mapping[str, Sequence[Tokens]], known: Sequence[Tokens]) -> tuple[int, int]:
    """Count, of sequences that no accident of single tokens meets, how often clients hold the same."""
    different = [*dict.fromkeys(known)]
    is_long = bits_of_sequences(different, [], known) >= BITS
    numbers = {tokens: number for number, tokens in enumerate(compress(different, is_long))}
    entries = []
    for holder, sequences in enumerate(of_owner.values()):
        entries += [(numbers[tokens], holder) for tokens in {*sequences} if tokens in numbers]
    things, holders = np.array(entries, dtype=np.int64).reshape(-1, 2).T
    return count_repeats(things, holders, len(of_owner))


def _count_parts(
    sequences: Sequence[Tokens], size: int, numbers: dict[tuple[Any, int], int]
) -> list[NDArray[np.int64]]:
    """Return for each sequence the numbers of its parts; a part that stands there again is another part."""
    found = []
    for tokens in sequences:
        times: dict[Any, int] = {}
        own = []
        for part in tokens if size == 1 else pairwise(tokens):
            times[part] = times.get(part, 0) + 1
            own.append(numbers.setdefault((part, times[part]), len(numbers)))
        found.append(np.array(own, dtype=np.int64))
    return found


def _as_matrix(parts: Sequence[NDArray[np.int64]], width: int) -> "csr_array[Any]":
    columns = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    rows = np.repeat(np.arange(len(parts)), [len(own) for own in parts])
    return csr_array((np.ones(len(columns)), (rows, columns)), shape=(len(parts), width))


class SequencesJudge(ClientsJudge[SequencesCase]):
    """States how many sequences are found exactly, and how much of each by ROUGE-1 and ROUGE-2, as means over clients.

    The test exchanges who is who among the clients.
    """

    case = SequencesCase
    reason = (
        "the share of each client's training sequences; the null compares the same findings with other clients' "
        "sequences"
    )
    notes = (
        "The null of dager.exact compares the same sequences with those of other clients.",
        f"A sequence that is found exactly is certain if the tokens in which it differs from every other client's tell "
        f"{BITS:g} bits or more; the rarer a token, the more bits.",
    )

    @measure("exact", "Sequences found exactly", headline=True)
    def find_exact(self) -> Measurement | None:
        """Count the client's sequences that are found token by token."""
        if not self.asked:
            return no_value("there is no client whose training examples are all known, so nobody knows its sequences")
        found = read_off("sequence", [case.right_of for case in self.asked], [case.certain_of for case in self.asked])
        return self.hold_against_others("exact", series=self.show(CLIENTS), read_off=found)

    @measure("rouge1", "Tokens found, ROUGE-1")
    def find_rouge1(self) -> Measurement | None:
        """Score the tokens of the best sequence that was found for each."""
        return self.hold_against_others("rouge1")

    @measure("rouge2", "Pairs of tokens found, ROUGE-2")
    def find_rouge2(self) -> Measurement | None:
        """Score the pairs of neighbouring tokens of the best sequence that was found for each."""
        return self.hold_against_others("rouge2")

    @rows_of(CLIENTS)
    def describe_clients(self, case: SequencesCase) -> Iterator[Row]:
        """Describe the clients of a run."""
        fits = {metric: np.diagonal(case.fits(metric)) for metric in case.matches}
        for index, client in enumerate(case.asked):
            node = case.columns(client)[0]
            yield {
                "client": client,
                "sequences": len(case.true[index]),
                "tokens": sum(map(len, case.true[index])),
                "found": len(case.read[index]),
                "exact": float(fits["exact"][index]),
                "rouge1": float(fits["rouge1"][index]),
                "rouge2": float(fits["rouge2"][index]),
                "rank": int(case.found.rank[node].max()),
                "width": int(case.found.width[node].max()),
            }

    @rows_of(SEQUENCES)
    def list_sequences(self, case: SequencesCase) -> Iterator[Row]:
        """List every sequence that is found or true."""
        for index, client in enumerate(case.asked):
            read, true = case.read[index], case.true[index]
            for tokens in sorted({*read, *true}):
                words = " ".join(map(str, tokens))
                yield {"client": client, "tokens": words, "found": tokens in read, "trained": true.count(tokens)}
