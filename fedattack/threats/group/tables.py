"""Tables of private attributes: the clients, and every answer; and which value was taken for which."""

from fedattack.audit import kinds
from fedattack.audit.table import Table, in_file

CLIENTS = Table(
    "clients",
    in_file("client", "attribute", "adversary", "has", "replies", "right", right="named rightly"),
    file="one row for each client, attribute and adversary; named right is the share of its replies",
)

REPLIES = Table(
    "replies",
    in_file("client", "round", "attribute", "adversary", "has", "named", "confidence", "right"),
    file="one row for each reply, attribute and adversary; right is 1/m if m values tie",
)

FORMS = {
    "confusion": kinds.fields(
        {"values": kinds.list_of(kinds.TEXT, 1), "counts": kinds.list_of(kinds.list_of(kinds.COUNT), 1)}
    ),
}
"""How often a client of each value (rows) was taken for each value (columns), over all rounds and seeds."""
