"""What judges share whose attacks read something of each client: clients are exchanged, and what was read stays."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.judge import Case, F, Judge
from fedattack.audit.measures import Measurement, Rate
from fedattack.audit.reach import Reach, smallest
from fedattack.audit.significance import (
    DRAWS,
    Significance,
    arrangements_within,
    exchange_within,
    least_p,
    significance_of,
)
from fedattack.audit.summaries import null_of
from fedattack.audit.truth import Truth
from fedattack.base.errors import DataError
from fedattack.base.stored import Axes, check_arrays

Floats = NDArray[np.float64]

S = TypeVar("S")

# Streams of random numbers, apart from each other.
SHUFFLING, TESTING = 1, 2

# No larger number is finite in single precision, in which models compute.
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Fits:
    """How well what was read of each client fits each client, of all runs.

    Tables are (clients, clients) of each run: what was read of a client (rows) beside the truth about another one
    (columns).
    """

    tables: Sequence[Floats]

    @property
    def own(self) -> Floats:
        """(clients of all runs,): beside the client's own truth."""
        # A table has a row for the holder whose scores are read, and a column for each client that may be exchanged
        # with it.
        return np.concatenate(list(map(np.diagonal, self.tables)))

    @property
    def sums(self) -> list[float]:
        """The sum of :attr:`own` for each run."""
        return list(map(float, map(np.trace, self.tables)))

    @property
    def sizes(self) -> list[int]:
        """How many clients each run has."""
        return list(map(len, self.tables))

    @property
    def rate(self) -> Rate:
        """The same as a rate over the runs."""
        return Rate(self.sums, self.sizes)

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Return the mean over clients in so many exchanges of the clients of each run, (count,)."""
        total = np.zeros(count)
        for table in self.tables:
            exchanged = exchange_within(np.zeros(len(table), dtype=np.int64), rng, count)
            total += table[np.arange(len(table)), exchanged].sum(axis=1)
        return total / sum(self.sizes)

    def test(self, rng: np.random.Generator, draws: int = DRAWS) -> Significance:
        """Say how likely so good a fit is by accident."""
        # The run of each client, as cells: only clients of one run change places.
        runs = np.repeat(np.arange(len(self.tables)), self.sizes)
        ways = arrangements_within(runs, np.concatenate(list(map(self._kinds, self.tables))))
        how = "the clients of each run exchanged"
        return significance_of(float(self.own.mean()), self.draw, rng, how, arrangements=ways, draws=draws)

    @staticmethod
    def _kinds(table: Floats) -> NDArray[np.int64]:
        """Say which clients are alike to what was read: exchanging these makes no difference.

        Where nothing of any client was read, that is how the attack did, and not how alike the clients are.
        """
        # Nothing was read of anybody: no two clients are taken for alike, so that this is no reason to say "too few".
        if not table.any():
            return np.arange(len(table))
        # Equal columns, but for rounding, are met by every row with the same fit.
        return np.unique(table.round(12), axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class HeldExamples:
    """Examples that clients hold, and whose each is."""

    x: Annotated[NDArray[np.floating[Any]], Axes("examples", "columns", low=-_LARGEST, high=_LARGEST)]
    owners: Annotated[NDArray[np.str_], Axes("examples")]


@dataclass(frozen=True, eq=False)
class ClientsCase(Case[F], Generic[F, S]):
    """One seed's scores that say something of clients, beside what is true of these.

    ``ClientsCase[NamedRows, UsedRows]`` is one whose attack finds the first, and where the second is true.

    Raises
    ------
    DataError
        If the truth's answers are damaged.
    """

    ANSWERS: ClassVar[str] = ""
    """What the truth's answers are called."""

    FORM: ClassVar[type[Any]]
    """Their form, a frozen dataclass; see :mod:`fedattack.base.stored`."""

    @cached_property
    def answers(self) -> S | None:
        """What is true of clients; ``None`` where nobody knows."""
        answers = self.read_answers(self.truth, f"seed {self.seed}: ")
        if answers is not None and (fault := self.fault_of(answers)):
            raise DataError(f"seed {self.seed}: the truth's answer {self.ANSWERS!r}: {fault}; write it again")
        return answers

    @classmethod
    def read_answers(cls, truth: Truth, run: str = "") -> S | None:
        """Read what is true of clients; ``None`` where nobody knows. An error begins with ``run``."""
        arrays = truth.answers.get(cls.ANSWERS)
        if arrays is None:
            return None
        where = f"{run}the truth's answer {cls.ANSWERS!r}"
        answers: S = check_arrays(cls.FORM, arrays, where, DataError, "write it again")
        return answers

    def fault_of(self, answers: S) -> str:
        """Say what in the truth's answers does not fit the scores, or nothing."""
        return ""

    @property
    def known(self) -> S:
        """The answers, where there are any."""
        if self.answers is None:
            raise AssertionError("asked for where there are answers")
        return self.answers

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each client among those that are asked about."""
        return {client: index for index, client in enumerate(self.asked)}

    @property
    def asked(self) -> list[str]:
        """The clients of which something was read, and of which it is known what is true."""
        raise NotImplementedError

    def fits(self, metric: str) -> Floats:
        """Return (clients, clients): how well what was read of one (rows) fits each one (columns), by a metric."""
        raise NotImplementedError

    def list_seen(self, known: Collection[str]) -> list[str]:
        """Return those of the known clients of which an update was looked at, by the scores' array ``seen``."""
        seen = self.scores.arrays["seen"]
        return [client for client in self.clients if client in known and seen[self.columns(client)].any()]


