"""Tables of source inference: ways to combine rounds, most exposed examples, and every answer."""

from fedattack.audit import kinds
from fedattack.audit.numbers import NOTHING, shown
from fedattack.audit.table import Column, Row, Table, clients_table, in_file, say_interval


def _say_times(row: Row) -> str:
    return shown(row["value"] / row["chance"], "") if row["chance"] else NOTHING


def _say_null(row: Row) -> str:
    return shown(row["null"]["value"] if row["null"] else None)


def _say_confidence(row: Row) -> str:
    return shown(row["posterior"])


COMBINING = Table(
    "combining",
    (
        Column("way", "named from", kinds.TEXT),
        Column("value", "result", kinds.SHARE),
        Column("low", "{level} interval", kinds.SHARE, say_interval),
        Column("high", kind=kinds.SHARE),
        Column("chance", "chance", kinds.SHARE),
        Column("", "× chance", write=_say_times),
        Column("null", "null run", kinds.optional(kinds.fields({"value": kinds.SHARE})), _say_null),
        Column("n", "targets", kinds.whole(1)),
    ),
    title="Does combining rounds help?",
    caption="The same targets, named from one round or from all. If not all clients take part, a single round has "
    "fewer to choose from, so its chance is higher; targets count if their owner was seen.",
    over_runs=True,
    least=None,
    closed=False,
    about="The same targets named from one round or from all; chance and n differ if not all clients are seen in "
    "every round.",
)

MOST_EXPOSED = Table(
    "most_exposed",
    (
        Column("record", "record", kinds.INDEX),
        Column("client", "client named", kinds.TEXT),
        Column("right", "right", kinds.YES_OR_NO),
        Column("posterior", "confidence", kinds.NUMBER, _say_confidence),
    ),
    title="{label}: most exposed examples",
    caption="The targets about whose owner the server was most sure, right or wrong; the first {shown} of {listed} "
    "listed.",
    most=10,
    over_runs=True,
    least=None,
    closed=False,
    about="The answers that the attack was most sure about, and whether they are right.",
)

CLIENTS = clients_table("owner named")

RECORDS = Table(
    "records",
    in_file("record", "holders", "named", "confidence", "right", holders="held by", named="client named"),
    file="one row for each example that was asked about; right is 1/m if m clients tie, and empty if no "
    "client that was seen holds the example",
)

FORMS = {
    "explained": kinds.fields(
        {
            "value": kinds.SHARE,
            "n": kinds.whole(1),
            "parts": kinds.list_of(kinds.fields({"part": kinds.TEXT, "value": kinds.number(-1, 1)}), 1),
        }
    ),
    "targets": kinds.by_name(kinds.COUNT),
}
"""What the success is made of, each part what one null has more than the one before; and targets of each kind."""
