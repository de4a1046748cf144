"""Tables of moved rows: the tables of the model, the clients, and the rows one by one."""

from fedattack.audit import kinds
from fedattack.audit.table import Column, Table, in_file

TABLES = Table(
    "tables",
    (
        Column("name", "table", kinds.TEXT),
        Column("rows", "rows", kinds.whole(1), about="Rows that are asked about."),
        Column("used", "used by a client", kinds.number(0, form=",.1f")),
        Column("named", "named", kinds.number(0, form=",.1f")),
        Column("precision", "precision", kinds.SHARE),
        Column("recall", "recall", kinds.SHARE),
        Column("how", "what was not moved", kinds.TEXT, about="How rows that no example moved were recognised."),
    ),
    title="Tables of the model",
    caption="Means over the clients of the first run. Precision: named rows that the client uses. Recall: used rows "
    "that "
    "are named. The last column says how rows that no example moved were recognised.",
    about="The tables of the model, that with most rows first, of the first run; means over clients.",
)

CLIENTS = Table(
    "clients",
    (
        Column("client", "client", kinds.TEXT),
        Column("used", "rows that it uses", kinds.COUNT),
        Column("named", "rows that are named", kinds.COUNT),
        Column("right", "both", kinds.COUNT),
    ),
    title="What was named for each client",
    caption="At most 20 clients of the first run, for the table with most rows.",
    most=20,
    file="one row for each client, by the table with most rows",
    about="Clients of the first run, by the table with most rows.",
)

ROWS = Table(
    "rows",
    in_file("client", "table", "row", "named", "used"),
    file="one row for each client and row of a table that is named or used",
)
