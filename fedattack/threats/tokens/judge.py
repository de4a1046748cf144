"""Judge moved rows: how well the words, items or categories that are named of a client are those that it holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedattack.audit.clients import ClientsCase, ClientsJudge, reach_of_clients
from fedattack.audit.measures import Measurement, measure, no_value
from fedattack.audit.reach import Prepared, Reach
from fedattack.audit.readoff import BITS, bits_of_items, read_off
from fedattack.audit.table import Row, rows_of
from fedattack.base.stored import Axes
from fedattack.threats.tokens.tables import CLIENTS, ROWS, TABLES
from fedattack.threats.tokens.tokens import NamedRows

EVERYTHING = "all rows named"

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class UsedRows:
    """Which rows of which tables the examples of clients use, once for each client; :mod:`fedattack.attacks.lookups`.

    ``whole`` are the clients of which all examples are known.
    """

    names: Annotated[NDArray[np.str_], Axes("names")]
    rows: Annotated[NDArray[np.int64], Axes("used", low=0)]
    tables: Annotated[NDArray[np.int64], Axes("used", low=0)]
    owners: Annotated[NDArray[np.str_], Axes("used")]
    whole: Annotated[NDArray[np.str_], Axes("whole")]

    def fault(self) -> str:
        """Say which rows are of no table."""
        if self.tables.max(initial=-1) < len(self.names):
            return ""
        return f"tables: expected indices below {len(self.names)}, got {self.tables.max()}"


@dataclass(frozen=True, eq=False)
class TokensCase(ClientsCase[NamedRows, UsedRows]):
    """One seed's named rows beside its truth."""

    ANSWERS, FORM = "tokens", UsedRows

    @cached_property
    def asked(self) -> list[str]:
        """The clients of which updates were looked at, and of which all examples are known."""
        if self.answers is None:
            return []
        return self.list_seen({*self.answers.whole.tolist()})

    @property
    def names(self) -> list[str]:
        """The tables, that with most rows first."""
        return [table.name for table in self.found.tables]

    def named(self, table: int) -> "csr_array[Any]":
        """Return which rows are named of each client, (clients, rows)."""
        in_table = np.flatnonzero(self.found.in_table == table)
        owners = [self.node_clients[node] for node in self.found.whose[in_table].tolist()]
        return self._as_matrix(owners, self.found.rows[in_table], table)

    def used(self, table: int) -> "csr_array[Any]":
        """Return which rows each client uses, (clients, rows)."""
        true = self.known
        in_table = np.flatnonzero(true.names[true.tables] == self.names[table])
        return self._as_matrix(true.owners[in_table].tolist(), true.rows[in_table], table)

    def _as_matrix(self, owners: Sequence[str], rows: NDArray[np.int64], table: int) -> "csr_array[Any]":
        """Return a sparse matrix of ones (clients, rows) for those clients that are asked about."""
        whose = np.array([self.places.get(owner, -1) for owner in owners], dtype=np.int64)
        known = whose >= 0
        shape = len(self.places), self._width(table)
        matrix = csr_array((np.ones(int(known.sum())), (whose[known], rows[known])), shape=shape)
        # A client with several nodes may have a row twice.
        matrix.sum_duplicates()
        matrix.data[:] = 1
        return matrix

    def _width(self, table: int) -> int:
        """Return how many rows a table has, whoever counts them."""
        found, widest = self.found, 0
        for rows, tables in ((found.rows, found.in_table), (found.asked, found.asked_tables)):
            widest = max(widest, int(rows[tables == table].max(initial=0)))
        if self.answers is not None:
            widest = max(widest, int(self.answers.rows.max(initial=0)))
        return widest + 1

    def counts(self, table: int) -> tuple[Floats, Floats, Floats]:
        """Return rows in common (clients, clients), and how many are named (clients,) and used (clients,)."""
        named, used = self.named(table), self.used(table)
        common = np.asarray((named @ used.T).todense(), dtype=np.float64)
        return common, _row_sums(named), _row_sums(used)

    def fits(self, metric: str, table: int = 0) -> Floats:
        """Compare the rows that are named of a client with those that each one uses."""
        common, named, used = self.counts(table)
        below = {
            "f1": (named[:, None] + used[None]) / 2,
            "precision": np.repeat(named[:, None], len(used), axis=1),
            "recall": np.repeat(used[None], len(named), axis=0),
        }[metric]
        return np.asarray(common / np.maximum(below, 1))

    @cached_property
    def right_of(self) -> NDArray[np.int64]:
        """(clients,): how many rows of the largest table are named of each client that it uses."""
        return np.diagonal(self.counts(0)[0]).astype(np.int64)

    @cached_property
    def certain_of(self) -> NDArray[np.int64]:
        """(clients,): how many of these it alone uses, and are named of it alone, if so many are no accident."""
        named, used = self.named(0), self.used(0)
        only_named, only_used = (matrix.multiply(_column_sums(matrix) == 1).tocsr() for matrix in (named, used))
        common = np.asarray((only_named @ only_used.T).todense())
        held = _row_sums(only_used)
        certain = np.zeros(len(held), dtype=np.int64)
        for client, own in enumerate(np.diagonal(common)):
            all_held, others = held.sum(), common[client].sum() - own
            if len(held) == 1:
                # Beside no other client it is held against the rows that nobody uses.
                all_held, others = self._count_asked(), _row_sums(only_named)[0] - own
            if bits_of_items(int(own), int(others), int(held[client]), int(all_held)) >= BITS:
                certain[client] = own
        return certain

    def _count_asked(self) -> int:
        """Return how many rows of the largest table are asked about."""
        return int((self.found.asked_tables == 0).sum())

    def guess(self) -> Floats:
        """Return (clients,): the F1 score of whoever names all rows of each client."""
        rows = self._count_asked()
        used = self.counts(0)[2]
        return np.asarray(2 * used / (rows + used))


