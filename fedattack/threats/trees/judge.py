"""Judge tables that were read off trees: which rows, values and columns are those of the client."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.clients import SHUFFLING, TESTING, ClientsCase, ClientsJudge, HeldExamples
from fedattack.audit.measures import Measurement, Rate, measure, no_value
from fedattack.audit.readoff import BITS, bits_of_items, read_off
from fedattack.audit.significance import arrangements_within, exchange_within, significance_of
from fedattack.audit.summaries import null_of
from fedattack.audit.table import Row, rows_of
from fedattack.threats.trees.matching import EXACT, TOLERANCE, find_near, match_rows, share_near
from fedattack.threats.trees.tables import CLIENTS, COLUMNS
from fedattack.threats.trees.trees import ReadTables

SAME = 1e-6
"""Share of a column's range by which a threshold may be off from a value that it equals: single precision."""

MIDDLE, OTHERS = "the middle of each column", "rows of the other clients"

Floats = NDArray[np.float64]

# Rows of a client that are looked at: each is held against each that was put together, for all pairs of clients.
_MOST_ROWS = 300

# Columns of the tables that are compared, and rows that were put together of a client.
_MOST_COLUMNS, _MOST_READ = 10_000, 10_000

# Cells that are compared, of all pairs of clients: rows that are known, times rows that were read, times columns.
_MOST_CELLS = 2**35

_METRICS = ("rows", "values", "columns")


