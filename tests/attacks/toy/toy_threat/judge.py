"""The judge: was the client with the most examples named?"""

from collections.abc import Iterator

import numpy as np

from fedattack.audit.judge import Case, Judge
from fedattack.audit.measures import Measurement, Rate, measure
from fedattack.audit.significance import significance_of
from fedattack.audit.table import Row, rows_of
from toy_threat.attack import UpdateNorms
from toy_threat.tables import CLIENTS


def count_examples(case: Case[UpdateNorms]) -> dict[str, int]:
    """Count the examples of each client."""
    sizes = case.truth.counts.sum(axis=1)
    if "toy" in case.truth.answers:
        sizes = case.truth.answers["toy"]["sizes"]
    return dict(zip(case.truth.clients, sizes.tolist(), strict=True))


def name_loudest(case: Case[UpdateNorms]) -> str:
    """Name the client whose updates are the largest."""
    return case.node_clients[int(np.argmax(case.found.norms))]


class ToyJudge(Judge[Case[UpdateNorms]]):
    """States in how many seeds the largest client was named."""

    notes = ("A toy: one answer a seed.",)

    @measure("named", "Largest client named", headline=True)
    def name_largest(self) -> Measurement:
        """State it."""
        hits, shares = [], []
        for case in self.cases:
            held = count_examples(case)
            loudest = name_loudest(case)
            hits.append(float(held[loudest] == max(held.values())))
            shares.append(sum(size == max(held.values()) for size in held.values()) / len(held))

        def guess(rng: np.random.Generator, count: int) -> np.ndarray:
            return (rng.random((count, len(shares))) < shares).sum(axis=1)

        how, ways = "any client named in each run", float(np.prod(np.divide(1, shares)))
        rate = Rate(hits, [1] * len(hits))
        return rate.measured(
            "one answer a seed",
            test=significance_of(sum(hits), guess, self.rng(), how, arrangements=ways),
            chance=float(np.mean(shares)),
            series=self.show(CLIENTS),
            by_seed=rate.by_seed,
        )

    @rows_of(CLIENTS)
    def list_clients(self, case: Case[UpdateNorms]) -> Iterator[Row]:
        """List how many examples each client holds, and who was named."""
        loudest = name_loudest(case)
        for client, examples in count_examples(case).items():
            yield {"client": client, "records": examples, "named": client == loudest}
