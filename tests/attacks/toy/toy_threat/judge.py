"""The judge: was the client with the most examples named?"""

import numpy as np

from fedattack.audit.judge import Case, Judge
from fedattack.audit.measures import Measurement, Rate, measure
from fedattack.audit.significance import significance_of


class ToyJudge(Judge[Case]):
    """States in how many seeds the largest client was named."""

    notes = ("A toy: one answer a seed.",)

    @measure("named", "Largest client named", headline=True)
    def name_largest(self) -> Measurement:
        """State it."""
        hits, shares, named = [], [], []
        for case in self.cases:
            sizes = case.truth.counts.sum(axis=1)
            if "toy" in case.truth.answers:
                sizes = case.truth.answers["toy"]["sizes"]
            held = dict(zip(case.truth.clients, sizes.tolist(), strict=True))
            loudest = case.node_clients[int(np.argmax(case.scores.arrays["norms"]))]
            hits.append(float(held[loudest] == max(held.values())))
            shares.append(sum(size == max(held.values()) for size in held.values()) / len(held))
            named.append({"client": loudest, "records": held[loudest]})

        def guess(rng: np.random.Generator, count: int) -> np.ndarray:
            return (rng.random((count, len(shares))) < shares).sum(axis=1)

        how, ways = "any client named in each run", float(np.prod(np.divide(1, shares)))
        rate = Rate(hits, [1] * len(hits))
        return rate.measured(
            "one answer a seed",
            test=significance_of(sum(hits), guess, self.rng(), how, arrangements=ways),
            chance=float(np.mean(shares)),
            series={"named": named},
            by_seed=rate.by_seed,
        )
