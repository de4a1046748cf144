"""Altered copies of a finished run as a grid: the same attacks on each, judged as the run was judged."""

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedattack.attacks import ATTACKS, Attack, Knowledge, KnownDefence, write_knowledge
from fedattack.attacks.knowledge import BUILT_IN
from fedattack.attacks.matching import named_for
from fedattack.base.errors import ConfigError, FedAttackError, NeedsError, RunError
from fedattack.base.files import make_private
from fedattack.base.version import __version__
from fedattack.grids.cell import CELLS
from fedattack.grids.engine import Design, Outcome, run_grid
from fedattack.grids.page import Results
from fedattack.grids.whatif.alteration import NOTHING, Alteration, alter_record
from fedattack.grids.whatif.altered import AlteredCell
from fedattack.grids.whatif.asked import list_siblings
from fedattack.grids.whatif.copying import copy_knowledge, copy_truth
from fedattack.grids.whatif.page import list_limits, write_pages
from fedattack.record import Record
from fedattack.record.folder import Part, copy_zoos, read_study, write_study
from fedattack.record.project import ALTERED, copy_record
from fedattack.report.compare import Run, facts_of, read_compared
from fedattack.report.words import shown
from fedattack.runs.asked import known_to
from fedattack.runs.pipeline import attack_folder, judge_folder
from fedattack.runs.watch import Watch


def what_if(design: "Altering") -> dict[str, Any]:
    """Attack a run as it was and as it would have looked altered; nothing in its folder is changed.

    Writes ``what-if.json``, ``.md`` and ``.html`` to a new folder, and a run folder for each copy in its ``cells``.

    Returns
    -------
    dict
        What ``what-if.json`` holds. What was found stands in ``design.found``.

    Raises
    ------
    ConfigError
        If the folder of the results is there already.
    FedAttackError
        If no attack can be made of the run as it was.
    """
    out = design.request.folder
    try:
        out.mkdir(parents=True, mode=0o700)
    except OSError as cause:
        raise ConfigError(f"{out} cannot be created ({cause}); give this comparison a folder of its own") from None
    try:
        return run_grid(design)
    except BaseException:
        # No run was judged yet.
        if all(cell.run is None for cell in design.found.values()):
            # Nothing was found yet, and the corrected command may use the folder again.
            shutil.rmtree(out)
        raise


