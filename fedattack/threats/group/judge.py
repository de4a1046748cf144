"""Judge the inference of clients' private attributes: how often right, by adversary and round."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from fedattack.attacks import Scores
from fedattack.attacks.threat import ADAPTIVE
from fedattack.audit.judge import Judge
from fedattack.audit.listing import several
from fedattack.audit.measures import Measurement, Rate, measure
from fedattack.audit.reach import Prepared, Reach, smallest
from fedattack.audit.significance import (
    Significance,
    arrangements_within,
    exchange_within,
    least_p,
    significance_of,
)
from fedattack.audit.summaries import null_of, reliability
from fedattack.audit.table import Row, rows_of
from fedattack.base.errors import DataError
from fedattack.threats.group.case import Floats, PrivateAttributeCase, Rows
from fedattack.threats.group.options import ADVERSARIES
from fedattack.threats.group.private_attribute import AttributeBeliefs
from fedattack.threats.group.tables import CLIENTS, REPLIES

MAJORITY = "the commonest value"

_WORDS = {
    "stru-nn": "a network of known structure",
    "unkwn-nn": "a network of unknown structure",
    "svm": "an SVM",
    "random-forest": "a random forest",
}

# Streams of random numbers, apart from each other.
_SHUFFLING, _TESTING = 1, 2


class PrivateAttributeJudge(Judge[PrivateAttributeCase]):
    """States how often each adversary names each private attribute of a client.

    Its findings are ``ATTRIBUTE-ADVERSARY`` for every pair; that of the first of both is the headline, of adaptive
    adversaries where there are any. Each is tested by exchanging the clients of a run: their values are dealt anew to
    the same decisions.
    """

    case = PrivateAttributeCase
    notes = (
        "The null of private-attribute's findings compares the same decisions with other clients' values. A static "
        "adversary does not know of a defence; an adaptive one trained on updates that it defended itself.",
    )

    @measure("*-*")
    def name_values(self) -> Iterator[Measurement]:
        """Count for each attribute and adversary how often a client's value is named."""
        found = self.cases[0].found
        if any(self.each(lambda case: case.found.adversaries != found.adversaries)):
            raise DataError("seeds were attacked by different adversaries; attack the whole run folder again")
        for name, adversary in product(found.attributes, found.adversaries):
            yield self._name_values(name, adversary)

    def _name_values(self, name: str, adversary: str) -> Measurement:
        rate = Rate.of(self.each(lambda case: case.hits(name, adversary)))
        exchange = _ValueExchange(
            self.pool(lambda case: case.shares(name, adversary)),
            self.pool(lambda case: case.held(name)),
            np.repeat(np.arange(len(rate.sizes)), rate.sizes),
        )
        commonest = []
        for case in self.cases:
            held = case.held(name)
            commonest.append(float(np.bincount(held).max() / len(held)))
        baselines = {MAJORITY: fmean(commonest)}
        values = list(self.cases[0].found.attributes[name])
        return rate.measured(
            "the null compares the same decisions with other clients' values",
            metric=metric_of(name, adversary),
            label=f"{name.capitalize()} named by {_say_adversary(adversary)}",
            value=exchange.observed,
            null=null_of(exchange.draw(self.rng(_SHUFFLING), self.shuffles).tolist(), rate.n),
            chance=1 / len(values),
            baselines=baselines,
            bars=baselines,
            test=exchange.test(self.rng(_TESTING), self.draws),
            series={
                "per_round": self._per_round(name, adversary),
                "confusion": {"values": values, "counts": self._count_confusion(name, adversary)},
                "reliability": self._measure_reliability(name, adversary),
            },
            by_seed=rate.by_seed,
        )

    @classmethod
    def metrics(cls) -> Sequence[str]:
        """Name what it may find: any attribute's name, and an adversary."""
        return [*(f"*-{name}" for name in ADVERSARIES), f"*{ADAPTIVE}"]

    @classmethod
    def headline_of(cls, scores: Scores) -> str:
        """Name the metric of the first attribute, of the first adaptive adversary if there is one."""
        found = scores.as_found(AttributeBeliefs)
        adaptive = [name for name in found.adversaries if name.endswith(ADAPTIVE)]
        attribute = next(iter(found.attributes))
        return metric_of(attribute, (adaptive or found.adversaries)[0])

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

    @rows_of(CLIENTS)
    def describe_clients(self, case: PrivateAttributeCase) -> Iterator[Row]:
        """Describe the clients of a run, by each adversary."""
        for name, adversary, values in self._list_asked(case):
            replied = np.asarray(~np.isnan(case.beliefs(name, adversary)).any(axis=-1))
            for client, has, right in zip(case.clients, case.held(name), case.hits(name, adversary), strict=True):
                yield {
                    "client": client,
                    "attribute": name,
                    "adversary": adversary,
                    "has": values[has],
                    "replies": int(replied[:, case.columns(client)].sum()),
                    "right": float(right),
                }

    @rows_of(REPLIES)
    def list_answers(self, case: PrivateAttributeCase) -> Iterator[Row]:
        """List every answer that was made of a reply."""
        for name, adversary, values in self._list_asked(case):
            rounds, held = case.found.rounds, case.held_by_node(name)
            beliefs, credit = case.beliefs(name, adversary), case.credit(name, adversary)
            for index, node in np.argwhere(~np.isnan(credit)).tolist():
                belief = beliefs[index, node]
                yield {
                    "client": case.node_clients[node],
                    "round": rounds[index],
                    "attribute": name,
                    "adversary": adversary,
                    "has": values[held[node]],
                    "named": several([values[value] for value in np.flatnonzero(belief == belief.max()).tolist()]),
                    "confidence": float(belief.max()),
                    "right": float(credit[index, node]),
                }

    @staticmethod
    def _list_asked(case: PrivateAttributeCase) -> Iterator[tuple[str, str, Sequence[str]]]:
        """Yield each attribute and adversary of a run, with the attribute's values."""
        attributes = case.found.attributes
        for name, adversary in product(attributes, case.found.adversaries):
            yield name, adversary, attributes[name]

    def _per_round(self, name: str, adversary: str) -> dict[str, Any]:
        rounds = list(self.cases[0].found.rounds)
        credit = self.each(lambda case: case.credit(name, adversary))
        series: dict[str, list[Any]] = {"rounds": rounds, "value": [], "low": [], "high": []}
        for index in range(len(rounds)):
            of_round = [of_seed[index][~np.isnan(of_seed[index])] for of_seed in credit]
            low, high = Rate.of(of_round).interval()
            series["value"].append(float(np.concatenate(of_round).mean()))
            series["low"].append(low)
            series["high"].append(high)
        return series

    def _measure_reliability(self, name: str, adversary: str) -> dict[str, Any]:
        """Hold the largest beliefs against success."""
        right = self.pool(lambda case: case.credit(name, adversary).ravel())
        sure = self.pool(lambda case: case.beliefs(name, adversary).max(axis=-1).ravel())
        replied = ~np.isnan(right)
        return reliability(sure[replied], right[replied])

    def _count_confusion(self, name: str, adversary: str) -> list[list[int]]:
        """Count decisions (columns) of clients' values (rows) over all rounds."""
        size = len(self.cases[0].found.attributes[name])
        counts = np.zeros((size, size), dtype=np.int64)
        for case in self.cases:
            beliefs = case.beliefs(name, adversary)
            held = np.broadcast_to(case.held_by_node(name), beliefs.shape[:2])
            replied = ~np.isnan(beliefs).any(axis=-1)
            np.add.at(counts, (held[replied], beliefs[replied].argmax(axis=-1)), 1)
        confusion: list[list[int]] = counts.tolist()
        return confusion


