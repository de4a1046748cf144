"""One seed's scores of property inference beside its truth: who has which property, and what each client sent."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import gammaln

from fedattack.audit.judge import Case
from fedattack.audit.significance import count_of, exchange_clients
from fedattack.base.errors import DataError
from fedattack.threats.property.prolin import AnsweredQuestions

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PropertyCase(Case[AnsweredQuestions]):
    """One seed's scores of property inference beside its truth, which must answer as many questions."""

    def __post_init__(self) -> None:
        positives, asked = self.truth.positives, len(self.found.questions)
        if positives is None or len(positives) != asked:
            answered = "none" if positives is None else f"{len(positives)}"
            raise DataError(
                f"seed {self.seed}: the scores answer {asked} questions and the truth answers {answered}; expected "
                "truth/positives.npz with a row for each, as the run's preparation writes it"
            )
        self.truth.check_nodes(self.found.clients, seed=self.seed)

    def by_client(self, values: NDArray[Any]) -> NDArray[Any]:
        """Take the largest of the values (…, nodes) of a client's nodes; returns (…, clients)."""
        # Without clients there is nothing to stack.
        if not self.clients:
            return values
        return np.stack([np.fmax.reduce(values[..., self.columns(name)], axis=-1) for name in self.clients], axis=-1)

    @cached_property
    def positives(self) -> Flags:
        """(questions, clients): who has the property."""
        if self.truth.positives is None:
            raise AssertionError("checked at the start")
        columns = [self.truth.clients.index(name) for name in self.clients]
        return np.asarray(self.truth.positives[:, columns])

    @cached_property
    def score(self) -> Floats:
        """(methods, questions, windows, clients), NaN for clients not seen by then."""
        return self.by_client(self.found.scores)

    @cached_property
    def named(self) -> Flags:
        """(methods, questions, windows, clients)."""
        named: Flags = self.by_client(self.found.decisions).astype(np.bool_)
        return named

    @property
    def observed(self) -> Flags:
        """(windows, clients): who had taken part by then; the others are unknown, neither right nor wrong."""
        return np.asarray(~np.isnan(self.score[0, 0]))

    @cached_property
    def seen(self) -> NDArray[np.int64]:
        """(seen,): the indices of the clients that ever took part."""
        return np.flatnonzero(self.observed[-1])

    @cached_property
    def has(self) -> Flags:
        """(questions, seen): which of them have the property."""
        return np.asarray(self.positives[:, self.seen])

    def draw_exchanges(self, rng: np.random.Generator, count: int) -> Flags:
        """Draw who is who: (count, questions, seen), in each draw the same exchange for all questions."""
        who = exchange_clients(len(self.seen), rng, count)
        return np.moveaxis(self.has[:, who], 1, 0)

    @property
    def asked_of(self) -> NDArray[np.int64]:
        """Questions to which some client that was seen is an answer."""
        return np.flatnonzero((self.positives & self.observed[-1]).any(axis=1))

    @property
    def at_chance(self) -> Flags:
        """(questions,): whether no round's detector, nor all together, told unseen batches apart better than chance."""
        accuracy = self.found.accuracy
        # The standard deviation of a share of right answers at chance, one half: of so many clients with and without.
        error = np.sqrt(0.25 / (2 * self.found.unseen))
        # The best of all rounds is held against what so many looks give by chance (Bonferroni).
        single = accuracy.max(axis=1) <= 0.5 + stats.norm.isf(0.05 / accuracy.shape[1]) * error
        return np.asarray(single & (accuracy.mean(axis=1) <= 0.5 + stats.norm.isf(0.05) * error))

    def list_posteriors(self) -> Iterator[dict[str, Any]]:
        """Yield each answer about a client that took part: question by question, client by client."""
        posterior = self.by_client(self.found.posterior)
        low, high = self.by_client(self.found.posterior_low), self.by_client(self.found.posterior_high)
        took_part = self.by_client((self.found.participation > 0).sum(axis=0))
        for question, asked in enumerate(self.found.questions):
            for column in self.seen:
                yield {
                    "client": self.clients[column],
                    "target": asked,
                    "seed": self.seed,
                    "posterior": float(posterior[question, column]),
                    "low": float(low[question, column]),
                    "high": float(high[question, column]),
                    "positive": bool(self.positives[question, column]),
                    "rounds": int(took_part[column]),
                }

    def list_distributions(self, question: int) -> list[dict[str, Any]]:
        """List how shadow updates with and without the property lie, for the rounds that are shown."""
        found = self.found
        sides = {
            "plus": (found.plus_mean, found.plus_sd, found.plus_sample),
            "minus": (found.minus_mean, found.minus_sd, found.minus_sample),
        }
        distributions = []
        for index, number in enumerate(found.shown):
            row = found.rounds.index(number)
            shown: dict[str, Any] = {"round": number, "overlap": float(found.overlap[question, row])}
            for side, (mean, sd, sample) in sides.items():
                shown[side] = {"mean": float(mean[question, row, 0]), "sd": float(sd[question, row, 0])}
                shown[f"{side}_sample"] = sample[question, index].tolist()
            distributions.append(shown)
        return distributions

    @cached_property
    def plaintext(self) -> Mapping[str, Floats]:
        """By metric, each client's mean over rounds of what it sent in plaintext, (clients,)."""
        sent: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for round_ in self.record:
            for reply in round_.observations:
                if reply.status != "ok":
                    continue
                self.truth.check_nodes([reply.node], seed=self.seed)
                for metric, value in reply.plaintext.items():
                    if isinstance(value, int | float) and np.isfinite(value):
                        sent[str(metric)][self.truth.nodes[reply.node]].append(float(value))
        means = {}
        for metric, by_client in sent.items():
            means[metric] = np.array([fmean(by_client.get(client, [np.nan])) for client in self.clients])
        return means


def count_arrangements(runs: Sequence[Flags]) -> float:
    """Count the truths that exchanges of clients give, of runs (questions, clients) of who has the property.

    Clients with the same properties are alike.
    """
    logarithm = 0.0
    for has in runs:
        _, alike = np.unique(has, axis=1, return_counts=True)
        logarithm += float(gammaln(has.shape[1] + 1) - gammaln(alike + 1).sum())
    return count_of(logarithm)
