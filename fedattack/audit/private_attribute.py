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
        unknown = [node for node in self.scores.facts["nodes"] if node not in self.truth.nodes]
        if unknown:
            raise DataError(
                f"node {unknown[0]} is in the scores but not in the truth (seed {self.seed}); expected a file of its "
                "name in truth/nodes, which its client writes when it first trains"
            )

    @cached_property
    def clients(self) -> list[str]:
        """The clients behind the scores' nodes; one that was restarted may be there several times."""
        return [self.truth.nodes[node] for node in self.scores.facts["nodes"]]

    def beliefs(self, name: str, adversary: str) -> NDArray[np.float64]:
        """Return what an adversary believes of an attribute, (rounds, nodes, values)."""
        line = self.scores.facts["adversaries"].index(adversary)
        return np.asarray(self.scores.arrays[f"beliefs-{name}"][line])

    def held(self, name: str) -> NDArray[np.int64]:
        """Return the true value of each node's client, (nodes,)."""
        place = {client: index for index, client in enumerate(self.truth.clients)}
        codes = self.truth.private[name].values
        return np.array([codes[place[client]] for client in self.clients], dtype=np.int64)


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
    credit = [credits_of(case.beliefs(name, adversary), case.held(name)) for case in cases]
    hits = [_by_client(case, own) for case, own in zip(cases, credit, strict=True)]
    n = [len(own) for own in hits]
    value = float(sum(map(sum, hits)) / sum(n))
    low, high = rate_interval([float(own.sum()) for own in hits], n, _LEVEL)
    null = null_of(_shuffled(cases, name, adversary), sum(n), _LEVEL)
    commonest = fmean(
        float(np.bincount([case.held(name)[place] for place in _one_each(case)]).max() / count)
        for case, count in zip(cases, n, strict=True)
    )
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
        seeds=[case.seed for case in cases],
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


def _one_each(case: PrivateCase) -> list[int]:
    """Return a node of each client."""
    return [case.clients.index(client) for client in dict.fromkeys(case.clients)]


def _by_client(case: PrivateCase, credit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average the credit (rounds, nodes) of each client over its replies, (clients,)."""
    means = []
    for client in dict.fromkeys(case.clients):
        own = credit[:, [node for node, other in enumerate(case.clients) if other == client]]
        means.append(np.nanmean(own))
    return np.array(means)


def _shuffled(cases: Sequence[PrivateCase], name: str, adversary: str) -> list[float]:
    """Hold the same decisions against the values of other clients, drawn anew each time."""
    draws = []
    for index in range(_SHUFFLES):
        hits: list[float] = []
        for case in cases:
            rng = np.random.default_rng((case.seed, _SHUFFLING, index))
            clients = [*dict.fromkeys(case.clients)]
            dealt = dict(zip(clients, rng.permutation(case.held(name)[_one_each(case)]), strict=True))
            held = np.array([dealt[client] for client in case.clients], dtype=np.int64)
            hits += _by_client(case, credits_of(case.beliefs(name, adversary), held)).tolist()
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
        held = np.broadcast_to(case.held(name), beliefs.shape[:2])
        seen = ~np.isnan(beliefs).any(axis=-1)
        np.add.at(counts, (held[seen], beliefs[seen].argmax(axis=-1)), 1)
    return [[int(count) for count in row] for row in counts]


def _metric(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())


def _in_words(adversary: str) -> str:
    plain = adversary.removesuffix(ADAPTIVE)
    words = _WORDS.get(plain, plain)
    return f"{words} (adaptive)" if plain != adversary else words
