"""How private attributes are shown: by round, by stated confidence, and which value was taken for which."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedattack.audit.finding import Finding
from fedattack.report.remedies import remedies_beside
from fedattack.report.section import PER_ROUND, RELIABILITY, Lists, Section, Table, forms_beside


def _confusion(finding: Finding) -> Table:
    values, counts = finding.series["confusion"]["values"], finding.series["confusion"]["counts"]
    return Table(
        f"{finding.label}: which value was taken for which",
        "A row is the value that clients have, a column the value that the server named. The server names one value "
        "for each reply, so a client counts once for each of its rounds.",
        ["clients have", *map("named {}".format, values)],
        [[value, *map("{:,}".format, row)] for value, row in zip(values, counts, strict=True)],
    )


def _lists(series: Mapping[str, Any]) -> Iterator[Lists]:
    if "confusion" not in series:
        return
    values, counts = series["confusion"]["values"], series["confusion"]["counts"]
    yield "confusion", {"values": values, "counts": counts}
    for number, row in enumerate(counts):
        yield "confusion", {"values": values, f"counts[{number}]": row}


SECTION = Section(
    question="Can the server tell what a client's examples have in common?",
    remedies=remedies_beside(__file__),
    figures=(PER_ROUND, RELIABILITY),
    tables=(("confusion", _confusion),),
    forms=forms_beside(__file__),
    lists=_lists,
)
