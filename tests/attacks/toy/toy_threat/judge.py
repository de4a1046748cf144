"""The judge: was the client with the most examples named?"""

import numpy as np

from fedattack.audit.finding import Finding
from fedattack.audit.intervals import rate_interval
from fedattack.audit.judge import Case, Judge, over_seeds
from fedattack.audit.significance import significance_of


class ToyJudge(Judge[Case]):
    """States in how many seeds the largest client was named."""

    headline = "named"
    notes = ("A toy: one answer a seed.",)

    def findings(self) -> list[Finding]:
        """State it."""
        hits, shares, named = [], [], []
        for case in self.cases:
            held = dict(zip(case.truth.clients, case.truth.counts.sum(axis=1).tolist(), strict=True))
            loudest = case.node_clients[int(np.argmax(case.scores.arrays["norms"]))]
            hits.append(float(held[loudest] == max(held.values())))
            shares.append(sum(size == max(held.values()) for size in held.values()) / len(held))
            named.append({"client": loudest, "records": held[loudest]})

        def guessed(rng: np.random.Generator, count: int) -> np.ndarray:
            return (rng.random((count, len(shares))) < shares).sum(axis=1)

        test = significance_of(
            sum(hits),
            guessed,
            np.random.default_rng(self.cases[0].seed),
            "any client named in each run",
            arrangements=float(np.prod(np.divide(1, shares))),
        )
        return [
            self.judged(
                "named",
                "Largest client named",
                rate_interval(hits, [1] * len(hits)),
                None,
                "one answer a seed",
                test=test,
                value=sum(hits) / len(hits),
                n=len(hits),
                chance=float(np.mean(shares)),
                headline=True,
                series={"named": named},
                **over_seeds(hits),
            )
        ]
