"""Tables of attribute inference: every way to fill a column in, the clients, and every answer."""

from fedattack.audit import kinds
from fedattack.audit.numbers import interval, shown
from fedattack.audit.table import Column, Row, Table, clients_table, in_file, say_interval


def _say_method(row: Row) -> str:
    return f"{row['method']} (baseline)" if row["baseline"] else str(row["method"])


def _say_excess(row: Row) -> str:
    return shown(row["excess"], "")


def _say_excess_interval(row: Row) -> str:
    return interval(row["excess_low"], row["excess_high"], "")


TOLERANCE = 0.319
"""How many standard deviations of its column a number may be off, as for values of rows that trees tell."""

_END = kinds.optional(kinds.SHARE)
_POINTS = kinds.optional(kinds.NUMBER)

METHODS = Table(
    "methods",
    (
        Column("method", "method", kinds.TEXT, _say_method),
        Column("baseline", kind=kinds.YES_OR_NO),
        Column("accuracy", "accuracy", kinds.SHARE),
        Column("low", "interval", _END, say_interval),
        Column("high", kind=_END),
        Column("balanced", "balanced accuracy", kinds.SHARE),
        Column("rare_recall", "recall of {rare}", kinds.SHARE),
        Column("excess", "excess", kinds.NUMBER, _say_excess),
        Column("excess_low", "interval", _POINTS, _say_excess_interval),
        Column("excess_high", kind=_POINTS),
    ),
    over_runs=True,
    closed=False,
)
"""It stands in the series of all methods, which says what was asked for, too."""

CLIENTS = clients_table("values recovered")

RECORDS = Table(
    "records",
    in_file(
        *("seed", "record", "client", "true", "said", "answered", "score", "right", "baseline"),
        true="true value",
        said="said value",
        baseline="best baseline says",
    ),
    file="one row for each example, with the value of {judge.column} that {judge.main} names; an example without an "
    "answer counts as the commonest value; the best baseline is {judge.best}",
    over_runs=True,
)

NUMBERS = Table(
    "numbers",
    (
        Column("method", "method", kinds.TEXT, _say_method),
        Column("baseline", kind=kinds.YES_OR_NO),
        Column("near", "met", kinds.SHARE),
        Column("low", "interval", _END, say_interval),
        Column("high", kind=_END),
        Column("rank", "rank correlation", kinds.NUMBER),
    ),
    over_runs=True,
)
"""Every way to estimate a column of numbers."""

NUMBER_CLIENTS = clients_table("numbers met")

ESTIMATES = Table(
    "estimates",
    in_file(
        *("seed", "record", "client", "true", "said", "answered", "near", "baseline", "baseline_near"),
        true="true number",
        said="estimate",
        near="met",
        baseline="best baseline says",
        baseline_near="best baseline meets it",
    ),
    file="one row for each example, with its number and its estimate; an example without an answer counts as the "
    "commonest number",
    over_runs=True,
)

_VALUES = kinds.list_of(kinds.TEXT, 2)

FORMS = {
    "column": kinds.fields({"name": kinds.TEXT, "tolerance": kinds.NUMBER}),
    "asked": kinds.fields({"column": kinds.TEXT, "values": _VALUES}, {"rarest": kinds.TEXT}),
    "attributes": kinds.fields(
        {
            "column": kinds.TEXT,
            "values": _VALUES,
            "rarest": kinds.TEXT,
            "best_baseline": kinds.TEXT,
            "imputed_by": kinds.list_of(kinds.TEXT),
            "random": kinds.SHARE,
            "methods": METHODS.form,
        }
    ),
}
"""A column of numbers, and how far these may be off; a column that is asked for, its values, and the rarest one where
scores are about it; and every way to fill it in.

The accuracy of a value at random is ``random``. The excess over the best baseline is in points.
"""
