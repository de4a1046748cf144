"""Make the attacks of a run again on altered copies of its record, and judge each copy as the run was judged."""

import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedattack.attacks import ATTACKS, Attack, Knowledge, KnownDefence, write_knowledge
from fedattack.attacks.knowledge import BUILT_IN
from fedattack.attacks.matching import named_for
from fedattack.audit.untried import lacking
from fedattack.base.errors import ConfigError, FedAttackError, NeedsError, RunError
from fedattack.base.files import make_private, write_json
from fedattack.base.machine import MEMORY
from fedattack.base.untrusted import remove_inside
from fedattack.base.version import __version__
from fedattack.grids.whatif.alteration import NOTHING, Alteration, alter_record
from fedattack.grids.whatif.asked import siblings
from fedattack.grids.whatif.cell import AlteredCell
from fedattack.grids.whatif.copying import copy_knowledge, copy_truth
from fedattack.grids.whatif.page import limits_of, write_page
from fedattack.record import Record
from fedattack.record.folder import Part, copy_zoos, read_study, write_study
from fedattack.record.project import ALTERED, copy_record
from fedattack.report.compare import Run, facts_of, read_compared
from fedattack.runs.asked import known_to
from fedattack.runs.pipeline import attack_folder, judge_folder
from fedattack.runs.watch import Watch

CELLS = "cells"
"""Folder of the run folders, one for each alteration, in that of the results."""


@dataclass(frozen=True)
class WhatIf:
    """How all copies are made and attacked.

    Attributes
    ----------
    folder, parts
        The run.
    out
        Folder of the results.
    names
        The run's attacks, what it is about first.
    choose
        Returns attacks by their names, with their options.
    seed
        Decides the noise.
    device
        Where attacks compute.
    memory
        Bytes that a round's altered replies may take.
    keep_records
        Whether the copies stay when they are judged.
    trusted
        Import paths and paths of the run folder that may be followed.
    command
        The command line, kept for the reports.
    """

    folder: Path
    parts: Sequence[Part]
    out: Path
    names: Sequence[str]
    choose: Callable[[Sequence[str]], Sequence[Attack]]
    seed: int = 0
    device: str = "auto"
    memory: int = MEMORY
    keep_records: bool = False
    trusted: Collection[str] = ()
    command: str = ""


def what_if(job: WhatIf, alterations: Sequence[Alteration], watch: Watch) -> tuple[dict[str, Any], list[AlteredCell]]:
    """Attack a run as it was and as it would have looked altered; nothing in its folder is changed.

    Writes ``what-if.json``, ``.md`` and ``.html`` to the new folder ``job.out``, and a run folder for each copy in its
    ``cells``.

    Returns
    -------
    dict
        What ``what-if.json`` holds.
    list of AlteredCell
        The run as it was, and then a cell for each alteration.

    Raises
    ------
    ConfigError
        If ``job.out`` is there already.
    FedAttackError
        If no attack can be made of the run as it was.
    """
    try:
        job.out.mkdir(parents=True, mode=0o700)
    except OSError as cause:
        raise ConfigError(f"{job.out} cannot be created ({cause}); give this comparison a folder of its own") from None
    began = time.monotonic()
    try:
        cells = [_cell(job, NOTHING, watch)]
        if cells[0].run is None:
            reasons = "; ".join(f"{name}: {why}" for name, why in cells[0].not_asked.items())
            raise RunError(f"no attack of {job.folder} can be made again: {reasons}")
    except BaseException:
        # Nothing was found yet, and the corrected command may use the folder again.
        shutil.rmtree(job.out)
        raise
    if (minutes := (time.monotonic() - began) / 60) >= 1:
        copies = f"{len(alterations)} altered copies take" if len(alterations) > 1 else "the altered copy takes"
        watch.say(
            "note", f"the attacks took {minutes:.0f} min; {copies} about {minutes * len(alterations):.0f} min more"
        )
    for alteration in alterations:
        cells.append(_cell(job, alteration, watch))
    results = _results(job, cells)
    write_json(job.out / "what-if.json", results)
    write_page(job.out, cells, results)
    return results, cells


