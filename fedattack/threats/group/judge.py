"""Judge the inference of clients' private attributes: how often right, by adversary and round.

A client of several rounds counts once, with the share of its rounds in which the adversary was right: its examples are
the same in all of them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product, starmap
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Scores
from fedattack.attacks.threat import ADAPTIVE
from fedattack.audit.finding import Finding
from fedattack.audit.intervals import here_of, rate_interval
from fedattack.audit.judge import Case, Judge, over_seeds
from fedattack.audit.listing import Cell, Listing, several
from fedattack.audit.reach import Prepared, Reach, smallest
from fedattack.audit.significance import (
    DRAWS,
    Significance,
    arrangements_within,
    exchange_within,
    least_p,
    significance_of,
)
from fedattack.audit.summaries import null_of, reliability
from fedattack.base.errors import DataError

MAJORITY = "the commonest value"

_WORDS = {
    "stru-nn": "a network of known structure",
    "unkwn-nn": "a network of unknown structure",
    "svm": "an SVM",
    "random-forest": "a random forest",
}

# Streams of random numbers, apart from each other.
_SHUFFLING, _TESTING = 1, 2

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class PrivateAttributeCase(Case):
    """One seed's scores beside its truth, which must have their attributes and clients."""

    NODES = "nodes"

    def __post_init__(self) -> None:
        for name, values in self.scores.facts["attributes"].items():
            held = self.truth.private.get(name)
            if held is None or [*held.names] != values:
                true = "none" if held is None else ", ".join(held.names)
                raise DataError(
                    f"seed {self.seed}: the scores are about {name!r} with the values {', '.join(values)}, the truth "
                    f"has {true}; attack again, or mend truth/private.json"
                )
        self.truth.check_nodes(self.scores.facts["nodes"], seed=self.seed, where="scores")

    def beliefs(self, name: str, adversary: str) -> NDArray[np.float64]:
        """Return what an adversary believes of an attribute, (rounds, nodes, values)."""
        line = self.scores.facts["adversaries"].index(adversary)
        return np.asarray(self.scores.arrays[f"beliefs-{name}"][line])

    def held(self, name: str) -> NDArray[np.int64]:
        """Return the true value of each client, (clients,)."""
        return self._codes(name, self.clients)

    def held_by_node(self, name: str) -> NDArray[np.int64]:
        """Return the true value of each node's client, (nodes,)."""
        return self._codes(name, self.node_clients)

    def _codes(self, name: str, clients: Sequence[str]) -> NDArray[np.int64]:
        codes = dict(zip(self.truth.clients, self.truth.private[name].values, strict=True))
        return np.array([codes[client] for client in clients], dtype=np.int64)

    def shares(self, name: str, adversary: str) -> NDArray[np.float64]:
        """Return in which share of a client's replies an adversary names each value, (clients, values)."""
        beliefs = self.beliefs(name, adversary)
        _, nodes, values = beliefs.shape
        shares = np.empty((len(self.clients), values))
        for value in range(values):
            credit = credits_of(beliefs, np.full(nodes, value))
            shares[:, value] = [np.nanmean(credit[:, self.columns(client)]) for client in self.clients]
        return shares


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
    credit = right / np.maximum(best.sum(axis=-1), 1)
    return np.where(np.isnan(beliefs).any(axis=-1), np.nan, credit)


