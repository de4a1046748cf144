"""Tables of counted labels: the rules beside each other, the clients, and every count."""

from fedattack.audit import kinds
from fedattack.audit.table import Column, Row, Table, in_file

_RULES = {
    "solved": "solved for the mixture of labels",
    "llg-plus": "LLG with impact and offset",
    "llg": "LLG",
    "idlg": "iDLG, label by label",
}

_ERROR = kinds.number(0, form=".2f")

RULES = Table(
    "rules",
    (
        Column("rule", "rule", kinds.choice(words=_RULES)),
        Column("right", "counted right", kinds.SHARE, about="Share of the labels that is counted right."),
        Column("present", "labels present and named", kinds.SHARE, about="Share of the labels held that is named."),
        Column("error", "mean absolute error", _ERROR, about="Mean absolute error of counts, in examples."),
    ),
    title="Rules on the same updates",
    caption="The first rule counts for the findings. It was fixed before the run. Means over all clients; the error is "
    "in examples of a label.",
    over_runs=True,
    about="Each rule on the same updates, over all clients of all runs.",
)


def _say_named(row: Row) -> str:
    return f"{row['named']:,} of {row['there']:,}"


CLIENTS = Table(
    "clients",
    (
        Column("client", "client", kinds.TEXT),
        Column("examples", "examples", kinds.whole(1)),
        Column("right", "counted right", kinds.SHARE, file="counted right"),
        Column("error", "mean absolute error", _ERROR, file="mean absolute error"),
        Column("there", kind=kinds.whole(1), file=None, about="Labels that the client holds."),
        Column("named", "labels present and named", kinds.COUNT, _say_named, None, "Those that are counted at all."),
        Column(
            "wrong",
            "named but not present",
            kinds.COUNT,
            file=None,
            about="Labels counted that the client does not hold.",
        ),
    ),
    title="What was counted for each client",
    caption="At most 20 clients of the first run. A label is named if it is counted at least once.",
    most=20,
    file="one row for each client, by the rule that counts best",
    about="Clients of the first run, by the rule that counts.",
)

COUNTS = Table(
    "counts",
    in_file("client", "rule", "label", "counted", "true"),
    file="one row for each client, rule and label that the client holds or that is counted",
)