@dataclass(frozen=True, eq=False)
class TreesCase(ClientsCase[ReadTables, HeldExamples]):
    """One seed's tables beside its truth."""

    ANSWERS, FORM = "trees", HeldExamples

    def fault_of(self, answers: HeldExamples) -> str:
        """Expect all columns by which a tree splits."""
        columns, features = answers.x.shape[1], self.found.features
        if columns > _MOST_COLUMNS:
            return f"it has {columns:,} columns; at most {_MOST_COLUMNS:,} are compared"
        split = max(self.found.columns_read.max(initial=-1), self.found.cut_columns.max(initial=-1))
        if columns <= split:
            return f"it has {columns} columns, and the trees {features}"
        return ""

    @cached_property
    def asked(self) -> list[str]:
        """The clients of which trees were read, and of which rows are known."""
        if self.answers is None:
            return []
        true = Counter(self.answers.owners.tolist())
        asked: list[str] = []
        known = put_together = 0
        for client in self.clients:
            own = int(np.isin(self.found.whose, self.columns(client)).sum())
            if not (true[client] and own):
                continue
            known += min(true[client], _MOST_ROWS)
            put_together += min(own, _MOST_READ)
            if known * put_together * self.answers.x.shape[1] > _MOST_CELLS:
                break
            asked.append(client)
        return asked

    @cached_property
    def tables(self) -> list[Floats]:
        """For each client that is asked about its true rows (n, columns)."""
        x, owners = self.known.x.astype(np.float64), self.known.owners
        return [x[owners == client][:_MOST_ROWS] for client in self.asked]

    @cached_property
    def middle(self) -> Floats:
        """(columns,): the median of each column over all clients, as public statistics give it."""
        return np.asarray(np.median(np.concatenate(self.tables), axis=0))

    @cached_property
    def tolerance(self) -> Floats:
        """(columns,): by how much a value of a row may be off."""
        return np.asarray(TOLERANCE * np.concatenate(self.tables).std(axis=0))

    @cached_property
    def read(self) -> list[Floats]:
        """For each client that is asked about the rows that were read; what no tree tells is the middle."""
        columns, tables = self.found.columns_read, []
        for client in self.asked:
            own = self.found.rows[np.isin(self.found.whose, self.columns(client))][:_MOST_READ]
            whole = np.tile(self.middle, (len(own), 1))
            whole[:, columns] = np.where(np.isnan(own), self.middle[columns], own)
            tables.append(whole)
        return tables

    @cached_property
    def cuts(self) -> dict[str, dict[int, Floats]]:
        """For each client that is asked about by column the thresholds of its trees; none where there are none."""
        of_clients = {}
        for client in self.asked:
            own = np.isin(self.found.cut_whose, self.columns(client))
            columns, cuts = self.found.cut_columns[own], self.found.cuts[own]
            of_clients[client] = {column: np.sort(cuts[columns == column]) for column in np.unique(columns).tolist()}
        return of_clients

    def _own_values(self) -> Iterator[tuple[int, Floats, NDArray[np.int64]]]:
        """Yield each column with its values that one client alone holds, ascending, and the indices of these."""
        x, owners = self.known.x.astype(np.float64), self.known.owners
        holders = np.array([self.places.get(owner, len(self.asked)) for owner in owners.tolist()], dtype=np.int64)
        for column, values in enumerate(x.T):
            pairs = np.unique(np.stack([values, holders]), axis=1)
            _, first, counts = np.unique(pairs[0], return_index=True, return_counts=True)
            alone = first[counts == 1]
            yield column, pairs[0, alone], pairs[1, alone].astype(np.int64)

    @cached_property
    def _met_values(self) -> tuple[Floats, Floats]:
        """Count values that one client alone holds: those that trees split by, to all digits, and all of them.

        In the former (clients, clients + 1) rows say whose trees, and columns who holds them; the last are clients that
        are not asked about.
        """
        met = np.zeros((len(self.asked), len(self.asked) + 1))
        held = np.zeros(len(self.asked) + 1)
        cuts = [self.cuts[client] for client in self.asked]
        for column, values, holders in self._own_values():
            if not len(values):
                continue
            np.add.at(held, holders, 1)
            span = SAME * float(np.ptp(values))
            for row in range(len(self.asked)):
                is_met = find_near(values, cuts[row].get(column, np.zeros(0)), span)
                np.add.at(met[row], holders[is_met], 1)
        return met, held

    @cached_property
    def certain_of(self) -> NDArray[np.int64]:
        """(clients,): values that a client alone holds and that its trees split by, if so many are no accident."""
        met, held = self._met_values
        certain = np.zeros(len(self.asked), dtype=np.int64)
        for client, of_client in enumerate(met):
            own = int(of_client[client])
            bits = bits_of_items(own, int(of_client.sum()) - own, int(held[client]), int(held.sum()))
            certain[client] = own if bits >= BITS else 0
        return certain

    @cached_property
    def right_of(self) -> NDArray[np.int64]:
        """(clients,): values that a client alone holds and that its trees split by."""
        return np.diagonal(self._met_values[0]).astype(np.int64)

    def count_met(self, rows: Floats, true: Floats) -> Floats:
        """Return (2,): the share of true rows of which all values are met, and the share of their values."""
        met = match_rows(rows, true, self.tolerance)
        return np.array([met.all(axis=1).mean(), met.mean()])

    def fits(self, metric: str) -> Floats:
        """Compare what was read of a client with the table of each one."""
        return self._compared[metric]

    @cached_property
    def _compared(self) -> dict[str, Floats]:
        rows, values = self._compare_rows()
        return {"rows": rows, "values": values, "columns": self._compare_columns()}

    def _compare_rows(self) -> Floats:
        table = np.empty((2, len(self.asked), len(self.asked)))
        for row, read in enumerate(self.read):
            for column, true in enumerate(self.tables):
                table[:, row, column] = self.count_met(read, true)
        return table

    def guess(self) -> Iterator[tuple[str, Floats]]:
        """Yield what guessing is called, and (2,): the same for whoever guesses the rows of a client."""
        for client, true in enumerate(self.tables):
            yield MIDDLE, self.count_met(np.tile(self.middle, (len(true), 1)), true)
            for other, rows in enumerate(self.tables):
                if other != client:
                    yield OTHERS, self.count_met(rows, true)

    def _compare_columns(self) -> Floats:
        spans = EXACT * np.ptp(np.concatenate(self.tables), axis=0)
        table = np.empty((len(self.asked),) * 2)
        for row, client in enumerate(self.asked):
            for other, true in enumerate(self.tables):
                shares = np.zeros(len(spans))
                for column, own in self.cuts[client].items():
                    shares[column] = share_near(true[:, column], own, spans[column])
                table[row, other] = float(np.mean(shares))
        return table


