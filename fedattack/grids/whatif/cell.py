"""What came out of one altered copy of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedattack.audit.finding import Finding
from fedattack.grids.whatif.alteration import Alteration
from fedattack.report.compare import Run


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
        return [] if self.run is None else self.run.findings

    def measures(self, name: str) -> bool:
        """Whether there is a finding of this name; without a name, a headline."""
        return any(finding.name == name or (not name and finding.headline) for finding in self.findings)