@dataclass(kw_only=True)
class Altering(Design[Alteration]):
    """How copies are made, attacked and shown; the first cell alters nothing, and is the run as it was.

    Attributes
    ----------
    folder, parts
        The run.
    attacks
        The run's attacks, what it is about first.
    choose
        Returns attacks by their names, with their options.
    seed
        Decides the noise.
    trusted
        Import paths and paths of the run folder that may be followed.
    command
        The command line, kept for the reports.
    found
        What came out of each copy so far, by its name.
    """

    name: str = "what-if"
    folder: Path
    parts: Sequence[Part]
    attacks: Sequence[str]
    choose: Callable[[Sequence[str]], Sequence[Attack]]
    seed: int = 0
    trusted: Collection[str] = ()
    command: str = ""
    found: dict[str, AlteredCell] = field(default_factory=dict)

    def make(self, cell: Alteration, watch: Watch) -> None:
        """Alter the record, make the attacks that still apply, and judge."""
        copy, adaptive = self.request.cells / cell.name, False
        not_asked: dict[str, str] = {}
        make_private(copy)
        for index, part in enumerate(self.parts):
            watch.step("record", index, len(self.parts))
            adaptive = self._write_part(part, Part(copy, part.name), cell, (self.seed, index))
        study = read_study(self.folder)
        if study:
            # The copy's commands tell how it came about.
            write_study(copy, {**study, "commands": [*study.get("commands", []), self.command]})
        record = Record(Part(copy, self.parts[0].name).record, thinned=True)
        names = self._list_applicable(record, not_asked)
        for attack in self.choose(names):
            try:
                attack_folder(attack, copy, device=self.request.device, knowledge=self._know, watch=watch)
            except FedAttackError as cause:
                not_asked[attack.name] = self.request.hide_paths(str(cause))
        # Attacks that failed are not judged.
        run = self._judge_copy(cell, copy, set(names) - not_asked.keys(), not_asked, watch)
        self.found[cell.name] = AlteredCell(cell, run, not_asked, adaptive)

    def _know(self, part: Part) -> Knowledge:
        return known_to(part, self.trusted)

    def _write_part(self, part: Part, copy: Part, alteration: Alteration, seed: tuple[int, int]) -> bool:
        """Write the copy of one seed's part; returns whether its attackers are told of the defence."""
        known = self._know(part)
        copy_truth(part, copy)
        if part.zoo.exists():
            copy_zoos(part.zoo, copy.zoo)
        record = Record(part.record, thinned=True)
        if alteration == NOTHING:
            copy_record(record, copy.record)
            copy_knowledge(part, copy)
            return False
        if known.sends is not None:
            raise NeedsError(
                f"{part.record}: clients send differences, or other arrays beside their models, and what-if alters "
                "models alone; put the defence into the app, and audit it"
            )
        # By its name a running variance is known, which noise must not make negative.
        record = named_for(record, known.model)
        alter_record(record, copy.record, alteration, seed=seed, memory=self.request.bytes_of_memory)
        # An attacker plays clients who defend the change of their model. What a run's own clients did comes first, and
        # both together cannot be told.
        if alteration.settings is None or known.defence is not None or record.protocol != "fedavg":
            copy_knowledge(part, copy)
            return False
        write_knowledge(copy.knowledge, replace(known, defence=KnownDefence(BUILT_IN, alteration.settings)))
        return True

    def _list_applicable(self, record: Record, not_asked: dict[str, str]) -> list[str]:
        """List the run's attacks whose needs the copy meets; of sums also others that ask the same."""
        known, names = self._know(self.parts[0]), []
        for name in self.attacks:
            obstacles = ATTACKS[name].find_obstacles(record, known)
            if obstacles:
                not_asked[name] = "; ".join(reason.what for reason in obstacles)
            else:
                names.append(name)
        if record.view == "aggregate":
            # Others that ask the same of sums, where the run's own ask single replies.
            for name in list_siblings(self.attacks):
                if not ATTACKS[name].find_obstacles(record, known):
                    names.append(name)
        return names

    def _judge_copy(
        self, cell: Alteration, copy: Path, scored: Collection[str], not_asked: dict[str, str], watch: Watch
    ) -> Run | None:
        if not scored:
            return None
        try:
            judge_folder(copy, device=self.request.device, watch=watch, trusted=self.trusted)
        except FedAttackError as cause:
            not_asked |= dict.fromkeys(scored, self.request.hide_paths(str(cause)))
            return None
        run = read_compared(copy)
        run.facts["setting"][ALTERED] = cell.label
        # A run that names no dataset is called by its folder.
        own_name = f"audit of {self.folder.resolve().name}"
        run.facts["title"] = run.facts["title"].replace(f"audit of {copy.name}", own_name)
        return run

    def describe(self, cell: Alteration) -> str:
        """Say in a line what came out of a cell that is done."""
        texts = []
        for finding in self.found[cell.name].headlines:
            texts.append(f"{finding.name} {shown(finding.value, finding.units)}, {finding.verdict}")
        return "; ".join(texts) or "nothing was found"

    def gather(self, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
        """Gather what ``what-if.json`` holds."""
        for cell in self.cells:
            outcome = outcomes[cell.name]
            if outcome.state == "failed":
                self.found[cell.name] = AlteredCell(cell, None, dict.fromkeys(self.attacks, outcome.reason))
        found, title, runs = list(self.found.values()), "", []
        for first in found[:1]:
            if first.run is None:
                reasons = "; ".join(map(": ".join, first.not_asked.items()))
                raise RunError(f"no attack of {self.folder} can be made again: {reasons}")
            title = first.run.facts["title"]
        for altered in found:
            findings, alteration = [], altered.alteration
            if altered.run is not None:
                findings = facts_of(altered.run, [ALTERED])["findings"]
            runs.append(
                {
                    "alteration": {"kind": alteration.kind, "amount": alteration.amount},
                    "label": alteration.label,
                    "folder": f"{CELLS}/{alteration.name}",
                    "adaptive": altered.adaptive,
                    "findings": findings,
                    "not_asked": [{"attack": name, "why": why} for name, why in altered.not_asked.items()],
                }
            )
        return {
            "what_if": self.folder.resolve().name,
            "title": title,
            "fedattack": __version__,
            "command": self.command,
            "seed": self.seed,
            "limits": list_limits(found),
            "runs": runs,
        }

    def write(self, results: Results) -> None:
        """Write the results, once the run as it was is attacked, and the pages."""
        if self.found:
            super().write(results)

    def write_pages(self, results: Results) -> dict[str, str]:
        """Write the page as HTML and as Markdown."""
        return write_pages(list(self.found.values()), results)
