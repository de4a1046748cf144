"""Judge plaintext: how often the numbers beside a client's model are nearest to an example on which it trained."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedattack.audit.finding import AUC, CANNOT_TELL, ERROR, NO_EVIDENCE, PROPORTION, ReadOff
from fedattack.audit.judge import Judge
from fedattack.audit.measures import UNKNOWN, Measurement, Rate, measure, no_value
from fedattack.audit.readoff import read_off
from fedattack.audit.summaries import null_of
from fedattack.audit.table import Row, Table, rows_of
from fedattack.base.errors import short
from fedattack.threats.plaintext.arrays import SUM
from fedattack.threats.plaintext.case import Floats, PlaintextCase
from fedattack.threats.plaintext.contents import Contents
from fedattack.threats.plaintext.exchange import Nearest
from fedattack.threats.plaintext.groups import SmallGroups
from fedattack.threats.plaintext.items import EXAMPLES
from fedattack.threats.plaintext.row_links import Link, Linked
from fedattack.threats.plaintext.tables import (
    BESIDE,
    CLIENTS,
    CONTENTS,
    EACH_VECTOR,
    GROUPS,
    UNREAD,
    VALUE_LISTS,
    VECTORS,
)
from fedattack.threats.plaintext.value_rows import list_value_rows

EQUAL = 0.9999
"""Likeness from which on a vector is an example, but for scale, offset and rounding."""

# Streams of random numbers, apart from each other.
_SHUFFLING, _TESTING, _EXAMPLES, _STATISTICS, _VALUES, _GROUPS, _COLUMNS, _NORMS = 1, 2, 3, 4, 5, 6, 7, 8

ListLinks = Callable[[PlaintextCase, np.random.Generator], Sequence[tuple[str, Link]]]
"""Links what rows tell to examples, by clients."""


class PlaintextJudge(Judge[PlaintextCase]):
    """States of how many vectors beside the model the nearest known example is one that the client trained on.

    It is the mean over clients that send as many numbers as an example has, of the name whose vectors tell most. The
    test exchanges who is who among these, and chooses the name anew each time.
    """

    case = PlaintextCase
    notes = (
        "The null of plaintext.own-examples is the same vectors beside other clients' examples. What else is sent in "
        "plaintext is listed, and not tested. A vector is an example for sure if it has twelve different numbers or "
        "more, and if every example of other clients, or of nobody, is a thousand times less similar.",
    )

    @measure("own-examples", "Vectors beside the model that are nearest to an own training example", headline=True)
    def find_own_examples(self) -> Measurement:
        """Count the vectors that are nearest to an own example."""
        series = {name: rows for name, rows in self.show(BESIDE, UNREAD).items() if rows}
        if not any(self.each(lambda case: case.vectors)):
            reason = "no reply holds a list or a family of numbers that could be an example, so there is nothing to ask"
            return replace(self._find_nothing(reason, series), value=None, n=0, interval=UNKNOWN)
        if any(self.each(lambda case: case.vectors and case.examples is None)):
            reason = (
                "replies hold lists or families of numbers, and no example of one array of numbers is known of a client"
            )
            return no_value(reason, series=series)
        if not self._senders:
            lengths = {case.examples.x.shape[1] for case in self.cases if case.examples is not None}
            sizes = ", ".join(map(str, sorted(lengths)))
            return self._find_nothing(
                f"no list or family of numbers is as long as an example ({sizes} numbers)", series
            )
        nearest = self._nearest
        rate = Rate.of([np.diagonal(share) for share in nearest.shares[nearest.best]])
        null = nearest.draw(np.random.default_rng((self._senders[0].seed, _SHUFFLING)), self.shuffles)
        return rate.measured(
            "the null is the same vectors beside other clients' examples",
            value=float(nearest.own(nearest.best).mean()),
            interval=rate.interval(comparisons=len(nearest.shares)),
            null=null_of(null.tolist(), rate.n),
            chance=float(null.mean()),
            test=nearest.test(np.random.default_rng((self._senders[0].seed, _TESTING))),
            series=series | self.show(VECTORS),
            by_seed=rate.by_seed,
            read_off=self._sum_up_equal(),
        )

    def _sum_up_equal(self) -> ReadOff:
        """Count the vectors that are an example of their sender's own, of all names."""
        right, certain = zip(*(case.count_certain(EQUAL) for case in self._senders), strict=True)
        return read_off("example", right, certain)

    @cached_property
    def _senders(self) -> list[PlaintextCase]:
        """The seeds in which clients send as many numbers as an example has."""
        return [case for case in self.cases if case.senders]

    @cached_property
    def _nearest(self) -> Nearest:
        """The vectors of all seeds together, by their names."""
        names: set[str] = set()
        for case in self._senders:
            names.update(name for _, name, *_ in case.nearest)
        shares: dict[str, tuple[Floats, ...]] = {}
        for name in sorted(names):
            shares[name] = tuple(case.shares(name) for case in self._senders)
        return Nearest(shares)

    def _find_nothing(self, reason: str, series: dict[str, Any]) -> Measurement:
        clients = self.each(lambda case: _count_senders(case.clients))
        nobody = Rate([0.0] * len(clients), clients)
        interval = nobody.interval() if all(clients) else UNKNOWN
        verdict = NO_EVIDENCE
        if "unread" in series:
            names = ", ".join(f"{array['name']} ({array['shape']})" for array in series["unread"])
            reason = f"replies hold arrays beside the model that no attack reads: {short(names, 200)}; {reason}"
            verdict = CANNOT_TELL
        # Where the server sees a sum alone, there is no client of which to say it.
        value = 0.0 if nobody.n else None
        return Measurement(value=value, n=nobody.n, reason=reason, interval=interval, verdict=verdict, series=series)

    @measure("given-away", "Own training examples that appear in what clients send")
    def find_given_away(self) -> Measurement | None:
        """Count the examples of a client that stand in what it sends: as they are, scaled, or in part."""
        return self._judge_contents(self._contents, "example", _EXAMPLES, CONTENTS)

    @measure("statistics", "Statistics, counts and labels of own examples that appear in what clients send")
    def find_statistics(self) -> Measurement | None:
        """Count the statistics of a client's examples that stand in what it sends, to the last digits."""
        return self._judge_contents(self._contents, "statistic", _STATISTICS, CONTENTS)

    @measure("single-values", "Own examples whose losses, predictions or embeddings appear in what clients send")
    def find_single_values(self) -> Measurement | None:
        """Count the examples of a client of which it sends a value that a model gives."""
        blocks = [case.values for case in self.cases if case.values is not None]
        found = self._judge_contents(blocks, "example", _VALUES, VALUE_LISTS)
        if found is not None or not any(self.each(lambda case: case.found.values)):
            return found
        return self._find_nothing(
            "lists that may be values of single examples hold none that a known example gives", self._show(VALUE_LISTS)
        )

    @measure("small-groups", "Groups of few own examples whose sizes clients send")
    def find_small_groups(self) -> Measurement | None:
        """Count, of the groups whose sizes a client sends, those of few examples; nothing where no numbers add up."""
        groups = self._groups
        if not groups.by_name:
            return None
        rate = Rate.of(groups.shares(groups.best))
        null = groups.draw(np.random.default_rng((self.cases[0].seed, _GROUPS, _SHUFFLING)), self.shuffles)
        right: list[Any] = []
        certain: list[Any] = []
        for name, of_name in groups.by_name.items():
            # A client's list of sizes is one thing that is told, however many small groups it has.
            told = [(sizes.count_small(groups.least) > 0).astype(np.int64) for sizes in of_name]
            right += told
            certain += [of_clients * groups.is_certain(name) for of_clients in told]
        return rate.measured(
            f"small groups are of fewer than {groups.least} examples; the null is lists each of whose numbers may be "
            "any client's",
            interval=rate.interval(comparisons=len(groups.by_name)),
            null=null_of(null.tolist(), rate.n),
            chance=float(null.mean()),
            test=groups.test(np.random.default_rng((self.cases[0].seed, _GROUPS, _TESTING))),
            series=self._show(GROUPS),
            by_seed=rate.by_seed,
            read_off=read_off("size list", right, certain),
        )

    @cached_property
    def _groups(self) -> SmallGroups:
        """The sizes of groups that clients send, of all runs."""
        return SmallGroups.of_runs([case.group_sizes for case in self.cases], self.cases[0].found.smallest_group)

    @rows_of(GROUPS)
    def list_groups(self) -> Iterable[Row]:
        """List by name what sizes of groups clients send, over all runs."""
        rows = []
        for (name, type_), of_name in self._groups.by_name.items():
            row = {"name": short(name, 200), "type": type_, "least": self._groups.least}
            row["small"] = sum(int(sizes.count_small(self._groups.least).sum()) for sizes in of_name)
            row["single"] = sum(int(sizes.count_small(2).sum()) for sizes in of_name)
            row["groups"] = sum(int(sizes.filled.sum()) for sizes in of_name)
            row["clients"] = sum(int(sizes.add_up.sum()) for sizes in of_name)
            row["senders"] = sum(len(sizes.clients) for sizes in of_name)
            row["certain"] = self._groups.is_certain((name, type_))
            rows.append(row)
        return sorted(rows, key=lambda row: (not row["certain"], -row["small"]))

    @measure("columns", "Columns of own examples that are a linear image of what a client sends row by row")
    def find_columns(self) -> Measurement | None:
        """Make columns of examples of embeddings, by rows that the attacker knows, and try it on others."""
        found = self._judge_links(
            PlaintextCase.link_columns, _COLUMNS, PROPORTION, "how much of a column's variance a linear image explains"
        )
        names = dict.fromkeys(name for case in self.cases for name in case.query_rows)
        if found is not None or not names:
            return found
        return no_value(
            f"clients answer queries with arrays that have rows, as embeddings are: {short(', '.join(names), 200)}. "
            "Nobody knows which row is which example: state the examples in the order of the rows by --examples "
            "module:function; mini-batches need the numbers of their rows beside them, or all rows in their order"
        )

    @measure("gradient-labels", "Labels that the norms of rows tell that a client is sent")
    def find_gradient_labels(self) -> Measurement | None:
        """Tell labels of two classes by the norms of gradients."""
        return self._judge_links(
            PlaintextCase.link_norms, _NORMS, AUC, "the area under the ROC curve of the rows' norms"
        )

    def _judge_links(self, list_links: ListLinks, stream: int, units: str, what: str) -> Measurement | None:
        """Judge what rows tell of examples; nothing where it is not known which row is which example."""
        by_run = []
        for case in self.cases:
            rng = np.random.default_rng((case.seed, stream))
            if links := [each for _, each in list_links(case, rng)]:
                by_run.append(links)
        if not by_run:
            return None
        linked = Linked(by_run)
        rate = Rate.of(linked.scores)
        null = linked.draw(np.random.default_rng((self.cases[0].seed, stream, _SHUFFLING)), 200)
        test = linked.test(np.random.default_rng((self.cases[0].seed, stream, _TESTING)))
        reason = (
            f"the value is {what}, the mean over clients; the null is the same where the examples change their rows"
        )
        verdict = ""
        if linked.assumed:
            reason += (
                f"; no number names the rows of {short(linked.assumed, 200)}, so batches are assumed to be consecutive"
            )
            if test.p > ERROR:
                reason += ". They fit nothing: batches may be shuffled, so nobody can tell which row is which"
                verdict = CANNOT_TELL
        return rate.measured(
            reason,
            null=null_of(null.tolist(), rate.n),
            chance=float(null.mean()),
            test=test,
            by_seed=rate.by_seed,
            units=units,
            verdict=verdict,
        )

    def _show(self, table: Table) -> dict[str, Any]:
        return {name: rows for name, rows in self.show(table).items() if rows}

    def _judge_contents(self, blocks: Sequence[Contents], what: str, stream: int, table: Table) -> Measurement | None:
        """Judge what of clients' examples stands in what they send; nothing where no example is known."""
        if not blocks:
            return None
        examples = stream == _EXAMPLES
        by_block = [contents.shares(examples=examples) for contents in blocks]
        names = sorted({name for shares in by_block for name in shares})
        clients = [len(contents.clients) for contents in blocks]
        if not names:
            # The sums are one more block of the same clients, unless there is nothing else.
            senders = [*filter(None, (_count_senders(contents.clients) for contents in blocks))] or clients
            nobody = Rate([0.0] * len(senders), senders)
            reason = f"no {what} that is known of a client appears in what it sends"
            return Measurement(value=0.0, n=nobody.n, reason=reason, interval=nobody.interval(), verdict=NO_EVIDENCE)
        none = [np.zeros((count, count)) for count in clients]
        found = Nearest(
            {
                name: tuple(shares.get(name, zeros) for shares, zeros in zip(by_block, none, strict=True))
                for name in names
            }
        )
        rate = Rate.of([np.diagonal(share) for share in found.shares[found.best]])
        null = found.draw(np.random.default_rng((self.cases[0].seed, stream, _SHUFFLING)), self.shuffles)
        right, certain = zip(*(contents.count_read(examples=examples) for contents in blocks), strict=True)
        reason = "the null is what other clients send"
        if rate.value:
            reason += f"; most appears in {found.best}"
        return rate.measured(
            reason,
            interval=rate.interval(comparisons=len(names)),
            null=null_of(null.tolist(), rate.n),
            chance=float(null.mean()),
            test=found.test(np.random.default_rng((self.cases[0].seed, stream, _TESTING))),
            series=self._show(table),
            by_seed=rate.by_seed,
            read_off=read_off(what, right, certain),
        )

    @cached_property
    def _contents(self) -> list[Contents]:
        """What stands in what clients send, and in sums, of all runs."""
        return [contents for case in self.cases for contents in case.contents]

    @rows_of(CONTENTS)
    def list_contents(self) -> Iterable[Row]:
        """List by name what stands there, over all runs."""
        rows: dict[tuple[str, str, str], dict[str, Any]] = {}
        for contents in self._contents:
            for matches, sure in zip(contents.matches, contents.certain, strict=True):
                if not matches.own:
                    continue
                empty = {"found": 0, "items": 0, "certain": 0, "clients": 0, "others": 0.0, "how": ""}
                key = {"name": short(matches.name, 200), "type": matches.type, "kind": matches.kind}
                row = rows.setdefault((matches.name, matches.type, matches.kind), {**key, **empty})
                row["found"] += len(matches.own)
                row["items"] += contents.sizes[matches.kind, matches.sender]
                row["certain"] += len(sure)
                row["clients"] += 1
                row["others"] += sum(len(items) for holder, items in matches.items.items() if holder != matches.sender)
                # What stands there as it is, is found whatever its scale, too.
                row["how"] = row["how"] or min(matches.how, default="")
        return sorted(rows.values(), key=lambda row: (row["kind"] != EXAMPLES, -row["certain"], -row["found"]))

    @rows_of(VALUE_LISTS)
    def list_values(self) -> Iterable[Row]:
        """List by name what may be values of single examples, and what is found in it, over all runs."""
        return list_value_rows(self.cases)

    @rows_of(BESIDE)
    def describe_keys(self, case: PlaintextCase) -> Iterable[Row]:
        """Describe what a run has in plaintext."""
        return map(asdict, case.found.keys)

    @rows_of(UNREAD)
    def describe_unread(self, case: PlaintextCase) -> Iterable[Row]:
        """Describe the arrays beside the model that nobody reads."""
        return map(asdict, case.found.arrays)

    @rows_of(VECTORS)
    def count_vectors(self) -> Iterable[Row]:
        """Count by name how many candidates are nearest to an own example, and how many are one."""
        rows: dict[str, dict[str, Any]] = {}
        for case in self._senders:
            for client, name, holders, best in case.nearest:
                row = rows.setdefault(name, {"name": name, "vectors": 0, "own": 0.0, "equal": 0})
                row["vectors"] += 1
                row["own"] += holders.get(client, 0.0)
                row["equal"] += client in holders and best >= EQUAL
        return rows.values()

    @rows_of(CLIENTS)
    def list_clients(self, case: PlaintextCase) -> Iterator[Row]:
        """List the clients that send as many numbers as an example has."""
        if not case.senders:
            return
        best = self._nearest.best
        sent = [(client, name) for client, name, *_ in case.nearest]
        for client, share in zip(case.senders, np.diagonal(case.shares(best)), strict=True):
            yield {"client": client, "name": best, "vectors": sent.count((client, best)), "own": float(share)}

    @rows_of(EACH_VECTOR)
    def list_vectors(self, case: PlaintextCase) -> Iterator[Row]:
        """List every vector that is as long as an example."""
        for client, name, holders, best in case.nearest:
            whose = " | ".join(holder or "nobody" for holder in holders)
            own = holders.get(client, 0.0)
            yield {"client": client, "name": name, "holders": whose, "own": own, "likeness": best}


def _count_senders(clients: Iterable[str]) -> int:
    """Count clients; what the server sees as a sum has a name among them, and is none."""
    return sum(client != SUM for client in clients)
