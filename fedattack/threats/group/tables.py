"""Tables of private attributes: the clients, and every answer; and which value was taken for which."""

from fedattack.audit import kinds
from fedattack.audit.table import Column, Table

CLIENTS = Table(
    "clients",
    (
        Column("client"),
        Column("attribute"),
        Column("adversary"),
        Column("has"),
        Column("replies"),
        Column("right", file="named rightly"),
    ),
    file="one row for each client, attribute and adversary; named rightly is the share of its replies",
)

REPLIES = Table(
    "replies",
    (
        Column("client"),
        Column("round"),
        Column("attribute"),
        Column("adversary"),
        Column("has"),
        Column("named"),
        Column("confidence"),
        Column("right"),
    ),
    file="one row for each reply, attribute and adversary; right is 1/m where m values are named alike",
)

FORMS = {
    "confusion": kinds.fields(
        {"values": kinds.list_of(kinds.TEXT, 1), "counts": kinds.list_of(kinds.list_of(kinds.COUNT), 1)}
    ),
}
"""How often a client of each value (rows) was taken for each value (columns), over all rounds and seeds."""
