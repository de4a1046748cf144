"""Who was named."""

from fedattack.audit import kinds
from fedattack.audit.table import Column, Table

CLIENTS = Table(
    "clients",
    (
        Column("client", "client", kinds.TEXT),
        Column("records", "examples", kinds.COUNT),
        Column("named", "named", kinds.YES_OR_NO),
    ),
    title="Who was named",
    caption="Clients of the first run; {shown} of {listed} are shown.",
    file="How many examples each client holds, and which client was named",
    most=50,
)
