"""Judge plaintext: how often the numbers beside a client's model are nearest to an example on which it trained."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import NO_EVIDENCE, Finding
from fedattack.audit.intervals import here_of, rate_interval
from fedattack.audit.judge import Case, Judge, over_seeds
from fedattack.audit.listing import Cell, Listing
from fedattack.audit.summaries import null_of
from fedattack.audit.truth import NOBODY, SEVERAL
from fedattack.base.errors import DataError
from fedattack.base.structured import fields
from fedattack.threats.plaintext.exchange import Nearest
from fedattack.threats.plaintext.values import likeness, parts_of

THREAT = "plaintext"

EQUAL = 0.9999
"""Likeness from which on a vector is an example, but for scale, offset and rounding."""

# Streams of random numbers, apart from each other.
_SHUFFLING, _TESTING = 1, 2
_SHUFFLES = 1_000
_LABEL = "Vectors beside the model that are nearest to an own training example"


@dataclass(frozen=True)
class _KnownExamples:
    """Examples (n, size) and the client that holds each; "" for nobody."""

    x: NDArray[np.float32]
    owners: NDArray[np.str_]


@dataclass(frozen=True)
class PlaintextCase(Case):
    """One seed's plaintext beside its truth."""

    NODES = "nodes"

    @cached_property
    def node_clients(self) -> list[str]:
        """The client behind each node; one that only evaluates may be nobody's in the truth, and goes by its node."""
        return [self.truth.nodes.get(node, f"node {node}") for node in self.scores.facts[self.NODES]]

    @cached_property
    def examples(self) -> _KnownExamples | None:
        """What vectors are compared with; ``None`` where no example of one array is known with its holder."""
        answers = self.truth.answers.get(THREAT)
        if answers is not None:
            return _checked(answers, self.seed)
        targets = self.knowledge.targets
        if targets is None or fields(targets.x) or len(targets) != len(self.truth.owners):
            return None
        rows, owners = self._list_holders()
        if not {*owners} - {NOBODY}:
            return None
        return _KnownExamples(np.asarray(targets.x[rows]).reshape(len(rows), -1), np.array(owners))

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
    def vectors(self) -> list[tuple[str, str, NDArray[np.float64]]]:
        """For each vector the client that sent it, its name, and its numbers."""
        entries, numbers = self.scores.facts["vectors"], self.scores.arrays["numbers"]
        whose = self.scores.arrays["whose"]
        ends = np.cumsum([entry["length"] for entry in entries], dtype=np.int64)
        total = ends[-1] if len(ends) else 0
        if len(numbers) != total or (whose >= len(self.node_clients)).any():
            raise DataError(f"seed {self.seed}: the vectors of the scores do not fit their numbers; attack again")
        found = []
        for entry, end, node in zip(entries, ends.tolist(), whose.tolist(), strict=True):
            found.append((self.node_clients[node], entry["name"], numbers[end - entry["length"] : end]))
        return found

    @cached_property
    def candidates(self) -> list[tuple[str, str, NDArray[np.float64]]]:
        """The vectors, and parts of vectors, that are as long as an example and not the same throughout."""
        if self.examples is None:
            return []
        found = []
        for client, name, vector in self.vectors:
            for part in parts_of(vector, self.examples.x.shape[1]):
                if np.ptp(part) > 0:
                    found.append((client, name, part))
        return found

    @cached_property
    def senders(self) -> list[str]:
        """The clients of the candidates, in the order of the clients."""
        senders = {client for client, _, _ in self.candidates}
        return [client for client in self.clients if client in senders]

    @cached_property
    def nearest(self) -> list[tuple[str, str, dict[str, float], float]]:
        """For each candidate its client, its name, whose example is nearest with shares, and how alike they are."""
        examples = self.examples
        if examples is None or not self.candidates:
            return []
        alike = likeness(np.stack([part for _, _, part in self.candidates]), examples.x)
        found = []
        for (client, name, _), row in zip(self.candidates, alike, strict=True):
            best = float(row.max())
            holders = sorted({*examples.owners[row >= best - 1e-6].tolist()})
            found.append((client, name, dict.fromkeys(holders, 1 / len(holders)), best))
        return found

    def shares(self, asked: str) -> NDArray[np.float64]:
        """(senders, senders): of one's candidates of a name the share whose nearest example is held by another."""
        places = {client: place for place, client in enumerate(self.senders)}
        sums, counts = np.zeros((len(places), len(places))), np.zeros(len(places))
        for client, name, holders, _ in self.nearest:
            if name != asked:
                continue
            counts[places[client]] += 1
            for holder, share in holders.items():
                if holder in places:
                    sums[places[client], places[holder]] += share
        return np.asarray(sums / np.maximum(counts, 1)[:, None])


def _checked(answers: Mapping[str, NDArray[Any]], seed: int) -> _KnownExamples:
    x, owners = answers.get("x"), answers.get("owners")
    if (
        x is None
        or owners is None
        or x.ndim != 2
        or x.dtype.kind != "f"
        or owners.dtype.kind != "U"
        or owners.shape != x.shape[:1]
        or not len(x)
        or not np.isfinite(x).all()
    ):
        raise DataError(
            f"seed {seed}: the truth's answer {THREAT!r}: expected x (n, size) of numbers and owners (n,) of names; "
            "write it again"
        )
    return _KnownExamples(np.asarray(x, dtype=np.float32), owners)


