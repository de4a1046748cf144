"""What all judges of attacks share: one seed's case, the facts that every finding carries, and where it is missing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, islice
from statistics import fmean, stdev
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import ATTACKS, Knowledge, Scores
from fedattack.attacks.registry import threat_of
from fedattack.audit.finding import CERTAIN, ERROR, LEAK, Finding, ReadOff, certain_in_words, p_in_words, verdict
from fedattack.audit.listing import Cell, Listing
from fedattack.audit.measures import Measure, Measurement, Rate
from fedattack.audit.opened import Run
from fedattack.audit.reach import Prepared, Reach
from fedattack.audit.significance import DRAWS
from fedattack.audit.table import Row, RowsOf, Table
from fedattack.audit.truth import NOBODY, Truth
from fedattack.base.errors import DataError
from fedattack.base.reasons import ABOUT, Reason
from fedattack.record import Record

F = TypeVar("F")


@dataclass(frozen=True, eq=False)
class Case(Generic[F]):
    """What one attack made of one run, beside the truth of that run.

    A subclass computes what several measures ask of a run. ``Case[NamedRows]`` is one whose attack finds that.

    Attributes
    ----------
    run
        The run, whose truth is known.
    attack
        Name of the attack, of which the run has scores.

    Raises
    ------
    DataError
        If the scores and the truth do not fit.
    """

    run: Run
    attack: str

    NODES: ClassVar[str] = "clients"
    """The fact of the scores that names the nodes along an axis."""

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.run.seed

    @property
    def record(self) -> Record:
        """What the server saw, without canaries and with whole models."""
        return self.run.record

    @property
    def knowledge(self) -> Knowledge:
        """What the attacker knew."""
        return self.run.knowledge

    @property
    def truth(self) -> Truth:
        """Who holds what."""
        if self.run.truth is None:
            raise AssertionError("nothing is judged without the truth")
        return self.run.truth

    @property
    def scores(self) -> Scores:
        """What the attack made of the record, as arrays and facts."""
        return self.run.scores[self.attack]

    @property
    def found(self) -> F:
        """The same as the attack states it, an object of its :attr:`fedattack.attacks.base.Attack.found`."""
        found: F = self.scores.as_found(ATTACKS[self.attack].found)
        return found

    @cached_property
    def node_clients(self) -> list[str]:
        """The client behind each of the scores' nodes."""
        nodes = self.scores.facts[self.NODES]
        self.truth.check_nodes(nodes, seed=self.seed, where="scores")
        return [self.truth.nodes[node] for node in nodes]

    @cached_property
    def clients(self) -> list[str]:
        """Names of the clients in their order, each once: a client that was restarted may have had several nodes.

        Flower draws the numbers of nodes anew in each run. What is drawn by client may not depend on them.
        """
        # Shorter names first, so that client 2 stands before client 10.
        return sorted(set(self.node_clients), key=lambda name: (len(name), name))

    @property
    def holders(self) -> Sequence[str]:
        """Names of the clients that :func:`rows_of_clients` may be about."""
        return self.truth.clients

    def columns(self, client: str) -> list[int]:
        """Return the columns of a client's nodes in the scores."""
        return [column for column, name in enumerate(self.node_clients) if name == client]