@dataclass(frozen=True)
class _ValueExchange:
    """Holds decisions against the values of other clients of the same run.

    ``shares`` (clients, values) says in which share of a client's replies each value is named; ``held`` (clients,) are
    the true values, ``runs`` (clients,) numbers of the runs.
    """

    shares: Floats
    held: Rows
    runs: Rows

    @property
    def observed(self) -> float:
        """How often the values are named."""
        return float(self.shares[np.arange(len(self.held)), self.held].mean())

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Return how often they are named in so many exchanges, (count,)."""
        exchanged = self.held[exchange_within(self.runs, rng, count)]
        return np.asarray(self.shares[np.arange(len(self.held)), exchanged].mean(axis=1))

    def test(self, rng: np.random.Generator, draws: int) -> Significance:
        """Say how likely so much is by accident."""
        ways = arrangements_within(self.runs, self.held)
        how = "the clients of each run exchanged"
        return significance_of(self.observed, self.draw, rng, how, arrangements=ways, draws=draws)


def metric_of(name: str, adversary: str) -> str:
    """Name the metric of an attribute and an adversary."""
    plain = re.sub("[^a-z0-9]", "-", name.lower())
    return f"{plain}-{adversary}"


def _say_adversary(adversary: str) -> str:
    plain = adversary.removesuffix(ADAPTIVE)
    words = _WORDS.get(plain, plain)
    return f"{words} (adaptive)" if plain != adversary else words
