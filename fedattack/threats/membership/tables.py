"""Tables of membership inference: methods beside each other, the clients, and every answer."""

from collections.abc import Callable

from fedattack.audit import kinds
from fedattack.audit.numbers import interval, shown
from fedattack.audit.table import Column, Row, Table, clients_table, in_file

_ESTIMATE = kinds.fields({"value": kinds.SHARE, "low": kinds.SHARE, "high": kinds.SHARE})


def _value_of(key: str) -> Callable[[Row], str]:
    return lambda row: shown(row[key]["value"])


def _interval_of(key: str) -> Callable[[Row], str]:
    return lambda row: interval(row[key]["low"], row[key]["high"])


def _say_area(row: Row) -> str:
    area = row["auc"]
    return f"{area['value']:.3f} ({area['low']:.3f} to {area['high']:.3f})"


METHODS = Table(
    "membership_methods",
    (
        Column("method", "method", kinds.TEXT),
        Column("tpr_1pct", "found at 1% false positives", _ESTIMATE, _value_of("tpr_1pct")),
        Column("", "interval", write=_interval_of("tpr_1pct")),
        Column("tpr_01pct", "at 0.1%", _ESTIMATE, _value_of("tpr_01pct")),
        Column("", "interval", write=_interval_of("tpr_01pct")),
        Column("auc", "area under the curve", _ESTIMATE, _say_area),
    ),
    title="How else could the server ask?",
    caption="The same members and non-members, told apart in other ways. The headline's method was fixed in advance.",
    over_runs=True,
    least=None,
    closed=False,
    about="The same members and non-members told apart by each method.",
)

CLIENTS = clients_table("members found")

RECORDS = Table(
    "records",
    in_file("record", "client", "member", "score", "accused", client="client asked"),
    file="one row for each example that was asked about, with the score of {judge.method}; accused is who has a higher "
    "score than 99% of the non-members",
)

FORMS = {"membership_targets": kinds.by_name(kinds.COUNT)}
"""How many targets there are of each kind, over all seeds."""
