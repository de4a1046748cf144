"""Judge the inference of clients' private attributes: how often right, by adversary and round.

A client of several rounds counts once, with the share of its rounds in which the adversary was right: its records are
the same in all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import Finding, verdict
from fedattack.audit.intervals import rate_interval
from fedattack.audit.judge import Case, Judge, over_seeds
from fedattack.audit.summaries import null_of, reliability
from fedattack.errors import DataError
from fedattack.threats import Scores
from fedattack.threats.threat import ADAPTIVE

MAJORITY = "the commonest value"

_WORDS = {
    "stru-nn": "a network of known structure",
    "unkwn-nn": "a network of unknown structure",
    "svm": "an SVM",
    "random-forest": "a random forest",
}

_SHUFFLES = 200
_SHUFFLING = 1


@dataclass(frozen=True)
class PrivateAttributeCase(Case):
    """One seed's scores beside its truth, which must have their attributes and clients."""

    NODES = "nodes"

    def __post_init__(self) -> None:
        for name, values in self.scores.facts["attributes"].items():
            held = self.truth.private.get(name)
            if held is None or [*held.names] != values:
                raise DataError(
                    f"seed {self.seed}: the scores are about {name!r} with the values {', '.join(values)}, the truth "
                    f"has {'none' if held is None else ', '.join(held.names)}; attack again, or mend truth/private.json"
                )
        self.truth.check_nodes(self.scores.facts["nodes"], seed=self.seed, where="scores")

    def beliefs(self, name: str, adversary: str) -> NDArray[np.float64]:
        """Return what an adversary believes of an attribute, (rounds, nodes, values)."""
        line = self.scores.facts["adversaries"].index(adversary)
        return np.asarray(self.scores.arrays[f"beliefs-{name}"][line])

    def held(self, name: str) -> NDArray[np.int64]:
        """Return the true value of each client, (clients,)."""
        codes = dict(zip(self.truth.clients, self.truth.private[name].values, strict=True))
        return np.array([codes[client] for client in self.clients], dtype=np.int64)

    def held_by_node(self, name: str) -> NDArray[np.int64]:
        """Return the true value of each node's client, (nodes,)."""
        values = dict(zip(self.clients, self.held(name), strict=True))
        return np.array([values[client] for client in self.node_clients], dtype=np.int64)

    def shares(self, name: str, adversary: str) -> NDArray[np.float64]:
        """Return in which share of a client's replies an adversary names each value, (clients, values)."""
        beliefs = self.beliefs(name, adversary)
        by_value = [credits_of(beliefs, np.full(beliefs.shape[1], value)) for value in range(beliefs.shape[2])]
        return np.array(
            [[np.nanmean(credit[:, self.columns(client)]) for credit in by_value] for client in self.clients],
        )


