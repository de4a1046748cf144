"""How the finding is shown."""

from fedattack.audit.finding import Finding
from fedattack.report.section import Section, Table


def named(finding: Finding) -> Table:
    """Make a table of who was named."""
    rows = [[entry["client"], str(entry["records"])] for entry in finding.series["named"]]
    return Table("Who was named", "One row a seed.", ["client", "examples"], rows)


SECTION = Section(
    sentences={"named": "The toy server named the largest client in {value} of runs{interval}{chance}."},
    tables=(("named", named),),
)