@dataclass(frozen=True, eq=False)
class TargetsCase(Case[F]):
    """One seed's scores of target records beside a truth that says who holds each; both must be of as many targets."""

    SEEN: ClassVar[str]
    """The array of the scores, (targets, nodes), that is all NaN for a node that was never seen."""

    def __post_init__(self) -> None:
        scored, owned = len(self.scores.arrays["labels"]), len(self.truth.owners)
        if scored != owned:
            raise DataError(
                f"seed {self.seed}: the truth names owners of {owned} targets, the scores are of {scored}; write the "
                "truth with one entry for each target"
            )

    @cached_property
    def node_clients(self) -> list[str]:
        """The client behind each of the scores' nodes; one that was never seen goes by its node."""
        nodes = self.scores.facts[self.NODES]
        seen = ~np.isnan(self.scores.arrays[self.SEEN]).all(axis=0)
        self.truth.check_nodes(compress(nodes, seen), seed=self.seed)
        return [self.truth.nodes.get(node, f"node {node}") for node in nodes]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(clients,): how many training examples each client holds."""
        examples = dict(zip(self.truth.clients, self.truth.counts.sum(axis=1), strict=True))
        return np.array([examples.get(name, 0) for name in self.clients], dtype=np.int64)

    @property
    def null(self) -> NDArray[np.bool_]:
        """(targets,): whether no client holds the target."""
        return np.asarray(self.truth.owners == NOBODY)

    def by_client(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Put a client's several nodes together: (…, nodes), NaN where a node was not seen, become (…, clients).

        It is the mean of those that are known, in the order of the clients.
        """
        if len(self.clients) == len(self.node_clients):
            # One node a client, as in most runs: this only brings the columns into the clients' order.
            return values[..., [self.node_clients.index(name) for name in self.clients]]
        means = []
        for name in self.clients:
            of_client = values[..., self.columns(name)]
            # Zeros stand in for NaN, which np.nanmean would warn about where a client was never seen.
            known = ~np.isnan(of_client)
            total = np.where(known, of_client, 0.0).sum(axis=-1)
            mean = total / np.maximum(known.sum(axis=-1), 1)
            means.append(np.where(known.any(axis=-1), mean, np.nan))
        return np.stack(means, axis=-1)


C = TypeVar("C", bound=Case[Any])
T = TypeVar("T")


