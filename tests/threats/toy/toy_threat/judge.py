"""The judge: was the client with the most examples named?"""

import numpy as np

from fedattack.audit.finding import Finding, verdict
from fedattack.audit.intervals import rate_interval
from fedattack.audit.judge import Case, Judge, over_seeds


class ToyJudge(Judge[Case]):
    """States in how many seeds the largest client was named."""

    headline = "named"
    notes = ("A toy: one answer a seed.",)

    def findings(self) -> list[Finding]:
        """State it."""
        hits, chance, sizes = [], [], []
        for case in self.cases:
            held = dict(zip(case.truth.clients, case.truth.counts.sum(axis=1).tolist(), strict=True))
            named = case.node_clients[int(np.argmax(case.scores.arrays["norms"]))]
            hits.append(float(held[named] == max(held.values())))
            chance.append(sum(size == max(held.values()) for size in held.values()) / len(held))
            sizes.append({"client": named, "records": held[named]})
        low, high = rate_interval(hits, [1] * len(hits))
        value = sum(hits) / len(hits)
        words, why = verdict(value, low, float(np.mean(chance)), high)
        return [
            self.finding(
                "named",
                "Largest client named",
                value=value,
                low=low,
                high=high,
                n=len(hits),
                chance=float(np.mean(chance)),
                verdict=words,
                reason=why,
                headline=True,
                series={"named": sizes},
                **over_seeds(hits),
            )
        ]
