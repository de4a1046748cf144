"""What was found of one altered copy of a run, and why the rest was not asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fedattack.attacks.registry import declarations
from fedattack.audit.finding import Finding
from fedattack.grids.whatif.alteration import Alteration
from fedattack.report.compare import Run

SUMS_ONLY = "cannot be asked any more: the server sees only sums"
"""Why what needs each client's reply is not asked behind secure aggregation."""


@dataclass(frozen=True)
class AlteredCell:
    """What was found of one altered copy, or of the run as it was.

    Attributes
    ----------
    alteration
        What was changed.
    run
        What was found; ``None`` if nothing could be asked.
    not_asked
        By attack, why it was not made.
    adaptive
        Whether the attackers who can know a defence were told of this one.
    """

    alteration: Alteration
    run: Run | None
    not_asked: Mapping[str, str] = field(default_factory=dict)
    adaptive: bool = False

    @property
    def findings(self) -> list[Finding]:
        """What was found; nothing where nothing could be asked."""
        return self.run.findings if self.run else []

    @property
    def headlines(self) -> list[Finding]:
        """The headlines among these."""
        return [finding for finding in self.findings if finding.headline]

    @cached_property
    def prevented(self) -> list[str]:
        """The attacks that need each client's reply, where the server sees only sums."""
        if self.alteration.kind != "secagg":
            return []
        declared = declarations()
        return [name for name in self.not_asked if name in declared and "aggregate" not in declared[name].needs.views]

    def measures(self, name: str) -> bool:
        """Whether there is a finding of this name; without a name, a headline."""
        names = [finding.name for finding in self.findings]
        return name in names or (not name and bool(self.headlines))

    def explain_absence(self, finding: str) -> str:
        """Say in a few words why there is no finding of this name."""
        attack = finding.partition(".")[0]
        if attack in self.prevented:
            return SUMS_ONLY
        return "not asked"


def list_not_asked(cells: Sequence[AlteredCell]) -> list[str]:
    """Say in a line each which attacks were not made, and why; what sums prevent is said elsewhere."""
    lines = []
    for cell in cells:
        for name, why in cell.not_asked.items():
            if name not in cell.prevented:
                lines.append(f"{cell.alteration.label}, {name}: {why}")
    return lines