K = TypeVar("K", bound=ClientsCase[Any, Any])


class ClientsJudge(Judge[K]):
    """Judges what was read of clients by exchanging who is who among them."""

    @cached_property
    def asked(self) -> list[K]:
        """The seeds in which clients are asked about."""
        return [case for case in self.cases if case.asked]

    @property
    def tabled(self) -> Sequence[K]:
        """Those of which tables are made."""
        return self.asked

    @property
    def reason(self) -> str:
        """What is compared, and what the null is."""
        raise NotImplementedError

    def fit_clients(self, metric: str) -> Fits:
        """Return how well what was read fits the clients of all runs."""
        return Fits([case.fits(metric) for case in self.asked])

    def hold_against_others(self, metric: str, **parts: Any) -> Measurement | None:
        """Hold what was read of each client against what is true of it, and of others; parts are a measurement's.

        ``None`` where nobody is asked about.
        """
        if not self.asked:
            return None
        fits = self.fit_clients(metric)
        # The null's draws are those of another stream than the test's, so that more of one does not change the other.
        null = fits.draw(self.rng(SHUFFLING), self.shuffles)
        rate = fits.rate
        return rate.measured(
            self.reason,
            value=float(fits.own.mean()),
            null=null_of(null.tolist(), rate.n),
            chance=float(null.mean()),
            test=fits.test(self.rng(TESTING), self.draws),
            by_seed=rate.by_seed,
            **parts,
        )


def reach_of_clients(kinds: Sequence[NDArray[np.int64]], needed: float, words: str) -> Reach | None:
    """Say what exchanging the clients of each run can show at best; ``None`` where there is no client.

    `kinds` says for each run which clients (clients,) hold the same, and `words` what clients differ in, such as ``that
    hold other labels``.
    """
    sizes = list(map(len, kinds))
    if not sum(sizes):
        return None
    runs = np.repeat(np.arange(len(kinds)), sizes)
    # The run that differs most counts: clients that are alike to the attack cannot be told apart by it.
    different = max(len(np.unique(of_run)) for of_run in kinds)
    # n clients of one run have n! orders, of which one is the observed one.
    enough = smallest(lambda clients: math.factorial(clients) * needed >= 1, 2)
    least = least_p(arrangements_within(runs, np.concatenate(kinds)))
    reach = Reach(least, f"{different} clients {words}", f"{enough} of them")
    if enough > max(sizes):
        # More clients are needed than any run has: the setting is named that asks for these.
        return replace(reach, setting=f"clients={enough}")
    return reach
