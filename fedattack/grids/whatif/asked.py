"""What is asked of a finished run: checked before anything is written, and without torch, which takes seconds."""

import math
import shutil
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path

from fedattack.attacks.registry import threat_of
from fedattack.audit.truth import HOLDINGS
from fedattack.base.errors import ConfigError, DataError, in_command
from fedattack.grids.whatif.alteration import Alteration, check_alterable
from fedattack.record import Record
from fedattack.record.folder import Part, find_parts, read_study
from fedattack.record.size import in_bytes
from fedattack.runs.asked import asked_of_study
from fedattack.runs.checks import options_among, scored_attacks
from fedattack.runs.presets import load_preset, preset_names

# Bytes of a number.
_WIDEST = 8


def check_run(folder: Path, alterations: Sequence[Alteration]) -> tuple[list[Part], list[str]]:
    """Check that a run can be altered, and its attacks judged; returns its parts and its attacks.

    Raises
    ------
    RecordError
        If a record is missing or damaged, or cannot be altered so.
    DataError
        If no attack was made of the run, or there is no truth to judge by.
    """
    parts = find_parts(folder)
    for part in parts:
        check_alterable(Record(part.record, thinned=True), alterations)
        if not (part.truth / HOLDINGS).exists():
            raise DataError(
                f"{part.truth} holds no truth, so that no attack can be judged; take a run of `fedattack audit`, or "
                "write the truth with fedattack.audit.truth.write_truth"
            )
    names = scored_attacks(parts)
    if not names:
        raise DataError(f"no attack was made of {folder}; run `fedattack attack NAME {in_command(folder)}` first")
    # What the run is about comes first, as in its report.
    about = read_study(folder).get("attacks", [])
    return parts, sorted(names, key=lambda name: about.index(name) if name in about else len(about))


def list_siblings(names: Sequence[str]) -> list[str]:
    """List the attacks that ask what some attacks ask, and are none of them."""
    threats = [threat for threat in map(threat_of, names) if threat is not None]
    found = dict.fromkeys(chain.from_iterable(threat.judges for threat in threats))
    return [name for name in found if name not in names]


def options_of_run(folder: Path, names: Sequence[str], trusted: Collection[str]) -> dict[str, str]:
    """Return the options with which a run was attacked, as far as it says: its preset's, and those of its command.

    Those that reach out of the folder are left out, unless they are trusted.
    """
    study = read_study(folder)
    options: dict[str, str] = {}
    if study.get("preset") in preset_names():
        options |= load_preset(study["preset"]).options
    refused = {asked.value for asked in asked_of_study(folder)} - {*trusted}
    for key, value in study.get("options", {}).items():
        if f"{key}={value}" not in refused:
            options[key] = value
    return options_among(options, names)


def check_room(parts: Sequence[Part], out: Path, alterations: Sequence[Alteration], *, keep_records: bool) -> None:
    """Check that the copies of the records fit on the disk.

    Raises
    ------
    ConfigError
        If they do not.
    """
    sizes = [_size(parts, alteration) for alteration in alterations]
    needed = sum(sizes) if keep_records else max(sizes)
    there = next(folder for folder in (out, *out.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        way = "leave out --keep-records, or " if keep_records else ""
        raise ConfigError(
            f"the altered copies of the record would take {in_bytes(needed)}, and {in_bytes(free)} are free at "
            f"{there}; {way}take another --out"
        )


def _size(parts: Sequence[Part], alteration: Alteration) -> int:
    """Say how many bytes the altered records of all parts may take at most, beside some hundred a reply."""
    total = 0
    for part in parts:
        record = Record(part.record, thinned=True)
        lines = record.lines
        # The widest type: common models are stored, and sums are in double precision.
        model = _WIDEST * sum(math.prod(parameter.shape) for parameter in record.parameters)
        total += (len(lines) + 1) * model
        if alteration.kind == "secagg":
            total += len(lines) * model
        else:
            total += sum(round_.file.size for round_ in lines)
    return total