class Judge(Generic[C]):
    """Turns an attack's scores and the truth into findings, over all seeds at once.

    A judge registers its measures by :func:`fedattack.audit.measures.measure`, and what gives the rows of its tables by
    :func:`fedattack.audit.table.rows_of`.

    Parameters
    ----------
    cases
        One per seed.
    setting, provenance
        Put into every finding.
    """

    case: ClassVar[type[Case[Any]]] = Case
    """What is made of each seed before it is judged."""

    measures: ClassVar[Mapping[str, Measure]] = {}
    """By metric what is measured, in the order in which it is shown."""

    tables: ClassVar[Mapping[Table, Callable[..., Iterable[Row]]]] = {}
    """By table what gives its rows; files stand in this order."""

    headline: ClassVar[str] = ""
    """The metric that was fixed in advance as the one that counts: of the measure that is registered so."""

    beside: ClassVar[tuple[str, ...]] = ()
    """Attacks on the same questions, with whose scores those of each case are compared."""

    notes: ClassVar[tuple[str, ...]] = ()
    """What a reader of these findings must know."""

    needs_truth: ClassVar[tuple[str, ...]] = ()
    """Attributes of :class:`fedattack.audit.truth.Truth` without which nothing can be judged."""

    draws: ClassVar[int] = DRAWS
    """Exchanges that a test draws."""

    shuffles: ClassVar[int] = 1_000
    """Exchanges that a null is shown by."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # `vars` keeps the order in which a class defines its measures, which is the order of the findings.
        measures = {part.metric: part for part in vars(cls).values() if isinstance(part, Measure)}
        # A subclass's measure of the same metric takes the place of its parent's.
        cls.measures = {**cls.measures, **measures}
        rows = {part.table: part.list_rows for part in vars(cls).values() if isinstance(part, RowsOf)}
        cls.tables = {**cls.tables, **rows}
        for metric, part in measures.items():
            if part.headline:
                cls.headline = metric

    def __init__(self, cases: Sequence[C], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        self.cases = cases
        attack = cases[0].attack
        self.shared: dict[str, Any] = {
            "attack": attack,
            "view": _view_of(cases[0]),
            "paper": ATTACKS[attack].paper,
            "seeds": [case.seed for case in cases],
            "setting": dict(setting),
            "provenance": dict(provenance),
        }

    def findings(self) -> list[Finding]:
        """State what was found, in the order in which it is shown: first the headline."""
        findings = []
        for part in self.measures.values():
            for found in part.found_by(self):
                findings.append(self.state(part, found))
        # `sorted` is stable: behind the headline the order of the measures stays.
        return sorted(findings, key=lambda finding: not finding.headline)

    @property
    def tabled(self) -> Sequence[C]:
        """The cases of which tables are made."""
        return self.cases

    def show(self, *tables: Table) -> dict[str, Any]:
        """Return what a finding's series hold of tables: rows of the first run, or over all, and not too many."""
        series = {}
        for table in tables:
            rows = self._list_rows(table, self.tabled[0])
            # What a page shows is a part; the file has all rows.
            series[table.name] = table.store(islice(rows, table.most))
        return series

    def listed(self) -> list[Listing]:
        """List what was found client by client and target by target; asked for once, after :meth:`findings`.

        A judge that has no table with a file lists nothing for reviewers.
        """
        listings = []
        for table in self.tables:
            if table.file:
                about = table.file.format(judge=self)
                lines = self._list_lines(table)
                listings.append(Listing(table.name, about, table.header, lines, self.shared["attack"]))
        return listings

    def _list_rows(self, table: Table, case: C) -> Iterable[Row]:
        """Return the rows of one run, or those of a table over all runs."""
        list_rows = self.tables[table]
        return list_rows(self) if table.over_runs else list_rows(self, case)

    def _list_lines(self, table: Table) -> Iterator[list[Cell]]:
        """Yield the lines of a table's file: of all runs, each of which begins its lines with its seed."""
        if table.over_runs:
            yield from map(table.cells, self.tables[table](self))
            return
        for case in self.tabled:
            for row in self._list_rows(table, case):
                yield [case.seed, *table.cells(row)]

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach | None:
        """State the best that the headline can come to in these runs, one per seed.

        `needed` is the p that is needed. ``None`` if nothing can be said before the run.
        """
        del runs, needed
        return None

    @classmethod
    def metrics(cls) -> Sequence[str]:
        """Name what it may find, the headline first; ``*`` stands for what depends on the data."""
        return list(cls.measures)

    @classmethod
    def headline_of(cls, scores: Scores) -> str:
        """Name the headline's metric for these scores."""
        del scores
        return cls.headline

    def each(self, read: Callable[[C], T]) -> list[T]:
        """Return what is read of each seed's case."""
        return list(map(read, self.cases))

    def pool(self, read: Callable[[C], NDArray[Any]]) -> NDArray[Any]:
        """Put together what is read of each seed's case, (n, …)."""
        return np.concatenate(self.each(read))

    def rng(self, *stream: int) -> np.random.Generator:
        """Return random numbers of a stream of the first seed, so that the same folder gives the same p."""
        # The same stream for the same question: a second audit of the folder draws the same exchanges.
        return np.random.default_rng((self.cases[0].seed, *stream))

    def state(self, part: Measure, found: Measurement) -> Finding:
        """Make the finding of what a measure found: its verdict, and the facts that all findings carry."""
        test, metric = found.test, found.metric or part.metric
        p = least = below = None
        how = ""
        if test is not None:
            p, least, how, below = test.p, test.least, test.how, test.below
        words, why, kind = found.verdict, "", ""
        if not words:
            words, why = verdict(found.value, found.chance, p, found.bars, found.units, least or 0.0, how)
        # What is certain is a leak without a test, even where the measure says otherwise.
        if found.read_off is not None and found.read_off["certain"]:
            words, why, kind = LEAK, _why_certain(found.read_off, len(self.cases), p), CERTAIN
        grounds = list(found.grounds)
        # What the number is about stands before why the verdict is what it is.
        if why:
            grounds += [Reason(found.reason, ABOUT), Reason(why, kind)]
        else:
            grounds.append(Reason(found.reason))
        spread = {}
        if found.by_seed:
            spread["seed_mean"] = fmean(found.by_seed)
        # `stdev` needs two values.
        if len(found.by_seed) > 1:
            spread["seed_sd"] = stdev(found.by_seed)
        return self.finding(
            metric,
            found.label or part.label,
            value=found.value,
            n=found.n,
            low=found.interval[0],
            high=found.interval[1],
            here_low=found.here[0],
            here_high=found.here[1],
            units=found.units,
            chance=found.chance,
            null=found.null,
            baselines=dict(found.baselines),
            p=p,
            p_least=least,
            p_below=below,
            verdict=words,
            grounds=tuple(grounds),
            # Which measure is the headline may depend on the scores, such as on how many values an attribute has.
            headline=metric == self.headline_of(self.cases[0].scores),
            selected_after_the_fact=found.chosen_among is not None,
            comparisons=found.chosen_among or 1,
            **spread,
            series=dict(found.series),
            read_off=found.read_off,
        )

    def finding(self, metric: str, label: str, **numbers: Any) -> Finding:
        """Make a finding of numbers and words; see :class:`~fedattack.audit.finding.Finding` for its parts."""
        return Finding(metric=metric, label=label, **numbers, **self.shared)

    def title_of(self, case: C, client: str) -> str:
        """Name a client in a list over all seeds."""
        if len(self.cases) == 1:
            return client
        return f"{client} (seed {case.seed})"


