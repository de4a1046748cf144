"""One seed's plaintext beside the examples that clients hold: what could be an example, and whose is nearest."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.judge import Case
from fedattack.audit.truth import NOBODY, SEVERAL, has_examples
from fedattack.base.errors import DataError
from fedattack.base.structured import fields, finite
from fedattack.threats.plaintext.values import likeness, parts_of

THREAT = "plaintext"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class KnownExamples:
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
    def examples(self) -> KnownExamples | None:
        """What vectors are compared with; ``None`` where no example of one array is known with its holder."""
        answers = self.truth.answers.get(THREAT)
        if answers is not None:
            if not has_examples(answers) or not len(answers["x"]):
                raise DataError(
                    f"seed {self.seed}: the truth's answer {THREAT!r}: expected x (n, size) of numbers and owners (n,) "
                    "of names; write it again"
                )
            return KnownExamples(answers["x"].astype(np.float32), answers["owners"])
        targets = self.knowledge.targets
        if targets is None or fields(targets.x) or len(targets) != len(self.truth.owners):
            return None
        rows, owners = self._list_holders()
        x = np.asarray(targets.x[rows]).reshape(len(rows), -1)
        comparable = finite(x)
        known = KnownExamples(x[comparable], np.array(owners)[comparable])
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