class PrivateAttributeJudge(Judge[PrivateAttributeCase]):
    """States how often each adversary names each private attribute of a client.

    Its findings are ``ATTRIBUTE-ADVERSARY`` for every pair; that of the first of both is the headline, of adaptive
    adversaries where there are any. Each is tested by exchanging the clients of a run: their values are dealt anew to
    the same decisions.
    """

    case = PrivateAttributeCase
    draws: ClassVar[int] = DRAWS
    """Exchanges that a test draws."""
    shuffles: ClassVar[int] = 1_000
    """Shuffled truths that a null is shown by."""
    notes = (
        "The null of private-attribute's findings is the same decisions against other clients' values. A static "
        "adversary knows nothing of a defence; an adaptive one trained on updates that it defended itself.",
    )

    @classmethod
    def headline_of(cls, scores: Scores) -> str:
        """Name the metric of the first attribute, of the first adaptive adversary if there is one."""
        adversaries: list[str] = scores.facts["adversaries"]
        adaptive = [name for name in adversaries if name.endswith(ADAPTIVE)]
        attribute = next(iter(scores.facts["attributes"]))
        return _metric(attribute, (adaptive or adversaries)[0])

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach | None:
        """Count the ways to deal the clients' values to the clients of a run."""
        held = [next(iter(run.truth.private.values()), None) for run in runs]
        known = [attribute for attribute in held if attribute is not None]
        if not known:
            return None
        values = np.concatenate([attribute.values for attribute in known])
        of_run = np.repeat(np.arange(len(known)), [len(attribute.values) for attribute in known])

        def fits(clients: int) -> bool:
            evenly = np.arange(clients) % len(known[0].names)
            return arrangements_within(np.zeros(clients, dtype=np.int64), evenly) * needed >= 1

        clients, kinds = len(known[0].values), len({*known[0].values})
        size = f"{clients} clients with {kinds} values among them"
        enough = smallest(fits)
        words = f"{enough} clients with {len(known[0].names)} values among them"
        return Reach(least_p(arrangements_within(of_run, values)), size, words, f"clients={enough}")

    def findings(self) -> list[Finding]:
        """State all pairs, the headline first."""
        facts = self.cases[0].scores.facts
        if any(case.scores.facts["adversaries"] != facts["adversaries"] for case in self.cases):
            raise DataError("seeds were attacked by different adversaries; attack the whole run folder again")
        findings = starmap(self._pair, product(facts["attributes"], facts["adversaries"]))
        return sorted(findings, key=lambda finding: not finding.headline)

    def listings(self) -> Iterator[Listing]:
        """List the clients, and every answer that was made of a reply."""
        yield Listing(
            "clients",
            "one row for each client, attribute and adversary; named rightly is the share of its replies",
            ("seed", "client", "attribute", "adversary", "has", "replies", "named rightly"),
            self._by_client(),
        )
        yield Listing(
            "replies",
            "one row for each reply, attribute and adversary; right is 1/m where m values are named alike",
            ("seed", "client", "round", "attribute", "adversary", "has", "named", "confidence", "right"),
            self._answers(),
        )

    def _asked(self) -> Iterator[tuple[PrivateAttributeCase, str, str]]:
        for case in self.cases:
            facts = case.scores.facts
            for name, adversary in product(facts["attributes"], facts["adversaries"]):
                yield case, name, adversary

    def _by_client(self) -> Iterator[tuple[Cell, ...]]:
        for case, name, adversary in self._asked():
            values = case.scores.facts["attributes"][name]
            replied = np.asarray(~np.isnan(case.beliefs(name, adversary)).any(axis=-1))
            held, shares = case.held(name), case.shares(name, adversary)
            for client, has, right in zip(case.clients, held, _named(shares, held), strict=True):
                replies = int(replied[:, case.columns(client)].sum())
                yield case.seed, client, name, adversary, values[has], replies, float(right)

    def _answers(self) -> Iterator[tuple[Cell, ...]]:
        for case, name, adversary in self._asked():
            facts, values = case.scores.facts, case.scores.facts["attributes"][name]
            beliefs, held = case.beliefs(name, adversary), case.held_by_node(name)
            credit = credits_of(beliefs, held)
            for line, column in np.argwhere(~np.isnan(credit)).tolist():
                belief = beliefs[line, column]
                named = [values[place] for place in np.flatnonzero(belief == belief.max())]
                yield (
                    case.seed,
                    case.node_clients[column],
                    facts["rounds"][line],
                    name,
                    adversary,
                    values[held[column]],
                    several(named),
                    float(belief.max()),
                    float(credit[line, column]),
                )

    def _pair(self, name: str, adversary: str) -> Finding:
        values = self.cases[0].scores.facts["attributes"][name]
        sure, credit, shares, truth, commonest = [], [], [], [], []
        sums, rates, n = [], [], []
        for case in self.cases:
            beliefs, held = case.beliefs(name, adversary), case.held(name)
            sure.append(beliefs.max(axis=-1).ravel())
            credit.append(credits_of(beliefs, case.held_by_node(name)))
            shares.append(case.shares(name, adversary))
            truth.append(held)
            commonest.append(float(np.bincount(held).max() / len(held)))
            hits = _named(shares[-1], held)
            sums.append(float(hits.sum()))
            rates.append(float(hits.mean()))
            n.append(len(hits))
        exchange = _Exchange(np.concatenate(shares), np.concatenate(truth), np.repeat(np.arange(len(n)), n))
        draw = np.random.default_rng((self.cases[0].seed, _SHUFFLING))
        baselines = {MAJORITY: fmean(commonest)}
        right = np.concatenate(list(map(np.ravel, credit)))
        replied = ~np.isnan(right)
        metric = _metric(name, adversary)
        return self.judged(
            metric,
            f"{name.capitalize()} named by {_in_words(adversary)}",
            rate_interval(sums, n),
            null_of(exchange.draw(draw, self.shuffles).tolist(), sum(n)),
            "the null is the same decisions against other clients' values",
            value=exchange.observed,
            n=sum(n),
            chance=1 / len(values),
            baselines=baselines,
            bars=baselines,
            test=exchange.test(np.random.default_rng((self.cases[0].seed, _TESTING)), self.draws),
            here=here_of(sums, n),
            headline=metric == self.headline_of(self.cases[0].scores),
            series={
                "per_round": self._per_round(credit),
                "confusion": {"values": values, "counts": self._confusion(name, adversary)},
                "reliability": reliability(np.concatenate(sure)[replied], right[replied]),
            },
            **over_seeds(rates),
        )

    def _per_round(self, credit: Sequence[NDArray[np.float64]]) -> dict[str, Any]:
        rounds = self.cases[0].scores.facts["rounds"]
        series: dict[str, list[Any]] = {"rounds": rounds, "value": [], "low": [], "high": []}
        for index in range(len(rounds)):
            of_round = [of_seed[index][~np.isnan(of_seed[index])] for of_seed in credit]
            low, high = rate_interval(list(map(np.sum, of_round)), list(map(len, of_round)))
            series["value"].append(float(np.concatenate(of_round).mean()))
            series["low"].append(low)
            series["high"].append(high)
        return series

    def _confusion(self, name: str, adversary: str) -> list[list[int]]:
        """Count decisions (columns) of clients' values (rows) over all rounds."""
        size = len(self.cases[0].scores.facts["attributes"][name])
        counts = np.zeros((size, size), dtype=np.int64)
        for case in self.cases:
            beliefs = case.beliefs(name, adversary)
            held = np.broadcast_to(case.held_by_node(name), beliefs.shape[:2])
            replied = ~np.isnan(beliefs).any(axis=-1)
            np.add.at(counts, (held[replied], beliefs[replied].argmax(axis=-1)), 1)
        confusion: list[list[int]] = counts.tolist()
        return confusion