def nearest_of(cases: Sequence[PlaintextCase]) -> Nearest:
    """Put the vectors of all seeds together, by their names."""
    names: set[str] = set()
    for case in cases:
        names.update(name for _, name, *_ in case.nearest)
    shares: dict[str, tuple[NDArray[np.float64], ...]] = {}
    for name in sorted(names):
        shares[name] = tuple(case.shares(name) for case in cases)
    return Nearest(shares)


class PlaintextJudge(Judge[PlaintextCase]):
    """States of how many vectors beside the model the nearest known example is one that the client trained on.

    The finding is ``own-examples``, the mean over clients that send as many numbers as an example has, of the name
    whose vectors tell most. Its test exchanges who is who among these, and chooses the name anew each time.
    """

    case = PlaintextCase
    headline = "own-examples"
    notes = (
        "The null of plaintext.own-examples is the same vectors beside other clients' examples. What else stands in "
        "plaintext is listed, and not tested.",
    )

    def findings(self) -> list[Finding]:
        """State the one finding."""
        keys = [dict(key) for key in self.cases[0].scores.facts["keys"]]
        series: dict[str, Any] = {"beside": keys} if keys else {}
        if not any(case.vectors for case in self.cases):
            return [self._nothing("no reply holds a list or a family of numbers that could be an example", series)]
        if any(case.vectors and case.examples is None for case in self.cases):
            reason = (
                "replies hold lists or families of numbers, and no example of one array of numbers is known of a client"
            )
            return [self.unmeasured(self.headline, _LABEL, reason, headline=True, series=series)]
        cases = [case for case in self.cases if case.senders]
        if not cases:
            sizes = ", ".join(map(str, self._list_sizes()))
            reason = f"no list or family of numbers is as long as an example ({sizes} numbers)"
            return [self._nothing(reason, series)]
        return [self._found(cases, series)]

    def _list_sizes(self) -> list[int]:
        """Return the sizes of the known examples of all seeds."""
        sizes: set[int] = set()
        for case in self.cases:
            if case.examples is not None:
                sizes.add(case.examples.x.shape[1])
        return sorted(sizes)

    def _nothing(self, reason: str, series: Mapping[str, Any]) -> Finding:
        n = [len(case.clients) for case in self.cases]
        low, high = rate_interval([0.0] * len(n), n) if all(n) else (None, None)
        return self.finding(
            self.headline,
            _LABEL,
            value=0.0,
            low=low,
            high=high,
            n=sum(n),
            verdict=NO_EVIDENCE,
            reason=reason,
            headline=True,
            series=series,
        )

    def _found(self, cases: list[PlaintextCase], series: dict[str, Any]) -> Finding:
        found = nearest_of(cases)
        shares = found.shares[found.best]
        sums = [float(np.diagonal(share).sum()) for share in shares]
        n = [len(share) for share in shares]
        null = found.draw(np.random.default_rng((cases[0].seed, _SHUFFLING)), _SHUFFLES)
        series["vectors"] = self._vectors(cases)
        return self.judged(
            self.headline,
            _LABEL,
            rate_interval(sums, n, comparisons=len(found.shares)),
            null_of(null.tolist(), sum(n)),
            "the null is the same vectors beside other clients' examples",
            value=float(found.own(found.best).mean()),
            n=sum(n),
            chance=float(null.mean()),
            test=found.test(np.random.default_rng((cases[0].seed, _TESTING))),
            here=here_of(sums, n),
            headline=True,
            series=series,
            **over_seeds([total / count for total, count in zip(sums, n, strict=True)]),
        )

    @staticmethod
    def _vectors(cases: list[PlaintextCase]) -> list[dict[str, Any]]:
        """Count by name how many candidates are nearest to an own example, and how many are one."""
        rows: dict[str, dict[str, Any]] = {}
        for case in cases:
            for client, name, holders, best in case.nearest:
                row = rows.setdefault(name, {"name": name, "vectors": 0, "own": 0.0, "equal": 0})
                row["vectors"] += 1
                row["own"] += holders.get(client, 0.0)
                row["equal"] += client in holders and best >= EQUAL
        return [*rows.values()]

    def listings(self) -> Iterator[Listing]:
        """List the clients, and every vector that is as long as an example."""
        yield Listing(
            "clients",
            "one row for each client that sends as many numbers as an example has, of the name that tells most",
            ("seed", "client", "name", "vectors", "nearest to an own example"),
            self._by_client(),
        )
        yield Listing(
            "vectors",
            "one row for each vector that is as long as an example",
            ("seed", "client", "name", "nearest to an example of", "own", "likeness"),
            self._each(),
        )

    def _by_client(self) -> Iterator[tuple[Cell, ...]]:
        cases = [case for case in self.cases if case.senders]
        if not cases:
            return
        best = nearest_of(cases).best
        for case in cases:
            sent = [(client, name) for client, name, *_ in case.nearest]
            for client, share in zip(case.senders, np.diagonal(case.shares(best)), strict=True):
                yield case.seed, client, best, sent.count((client, best)), float(share)

    def _each(self) -> Iterator[tuple[Cell, ...]]:
        for case in self.cases:
            for client, name, holders, best in case.nearest:
                whose = " | ".join(holder or "nobody" for holder in holders)
                yield case.seed, client, name, whose, holders.get(client, 0.0), best