class TreesJudge(ClientsJudge[TreesCase]):
    """States how much of clients' tables their trees give away: values of columns, whole rows, values of rows.

    Each is the mean over clients. The test exchanges clients: the same trees beside other clients' tables. The last
    measure is about a participant, who sees the common model alone.
    """

    case = TreesCase
    reason = "the null compares the same trees with other clients' tables"
    notes = (
        "The null of trees.rows, trees.values and trees.columns compares the same trees with other clients' tables.",
        f"A value of a row is met within {TOLERANCE} standard deviations of its column over all clients, and a row if "
        f"all its values are. A value of a column is met if a threshold is within {EXACT:.1%} of the column's range.",
        "A value is certain if only one client holds it, its trees use it as an exact threshold, and an accident "
        f"would meet as many such values less than once in 2^{BITS:g} times.",
        f"At most {_MOST_ROWS} rows of a client are compared, and only the first clients if there are very many.",
    )

    @cached_property
    def guesses(self) -> dict[str, Floats]:
        """For each way to guess (2,): the shares of rows and of values that it meets, the mean over clients."""
        guesses: dict[str, list[Floats]] = {}
        for case in self.asked:
            for name, shares in case.guess():
                guesses.setdefault(name, []).append(shares)
        return {name: np.mean(shares, axis=0) for name, shares in guesses.items()}

    @measure("columns", "Values of columns that are thresholds", headline=True)
    def find_columns(self) -> Measurement | None:
        """Count the values of which a threshold is close by."""
        if not self.asked:
            return no_value("no row is known of any client whose trees were read")
        found = read_off("value", [case.right_of for case in self.asked], [case.certain_of for case in self.asked])
        return self.hold_against_others("columns", series=self.show(CLIENTS, COLUMNS), read_off=found)

    @measure("rows", "Whole rows read from trees")
    def find_rows(self) -> Measurement | None:
        """Count the rows of which all values are read."""
        return self._hold_against_guesses("rows", 0)

    @measure("values", "Values of rows read from trees")
    def find_values(self) -> Measurement | None:
        """Count the values of rows that are read."""
        return self._hold_against_guesses("values", 1)

    @measure("linked", "Trees of the common model that a participant assigns to their client")
    def find_linked(self) -> Measurement | None:
        """Count the trees that shared thresholds put to the client that made them."""
        cases = [case for case in self.cases if len(case.found.linked) and len(case.clients) > 1]
        if not cases:
            return None
        linked = np.concatenate([case.found.linked for case in cases])
        owners = np.concatenate([case.found.owners for case in cases])
        sent_in = np.concatenate([case.found.sent_in for case in cases])
        rate = Rate.of([case.found.linked == case.found.owners for case in cases])
        # A participant deals the trees of a round out to the clients: so does chance.
        rounds = np.stack([np.repeat(np.arange(len(cases)), rate.sizes), sent_in])
        cells = np.unique(rounds, axis=1, return_inverse=True)[1].ravel()

        def draw(rng: np.random.Generator, count: int) -> Floats:
            return np.asarray((linked[exchange_within(cells, rng, count)] == owners).mean(axis=1))

        test = significance_of(
            rate.value,
            draw,
            self.rng(TESTING),
            "the trees of each round exchanged",
            arrangements=arrangements_within(cells, linked),
        )
        null = draw(self.rng(SHUFFLING), self.shuffles)
        return rate.measured(
            "by shared thresholds only; from correctly assigned trees a participant reads what the server reads",
            null=null_of(null.tolist(), rate.n),
            chance=float(null.mean()),
            test=test,
            by_seed=rate.by_seed,
        )

    def _hold_against_guesses(self, metric: str, index: int) -> Measurement | None:
        """Hold rows against other clients' tables, and against what guessing meets."""
        bars = {name: float(shares[index]) for name, shares in self.guesses.items()}
        return self.hold_against_others(metric, bars=bars, baselines=bars)

    @rows_of(CLIENTS)
    def describe_clients(self, case: TreesCase) -> Iterator[Row]:
        """Describe the clients of a run."""
        for index, client in enumerate(case.asked):
            trees = sum(case.found.trees[node] for node in case.columns(client))
            row = {"client": client, "trees": trees, "rows": len(case.tables[index]), "read": len(case.read[index])}
            for name in _METRICS:
                row[f"{name}_met"] = float(case.fits(name)[index, index])
            yield row

    @rows_of(COLUMNS)
    def describe_columns(self, case: TreesCase) -> Iterator[Row]:
        """Describe the columns of a run, means over clients."""
        spans = EXACT * np.ptp(np.concatenate(case.tables), axis=0)
        for column, span in enumerate(spans):
            cuts = [case.cuts[client].get(column, np.zeros(0)) for client in case.asked]
            shares = []
            for own, true in zip(cuts, case.tables, strict=True):
                shares.append(share_near(true[:, column], own, span))
            thresholds = float(np.mean([len(own) for own in cuts]))
            yield {"column": column, "thresholds": thresholds, "met": float(np.mean(shares))}