@dataclass(frozen=True)
class _Exchange:
    """Holds decisions against the values of other clients of the same run.

    Attributes
    ----------
    shares
        (clients, values): in which share of a client's replies each value is named; clients of all runs.
    held
        (clients,): the true values.
    runs
        (clients,): in which run, 0 or more.
    """

    shares: Floats
    held: Rows
    runs: Rows

    @property
    def observed(self) -> float:
        """How often the values are named."""
        return float(_named(self.shares, self.held).mean())

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Return how often they are named in so many exchanges, (count,)."""
        exchanged = self.held[exchange_within(self.runs, rng, count)]
        return np.asarray(self.shares[np.arange(len(self.held)), exchanged].mean(axis=1))

    def test(self, rng: np.random.Generator, draws: int) -> Significance:
        """Say how likely so much is by accident."""
        return significance_of(
            self.observed,
            self.draw,
            rng,
            "the clients of each run exchanged",
            arrangements=arrangements_within(self.runs, self.held),
            draws=draws,
        )


def _named(shares: NDArray[np.float64], held: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return in which share of a client's replies its value is named, (clients,)."""
    return np.asarray(shares[np.arange(len(held)), held])


def _metric(name: str, adversary: str) -> str:
    plain = re.sub("[^a-z0-9]", "-", name.lower())
    return f"{plain}-{adversary}"


def _in_words(adversary: str) -> str:
    plain = adversary.removesuffix(ADAPTIVE)
    words = _WORDS.get(plain, plain)
    return f"{words} (adaptive)" if plain != adversary else words
