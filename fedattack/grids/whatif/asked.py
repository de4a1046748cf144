"""What is asked of a finished run: checked before anything is written, and without torch, which takes seconds."""

import math
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedattack.attacks.registry import threat_of
from fedattack.base.errors import ConfigError, DataError, in_command
from fedattack.grids.whatif.alteration import Alteration, check_alterable
from fedattack.record import Record
from fedattack.record.folder import HOLDINGS, Part, find_parts, read_study
from fedattack.record.size import in_bytes
from fedattack.runs.checks import options_among, scored_attacks
from fedattack.runs.presets import load_preset, preset_names

# Bytes of a number.
_WIDEST = 8


def check_run(folder: Path, alterations: Sequence[Alteration]) -> tuple[list[Part], list[str]]:
    """Check that a run can be altered, and its attacks judged; returns its parts and its attacks."""
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
    order = [*read_study(folder).get("attacks", []), *names]
    return parts, sorted(names, key=order.index)


def list_siblings(names: Sequence[str]) -> list[str]:
    """List the attacks that ask what some attacks ask, and are none of them."""
    found: dict[str, None] = {}
    for threat in map(threat_of, names):
        if threat is not None:
            found |= dict.fromkeys(threat.judged)
    for name in names:
        found.pop(name, None)
    return list(found)


def options_of_run(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the options with which a run was attacked, as far as it says: its preset's, and those of its command."""
    study = read_study(folder)
    options: dict[str, str] = {}
    if study.get("preset") in preset_names():
        options |= load_preset(study["preset"]).options
    return options_among(options | study.get("options", {}), names)


def check_room(parts: Sequence[Part], out: Path, alterations: Sequence[Alteration], *, keep_records: bool) -> None:
    """Check that the copies of the records fit on the disk."""
    sizes = list(map(partial(_estimate_size, parts), alterations))
    needed, way = max(sizes), ""
    if keep_records:
        needed, way = sum(sizes), "leave out --keep-records, or "
    there = out
    while not there.exists():
        # The nearest folder that exists lies on the disk in question.
        there = there.parent
    free = shutil.disk_usage(there).free
    if needed > free:
        raise ConfigError(
            f"the altered copies of the record would take {in_bytes(needed)}, and {in_bytes(free)} are free at "
            f"{there}; {way}take another --out"
        )


def _estimate_size(parts: Sequence[Part], alteration: Alteration) -> int:
    """Say how many bytes the altered records of all parts may take at most, beside some hundred a reply."""
    total = 0
    for part in parts:
        record = Record(part.record, thinned=True)
        # The widest type: common models are stored, and sums are in double precision.
        model = 0
        for parameter in record.parameters:
            model += _WIDEST * math.prod(parameter.shape)
        # One model beside the rounds: the last one.
        total += model
        for round_ in record.lines:
            total += model
            if alteration.kind == "secagg":
                total += model
            else:
                total += round_.file.size
    return total
