"""Tables of what was read off trees: the clients, and the columns."""

from fedattack.audit import kinds
from fedattack.audit.table import Column, Table

CLIENTS = Table(
    "clients",
    (
        Column("client", "client", kinds.TEXT),
        Column("trees", "trees", kinds.COUNT),
        Column("rows", "rows that are known", kinds.whole(1), file=None, about="Rows of the client that are known."),
        Column("read", "rows rebuilt", kinds.whole(1), file=None, about="Rows that were rebuilt."),
        Column("rows_met", "rows", kinds.SHARE, file="rows"),
        Column("values_met", "values of rows", kinds.SHARE, file="values"),
        Column("columns_met", "values of columns", kinds.SHARE, file="columns"),
    ),
    title="What was read for each client",
    caption="At most 20 clients of the first run. Rows are whole rows within the tolerance. Values of columns are "
    "those that appear in a tree as a threshold.",
    most=20,
    file="one row for each client: shares of its rows, of values of its rows and of its columns that were read",
    about="Clients of the first run.",
)

COLUMNS = Table(
    "columns",
    (
        Column("column", "column", kinds.index(0)),
        Column("thresholds", "thresholds", kinds.number(0, form=",.1f")),
        Column("met", "values that are one", kinds.SHARE),
    ),
    title="What was read for each column",
    caption="At most 20 columns of the first run, means over clients: the different thresholds, and the share of a "
    "client's values among its own thresholds.",
    most=20,
    about="Columns of the first run, means over clients.",
)