def entry_of_client(title: str, credit: NDArray[Any], comparisons: int) -> dict[str, Any]:
    """Measure a client for ``series["per_client"]`` by its targets' credit (n,), n > 0.

    The interval is widened for the choice among so many clients.
    """
    return {"client": title} | Rate.of([credit]).as_entry(comparisons)


def expose_client(worst: Mapping[str, Any], among: int, label: str, reason: str, **parts: Any) -> Measurement:
    """Make a finding of an entry of ``series["per_client"]``: the most exposed client among so many.

    Its test must be of the most exposed client, whoever that is: its statistic is the largest over all clients.
    """
    whose = worst["client"]
    if not worst["value"]:
        # The first of clients that are all alike is no more exposed than the others.
        whose = "none stands out"
    return Measurement(
        label=f"{label} ({whose})",
        reason=f"chosen after the fact among all clients{reason}",
        value=worst["value"],
        n=worst["n"],
        interval=(worst["low"], worst["high"]),
        null=worst["null"],
        chosen_among=among,
        **parts,
    )


def rows_of_clients(judge: Judge[Any], entries: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield rows of a :func:`fedattack.audit.table.clients_table`; entries name clients as :meth:`Judge.title_of`."""
    whose = {}
    for case in judge.cases:
        for name in case.holders:
            # Several seeds have clients of the same names: titles tell them apart, seed and name stand in columns of
            # their own.
            whose[judge.title_of(case, name)] = (case.seed, name)
    for entry in entries:
        # A damaged truth may name owners that are none of its clients.
        seed, client = whose.get(entry["client"], (None, entry["client"]))
        null = (entry.get("null") or {}).get("value")
        yield {**entry, "seed": seed, "client": client, "share": entry.get("share"), "null": null}


def judge_of(attack: str) -> "type[Judge[Any]] | None":
    """Return what judges an attack; ``None`` for a baseline of others."""
    threat = threat_of(attack)
    if threat is None:
        return None
    return threat.find_judge(attack)


def _why_certain(read_off: ReadOff, runs: int, p: float | None) -> str:
    """Say why a leak is one, where what was read off leaves no doubt, whatever p the value has."""
    verb = "is" if read_off["certain"] == 1 else "are"
    why = f"{certain_in_words(read_off, runs)} {verb} certain: an accident would do this less than once in 10¹² times"
    if p is not None and p > ERROR:
        why += f". This decides, and not the test of the value alone, which gives {p_in_words(p)}"
    return why


def _view_of(case: Case[Any]) -> str:
    """Return the view that the attack had: of single replies the sums can be computed, and nothing else."""
    # A record of single replies holds the sums, too: an attack on sums judges those.
    views = ATTACKS[case.attack].needs.views
    if case.record.view in views:
        return case.record.view
    return views[0]