def credits_of(beliefs: NDArray[np.float64], held: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return whether each decision is right, 1/m where m values tie for the largest belief, NaN without one.

    Parameters
    ----------
    beliefs
        (rounds, nodes, values).
    held
        (nodes,).

    Returns
    -------
    ndarray
        (rounds, nodes).
    """
    best = beliefs == beliefs.max(axis=-1, keepdims=True)
    right = np.take_along_axis(best, held[None, :, None], axis=-1)[..., 0]
    return np.where(np.isnan(beliefs).any(axis=-1), np.nan, right / np.maximum(best.sum(axis=-1), 1))


class PrivateAttributeJudge(Judge[PrivateAttributeCase]):
    """States how often each adversary names each private attribute of a client.

    Its findings are ``ATTRIBUTE-ADVERSARY`` for every pair; that of the first of both is the headline, of adaptive
    adversaries where there are any.
    """

    case = PrivateAttributeCase
    notes = (
        "The null of private-attribute's findings is the same decisions against a shuffled truth. A static adversary "
        "knows nothing of a defence; an adaptive one trained on updates that it defended itself.",
    )

    @classmethod
    def headline_of(cls, scores: Scores) -> str:
        """Name the metric of the first attribute, of the first adaptive adversary if there is one."""
        adversaries: list[str] = scores.facts["adversaries"]
        adaptive = [name for name in adversaries if name.endswith(ADAPTIVE)]
        return _metric(next(iter(scores.facts["attributes"])), (adaptive or adversaries)[0])

    def findings(self) -> list[Finding]:
        """State all pairs, the headline first."""
        facts = self.cases[0].scores.facts
        if any(case.scores.facts["adversaries"] != facts["adversaries"] for case in self.cases):
            raise DataError("seeds were attacked by different adversaries; attack the whole run folder again")
        findings = [self._pair(name, adversary) for name in facts["attributes"] for adversary in facts["adversaries"]]
        return sorted(findings, key=lambda finding: not finding.headline)

    def _pair(self, name: str, adversary: str) -> Finding:
        cases, scores = self.cases, self.cases[0].scores
        values = scores.facts["attributes"][name]
        credit = [credits_of(case.beliefs(name, adversary), case.held_by_node(name)) for case in cases]
        shares, helds = [case.shares(name, adversary) for case in cases], [case.held(name) for case in cases]
        hits = [_named(share, held) for share, held in zip(shares, helds, strict=True)]
        n = [len(of_seed) for of_seed in hits]
        value = float(sum(map(sum, hits)) / sum(n))
        low, high = rate_interval([float(of_seed.sum()) for of_seed in hits], n)
        null = null_of(_shuffled([case.seed for case in cases], shares, helds), sum(n))
        commonest = fmean(float(np.bincount(held).max() / len(held)) for held in helds)
        verdict_, reason = verdict(value, low, 1 / len(values), null["high"], {MAJORITY: commonest})
        sure = np.concatenate([case.beliefs(name, adversary).max(axis=-1).ravel() for case in cases])
        right = np.concatenate([of_seed.ravel() for of_seed in credit])
        seen = ~np.isnan(right)
        metric = _metric(name, adversary)
        return self.finding(
            metric,
            f"{name.capitalize()} named by {_in_words(adversary)}",
            value=value,
            low=low,
            high=high,
            n=sum(n),
            verdict=verdict_,
            reason=reason,
            chance=1 / len(values),
            null=null,
            baselines={MAJORITY: commonest},
            headline=metric == self.headline_of(scores),
            series={
                "per_round": _per_round(cases, credit),
                "confusion": {"values": values, "counts": _confusion(cases, name, adversary)},
                "reliability": reliability(sure[seen], right[seen]),
            },
            **over_seeds([float(of_seed.mean()) for of_seed in hits]),
        )


def _named(shares: NDArray[np.float64], held: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return in which share of a client's replies its value is named, (clients,)."""
    return np.asarray(shares[np.arange(len(held)), held])


def _shuffled(
    seeds: Sequence[int], shares: Sequence[NDArray[np.float64]], helds: Sequence[NDArray[np.int64]]
) -> list[float]:
    """Hold the same decisions against the values of other clients, drawn anew each time."""
    draws = []
    for index in range(_SHUFFLES):
        hits: list[float] = []
        for seed, share, held in zip(seeds, shares, helds, strict=True):
            hits += _named(share, np.random.default_rng((seed, _SHUFFLING, index)).permutation(held)).tolist()
        draws.append(fmean(hits))
    return draws


def _per_round(cases: Sequence[PrivateAttributeCase], credit: Sequence[NDArray[np.float64]]) -> dict[str, Any]:
    rounds = cases[0].scores.facts["rounds"]
    series: dict[str, list[Any]] = {"rounds": rounds, "value": [], "low": [], "high": []}
    for place in range(len(rounds)):
        own = [rates[place][~np.isnan(rates[place])] for rates in credit]
        low, high = rate_interval([float(part.sum()) for part in own], [len(part) for part in own])
        series["value"].append(float(np.concatenate(own).mean()))
        series["low"].append(low)
        series["high"].append(high)
    return series


def _confusion(cases: Sequence[PrivateAttributeCase], name: str, adversary: str) -> list[list[int]]:
    """Count decisions (columns) of clients' values (rows) over all rounds."""
    size = len(cases[0].scores.facts["attributes"][name])
    counts = np.zeros((size, size), dtype=np.int64)
    for case in cases:
        beliefs = case.beliefs(name, adversary)
        held = np.broadcast_to(case.held_by_node(name), beliefs.shape[:2])
        seen = ~np.isnan(beliefs).any(axis=-1)
        np.add.at(counts, (held[seen], beliefs[seen].argmax(axis=-1)), 1)
    return [[int(count) for count in row] for row in counts]


def _metric(name: str, adversary: str) -> str:
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
    return f"{plain}-{adversary}"


def _in_words(adversary: str) -> str:
    plain = adversary.removesuffix(ADAPTIVE)
    words = _WORDS.get(plain, plain)
    return f"{words} (adaptive)" if plain != adversary else words
