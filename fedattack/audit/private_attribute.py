"""Judge the inference of clients' private attributes: how often right, by adversary and round.

A client of several rounds counts once, with the share of its rounds in which the adversary was right: its records are
the same in all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import ATTACKS, Scores
from fedattack.attacks.private_attribute import ADAPTIVE
from fedattack.audit.finding import Finding, verdict
from fedattack.audit.intervals import rate_interval
from fedattack.audit.summaries import null_of, reliability
from fedattack.audit.truth import Truth
from fedattack.errors import DataError

MAJORITY = "the commonest value"

_WORDS = {
    "stru-nn": "a network of known structure",
    "unkwn-nn": "a network of unknown structure",
    "svm": "an SVM",
    "random-forest": "a random forest",
}

_LEVEL = 0.95
_SHUFFLES = 200
_SHUFFLING = 1


@dataclass(frozen=True)
class PrivateCase:
    """One seed's scores beside its truth.

    Attributes
    ----------
    seed
        Seed of the run.
    scores
        Of the attack ``private-attribute``.
    truth
        With the clients' private attributes.

    Raises
    ------
    DataError
        If the truth lacks an attribute or a client of the scores, or has other values.
    """

    seed: int
    scores: Scores
    truth: Truth

    def __post_init__(self) -> None:
        for name, values in self.scores.facts["attributes"].items():
            held = self.truth.private.get(name)
            if held is None or [*held.names] != values:
                raise DataError(
                    f"seed {self.seed}: the scores are about {name!r} with the values {', '.join(values)}, the truth "
                    f"has {'none' if held is None else ', '.join(held.names)}; attack again, or mend truth/private.json"
                )
        self.truth.check_nodes(self.scores.facts["nodes"], seed=self.seed, where="scores")

    @cached_property
    def nodes(self) -> dict[str, list[int]]:
        """By client, the places of its nodes in the scores; one that was restarted may have several."""
        places: dict[str, list[int]] = {}
        for place, node in enumerate(self.scores.facts["nodes"]):
            places.setdefault(self.truth.nodes[node], []).append(place)
        return places

    def beliefs(self, name: str, adversary: str) -> NDArray[np.float64]:
        """Return what an adversary believes of an attribute, (rounds, nodes, values)."""
        line = self.scores.facts["adversaries"].index(adversary)
        return np.asarray(self.scores.arrays[f"beliefs-{name}"][line])

    def held(self, name: str) -> NDArray[np.int64]:
        """Return the true value of each client of :attr:`nodes`, (clients,)."""
        codes = dict(zip(self.truth.clients, self.truth.private[name].values, strict=True))
        return np.array([codes[client] for client in self.nodes], dtype=np.int64)

    def held_by_node(self, name: str) -> NDArray[np.int64]:
        """Return the true value of each node's client, (nodes,)."""
        held = np.empty(len(self.scores.facts["nodes"]), dtype=np.int64)
        for places, value in zip(self.nodes.values(), self.held(name), strict=True):
            held[places] = value
        return held

    def shares(self, name: str, adversary: str) -> NDArray[np.float64]:
        """Return in which share of a client's replies an adversary names each value, (clients, values)."""
        beliefs = self.beliefs(name, adversary)
        by_value = [credits_of(beliefs, np.full(beliefs.shape[1], value)) for value in range(beliefs.shape[2])]
        return np.array(
            [[np.nanmean(credit[:, places]) for credit in by_value] for places in self.nodes.values()],
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


def judge_private(
    cases: Sequence[PrivateCase], *, setting: dict[str, Any], provenance: dict[str, Any]
) -> list[Finding]:
    """State how often each adversary names each private attribute of a client.

    Parameters
    ----------
    cases
        One per seed.
    setting, provenance
        Put into every finding.

    Returns
    -------
    list of Finding
        ``ATTRIBUTE-ADVERSARY`` for every pair; that of the first of both is the headline, of adaptive adversaries where
        there are any.
    """
    facts = cases[0].scores.facts
    if any(case.scores.facts["adversaries"] != facts["adversaries"] for case in cases):
        raise DataError("seeds were attacked by different adversaries; attack the whole run folder again")
    adaptive = [name for name in facts["adversaries"] if name.endswith(ADAPTIVE)]
    first = (next(iter(facts["attributes"])), (adaptive or facts["adversaries"])[0])
    found = [
        _finding(cases, name, adversary, headline=(name, adversary) == first, setting=setting, provenance=provenance)
        for name in facts["attributes"]
        for adversary in facts["adversaries"]
    ]
    return sorted(found, key=lambda finding: not finding.headline)


def _finding(
    cases: Sequence[PrivateCase],
    name: str,
    adversary: str,
    *,
    headline: bool,
    setting: dict[str, Any],
    provenance: dict[str, Any],
) -> Finding:
    attack = ATTACKS[cases[0].scores.attack]
    values = cases[0].scores.facts["attributes"][name]
    credit = [credits_of(case.beliefs(name, adversary), case.held_by_node(name)) for case in cases]
    shares, helds = [case.shares(name, adversary) for case in cases], [case.held(name) for case in cases]
    hits = [_named(share, held) for share, held in zip(shares, helds, strict=True)]
    n = [len(own) for own in hits]
    value = float(sum(map(sum, hits)) / sum(n))
    low, high = rate_interval([float(own.sum()) for own in hits], n, _LEVEL)
    seeds = [case.seed for case in cases]
    null = null_of(_shuffled(seeds, shares, helds), sum(n), _LEVEL)
    commonest = fmean(float(np.bincount(held).max() / len(held)) for held in helds)
    found, reason = verdict(value, low, 1 / len(values), null["high"], {MAJORITY: commonest})
    rates = [float(own.mean()) for own in hits]
    sure = np.concatenate([case.beliefs(name, adversary).max(axis=-1).ravel() for case in cases])
    right = np.concatenate([own.ravel() for own in credit])
    seen = ~np.isnan(right)
    return Finding(
        attack=attack.name,
        metric=f"{_metric(name)}-{adversary}",
        label=f"{name.capitalize()} named by {_in_words(adversary)}",
        view="individual",
        value=value,
        low=low,
        high=high,
        n=sum(n),
        seeds=seeds,
        verdict=found,
        reason=reason,
        level=_LEVEL,
        chance=1 / len(values),
        null=null,
        baselines={MAJORITY: commonest},
        headline=headline,
        seed_mean=fmean(rates),
        seed_sd=stdev(rates) if len(rates) > 1 else None,
        series={
            "per_round": _per_round(cases, credit),
            "confusion": {"values": values, "counts": _confusion(cases, name, adversary)},
            "reliability": reliability(sure[seen], right[seen]),
        },
        setting=setting,
        provenance=provenance,
        paper=attack.paper,
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


def _per_round(cases: Sequence[PrivateCase], credit: Sequence[NDArray[np.float64]]) -> dict[str, Any]:
    rounds = cases[0].scores.facts["rounds"]
    series: dict[str, list[Any]] = {"rounds": rounds, "value": [], "low": [], "high": []}
    for place in range(len(rounds)):
        own = [rates[place][~np.isnan(rates[place])] for rates in credit]
        low, high = rate_interval([float(part.sum()) for part in own], [len(part) for part in own], _LEVEL)
        series["value"].append(float(np.concatenate(own).mean()))
        series["low"].append(low)
        series["high"].append(high)
    return series


def _confusion(cases: Sequence[PrivateCase], name: str, adversary: str) -> list[list[int]]:
    """Count decisions (columns) of clients' values (rows) over all rounds."""
    size = len(cases[0].scores.facts["attributes"][name])
    counts = np.zeros((size, size), dtype=np.int64)
    for case in cases:
        beliefs = case.beliefs(name, adversary)
        held = np.broadcast_to(case.held_by_node(name), beliefs.shape[:2])
        seen = ~np.isnan(beliefs).any(axis=-1)
        np.add.at(counts, (held[seen], beliefs[seen].argmax(axis=-1)), 1)
    return [[int(count) for count in row] for row in counts]


def _metric(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())


def _in_words(adversary: str) -> str:
    plain = adversary.removesuffix(ADAPTIVE)
    words = _WORDS.get(plain, plain)
    return f"{words} (adaptive)" if plain != adversary else words
