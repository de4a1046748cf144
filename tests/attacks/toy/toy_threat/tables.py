"""Who was named."""

from fedattack.audit import kinds
from fedattack.audit.table import Column, Table

NAMED = Table(
    "named",
    (Column("client", "client", kinds.TEXT), Column("records", "examples", kinds.COUNT)),
    title="Who was named",
    caption="One row a seed.",
    over_runs=True,
)