def _row_sums(matrix: "csr_array[Any]") -> Floats:
    return np.asarray(matrix.sum(axis=1), dtype=np.float64).reshape(-1)


def _column_sums(matrix: "csr_array[Any]") -> Floats:
    return np.asarray(matrix.sum(axis=0), dtype=np.float64).reshape(1, -1)


def _kinds_of(answers: UsedRows) -> NDArray[np.int64]:
    """Say of the clients of which all is known which use the same rows, (clients,)."""
    numbers: dict[frozenset[tuple[int, int]], int] = {}
    found = []
    for client in answers.whole.tolist():
        own = answers.owners == client
        rows = frozenset(zip(answers.tables[own].tolist(), answers.rows[own].tolist(), strict=True))
        found.append(numbers.setdefault(rows, len(numbers)))
    return np.array(found, dtype=np.int64)


def _may_be_certain(answers: UsedRows) -> bool:
    """Say whether rows of one table that a client alone uses would be certain, were all of them named."""
    names, owners = np.unique(answers.owners, return_inverse=True)
    if len(names) == 1:
        # Those of a single client are held against all rows of the table, and nobody counted these yet.
        return True
    owners = owners.reshape(-1)
    for table in np.unique(answers.tables).tolist():
        in_table = answers.tables == table
        pairs = np.unique(np.stack([answers.rows[in_table], owners[in_table]]), axis=1)
        _, first, counts = np.unique(pairs[0], return_index=True, return_counts=True)
        _, held = np.unique(pairs[1, first[counts == 1]], return_counts=True)
        for own in held.tolist():
            if bits_of_items(own, 0, own, int(held.sum())) >= BITS:
                return True
    return False


class TokensJudge(ClientsJudge[TokensCase]):
    """States how well the rows of the largest table are named: F1 score, precision and recall, as means over clients.

    The test exchanges who is who among the clients.
    """

    case = TokensCase
    notes = (
        "The null of tokens.f1 compares the same named rows with other clients' examples.",
        "A row is certain if only one client uses it, it is named only for this client, and an accident would name as "
        f"many such rows of the client less than once in 2^{BITS:g} times.",
    )

    @measure("f1", "Rows named, F1 score", headline=True)
    def find_f1(self) -> Measurement | None:
        """Score the named rows by precision and recall together."""
        if not self.asked:
            return no_value(
                "there is no client whose training examples are all known, so nobody knows which rows it uses"
            )
        # Whoever names all rows misses none: the guess bars the F1 score alone.
        bars = {EVERYTHING: float(np.concatenate([case.guess() for case in self.asked]).mean())}
        found = read_off("row", [case.right_of for case in self.asked], [case.certain_of for case in self.asked])
        series = self.show(TABLES, CLIENTS)
        return self.hold_against_others("f1", bars=bars, baselines=bars, series=series, read_off=found)

    @measure("precision", "Named rows that the client holds")
    def find_precision(self) -> Measurement | None:
        """Count the named rows that the client holds."""
        return self.hold_against_others("precision")

    @measure("recall", "Rows that the client holds and that are named")
    def find_recall(self) -> Measurement | None:
        """Count the rows that the client holds and that are named."""
        return self.hold_against_others("recall")

    @property
    def reason(self) -> str:
        """The table, and what the null is."""
        return f"of the table {self.asked[0].names[0]}; the null compares the same rows with other clients' examples"

    @rows_of(TABLES)
    def describe_tables(self, case: TokensCase) -> Iterator[Row]:
        """Describe the tables of a run."""
        for index, table in enumerate(case.found.tables):
            _, named, used = case.counts(index)
            yield {
                "name": table.name,
                "rows": table.rows,
                "how": ", ".join(table.how),
                "used": float(used.mean()),
                "named": float(named.mean()),
                "precision": float(np.diagonal(case.fits("precision", index)).mean()),
                "recall": float(np.diagonal(case.fits("recall", index)).mean()),
            }

    @rows_of(CLIENTS)
    def describe_clients(self, case: TokensCase) -> Iterator[Row]:
        """Describe the clients of a run, by the largest table."""
        common, named, used = case.counts(0)
        for index, client in enumerate(case.asked):
            own = int(common[index, index])
            yield {"client": client, "used": int(used[index]), "named": int(named[index]), "right": own}

    @rows_of(ROWS)
    def list_rows(self, case: TokensCase) -> Iterator[Row]:
        """List every row that is named or used."""
        for table, name in enumerate(case.names):
            all_named, all_used = case.named(table), case.used(table)
            for index, client in enumerate(case.asked):
                named, used = {*all_named[[index]].indices.tolist()}, {*all_used[[index]].indices.tolist()}
                for row in sorted(named | used):
                    yield {"client": client, "table": name, "row": row, "named": row in named, "used": row in used}

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach | None:
        """Count the ways to exchange clients that use other rows.

        Where a client alone uses so many rows that naming them would be certain, nothing can be said before the run.
        """
        kinds = []
        for run in runs:
            answers = TokensCase.read_answers(run.truth)
            if answers is None:
                continue
            if _may_be_certain(answers):
                return None
            kinds.append(_kinds_of(answers))
        return reach_of_clients(kinds, needed, "that use other rows")