def _cell(job: WhatIf, alteration: Alteration, watch: Watch) -> AlteredCell:
    """Alter the record, make the attacks that still apply, and judge."""
    folder = job.out / CELLS / alteration.name
    watch = _label_watch(watch, alteration.label)
    make_private(folder)
    adaptive = False
    try:
        for index, part in enumerate(job.parts):
            watch.step("record", index, len(job.parts))
            adaptive = _write_part(job, part, Part(folder, part.name), alteration, (job.seed, index))
    except FedAttackError as cause:
        # Other alterations may well be possible.
        return AlteredCell(
            alteration, None, dict.fromkeys(job.names, f"no copy can be made: {_hide_paths(job, str(cause))}")
        )
    study = read_study(job.folder)
    if study:
        write_study(folder, {**study, "commands": [*study.get("commands", []), job.command]})
    not_asked: dict[str, str] = {}
    record = Record(Part(folder, job.parts[0].name).record, thinned=True)
    names = _list_applicable(job, record, known_to(job.parts[0], job.trusted), not_asked)
    for attack in job.choose(names):
        try:
            attack_folder(
                attack, folder, device=job.device, knowledge=lambda part: known_to(part, job.trusted), watch=watch
            )
        except FedAttackError as cause:
            not_asked[attack.name] = _hide_paths(job, str(cause))
    run = _judge_copy(job, folder, alteration, set(names) - not_asked.keys(), not_asked, watch)
    if not job.keep_records:
        remove_inside(job.out, folder / "record", ConfigError)
    return AlteredCell(alteration, run, not_asked, adaptive)


def _label_watch(watch: Watch, label: str) -> Watch:
    """Tell of work with the name of what it is about before it."""
    return Watch(
        lambda what, done, total: watch.step(f"{label}: {what}", done, total),
        lambda kind, text: watch.say(kind, f"{label}: {text}"),
    )


def _write_part(job: WhatIf, part: Part, copy: Part, alteration: Alteration, seed: tuple[int, int]) -> bool:
    """Write the copy of one seed's part; returns whether its attackers are told of the defence."""
    known = known_to(part, job.trusted)
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
            f"{part.record}: clients send differences, or other arrays beside their models, and what-if alters models "
            "alone; put the defence into the app, and audit it"
        )
    if not record.left_out:
        # By its name a running variance is known, which noise must not make negative.
        record = named_for(record, known.model)
    alter_record(record, copy.record, alteration, seed=seed, memory=job.memory)
    told = _tell_attacker(known, record, alteration)
    if told is None:
        copy_knowledge(part, copy)
        return False
    write_knowledge(copy.knowledge, told)
    return True


def _tell_attacker(known: Knowledge, record: Record, alteration: Alteration) -> Knowledge | None:
    """Tell the attacker of the defence; ``None`` where that cannot be said.

    An attacker plays clients who defend the change of their model. What a run's own clients did comes first, and both
    together cannot be told.
    """
    if alteration.settings is None or known.defence is not None or record.protocol != "fedavg":
        return None
    return replace(known, defence=KnownDefence(BUILT_IN, alteration.settings))


def _list_applicable(job: WhatIf, record: Record, known: Knowledge, not_asked: dict[str, str]) -> list[str]:
    """List the run's attacks whose needs the copy meets; of sums also others that ask the same."""
    names = []
    for name in job.names:
        missing = lacking(ATTACKS[name], record, known)
        if missing:
            not_asked[name] = "; ".join(missing)
        else:
            names.append(name)
    if record.view == "aggregate":
        names += [name for name in siblings(job.names) if not lacking(ATTACKS[name], record, known)]
    return names


def _judge_copy(
    job: WhatIf,
    folder: Path,
    alteration: Alteration,
    scored: Collection[str],
    not_asked: dict[str, str],
    watch: Watch,
) -> Run | None:
    if not scored:
        return None
    try:
        judge_folder(folder, device=job.device, watch=watch, trusted=job.trusted)
    except FedAttackError as cause:
        not_asked |= dict.fromkeys(scored, _hide_paths(job, str(cause)))
        return None
    run = read_compared(folder)
    run.facts["setting"][ALTERED] = alteration.label
    # A run that names no dataset is called by its folder.
    run.facts["title"] = run.facts["title"].replace(f"audit of {folder.name}", f"audit of {job.folder.resolve().name}")
    return run


def _hide_paths(job: WhatIf, text: str) -> str:
    """Take the paths of this machine out of a reason."""
    return text.replace(str(job.out), "DIR")


def _results(job: WhatIf, cells: Sequence[AlteredCell]) -> dict[str, Any]:
    """Gather what ``what-if.json`` holds."""
    told = []
    for cell in cells:
        told.append(
            {
                "alteration": {"kind": cell.alteration.kind, "amount": cell.alteration.amount},
                "label": cell.alteration.label,
                "folder": f"{CELLS}/{cell.alteration.name}",
                "adaptive": cell.adaptive,
                "findings": [] if cell.run is None else facts_of(cell.run, [ALTERED])["findings"],
                "not_asked": [{"attack": name, "why": why} for name, why in cell.not_asked.items()],
            }
        )
    title = "" if cells[0].run is None else cells[0].run.facts["title"]
    return {
        "what_if": job.folder.resolve().name,
        "title": title,
        "fedattack": __version__,
        "command": job.command,
        "seed": job.seed,
        "limits": limits_of(cells),
        "runs": told,
    }
