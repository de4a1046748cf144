"""Tables of sequences: the clients, and every sequence that is found or true."""

from fedattack.audit import kinds
from fedattack.audit.table import Column, Row, Table, in_file


def _say_span(row: Row) -> str:
    return f"{row['rank']:,} of {row['width']:,}"


CLIENTS = Table(
    "clients",
    (
        Column("client", "client", kinds.TEXT),
        Column("sequences", "sequences", kinds.whole(1)),
        Column("tokens", "their tokens", kinds.COUNT, file=None, about="Over all its sequences."),
        Column("found", "found", kinds.COUNT, about="Sequences that were found."),
        Column("exact", "exact", kinds.SHARE),
        Column("rouge1", "ROUGE-1", kinds.SHARE, file=None),
        Column("rouge2", "ROUGE-2", kinds.SHARE, file=None),
        Column("rank", "span", kinds.COUNT, _say_span, file=None, about="The larger of the spans."),
        Column("width", kind=kinds.COUNT, file=None, about="Numbers of an input: no span tells of as many tokens."),
    ),
    title="What was found for each client",
    caption="At most 20 clients of the first run. ROUGE-1 and ROUGE-2 are F1 scores of tokens and of neighbouring "
    "pairs. The last column says how much of the layers' input space the gradient spans: near the whole, it reveals "
    "nothing.",
    most=20,
    file="one row for each client",
    about="Clients of the first run.",
)

SEQUENCES = Table(
    "sequences",
    in_file("client", "tokens", "found", "trained", trained="times trained"),
    file="one row for each client and sequence that is found or true",
)
