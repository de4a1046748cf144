"""Tables of examples that were read off: the rules, the clients, the rounds, whole batches, and every example."""

from fedattack.audit import kinds
from fedattack.audit.numbers import NOTHING
from fedattack.audit.table import Column, Row, Table, in_file


def _say_error(row: Row) -> str:
    return f"{row['error']:.0e}" if row["right"] else NOTHING


def _say_why(row: Row) -> str:
    return row["why"] or NOTHING


RULES = Table(
    "rules",
    (
        Column("rule", "rule", kinds.choice("two neurons", "known values", "whole batch")),
        Column("named", "read off", kinds.COUNT, about="Examples that were recovered."),
        Column("right", "of these training examples", kinds.COUNT, about="How many of them are training examples."),
        Column(
            "error",
            "largest error",
            kinds.number(0),
            _say_error,
            about="Largest error of these, as a share of the feature's range.",
        ),
    ),
    title="How examples were told from mixtures",
    caption="Over all runs. The largest error of correct examples is a share of the feature's range.",
    over_runs=True,
    about="How examples were told from mixtures, over all runs.",
)

CLIENTS = Table(
    "clients",
    (
        Column("client", "client", kinds.TEXT),
        Column("examples", "examples", kinds.whole(1)),
        Column("read", "recovered exactly", kinds.COUNT, file="read off", about="How many were recovered exactly."),
    ),
    title="What was recovered for each client",
    caption="At most 20 clients of the first run.",
    most=20,
    file="one row for each client",
    about="Clients of the first run.",
)

ROUNDS = Table(
    "rounds",
    (
        Column("round", "after round", kinds.whole()),
        Column("share", "read off", kinds.SHARE),
    ),
    title="After how many rounds",
    caption="The share of all examples of the first run that was recovered by then.",
    about="The share of all examples of the first run that was recovered by each round.",
)

UPDATES = Table(
    "updates",
    (
        Column("round", "round", kinds.whole()),
        Column("client", "client", kinds.TEXT),
        Column("batch", "examples", kinds.COUNT, about="Examples; 0 where nobody knows how many."),
        Column("found", "found", kinds.COUNT),
        Column("why", "why not", kinds.TEXT, _say_why, about="Why it was not separated; empty if it was."),
    ),
    title="All examples of an update",
    caption="Updates of the first run, at most 20: whether they were separated into all their examples, and why not. "
    "Of updates that were not separated for the same reason, the first one is listed.",
    most=20,
    about="Updates of the first run: whether they were separated into all their examples, and why not.",
)

EXAMPLES = Table(
    "examples",
    in_file(
        *("client", "group", "round", "rule", "holder", "error"),
        holder="trained on by",
        error="largest error, of the span",
    ),
    file="one row for each recovered example, with the named and the true owner",
)
