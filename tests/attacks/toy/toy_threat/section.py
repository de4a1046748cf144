"""How the finding is shown."""

from fedattack.report.section import Section
from toy_threat.tables import CLIENTS

SECTION = Section(
    sentences={"named": "The toy server named the largest client in {value} of runs{interval}{chance}."},
    tables=(CLIENTS,),
)
