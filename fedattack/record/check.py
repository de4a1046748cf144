"""Check whether a record is whole."""

from dataclasses import dataclass, field
from pathlib import Path

from fedattack.errors import RecordError
from fedattack.record.format import INDEX, ROUNDS, Arrays
from fedattack.record.reader import Record, Round, read_index


@dataclass
class CheckReport:
    """What :func:`check_record` found.

    Attributes
    ----------
    rounds
        Rounds that are whole and readable.
    size
        Bytes of the whole rounds' files.
    problems
        Damage, in words: something recorded can no longer be trusted or read.
    notes
        What a reader should know but what is no damage, such as a run that was killed.
    """

    rounds: int = 0
    size: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged and the run was recorded to its end."""
        return not self.problems and not self.notes


def check_record(path: Path | str) -> CheckReport:
    """Read every byte of the record at ``path`` and compare it with the index and the manifest.

    Raises
    ------
    RecordError
        If there is no readable manifest, so that nothing can be said about the rest.
    """
    record = Record(path, skip_damaged=True)
    report = CheckReport(problems=list(record.damage))
    lines, _ = read_index(record.path, record.manifest["rounds"])
    whole = {item.seq for item in record}
    for item in record:
        try:
            _read_all(item)
        except RecordError as problem:
            report.problems.append(str(problem))
            whole.discard(item.seq)
        else:
            report.rounds += 1
            report.size += item.file.path.stat().st_size
    try:
        _read(record.final)
    except RecordError as problem:
        report.problems.append(str(problem))
    if record.status == "open":
        report.notes.append(
            f"the run did not end, or goes on: {len(whole)} rounds are readable, a round in flight was lost"
        )
    elif record.status == "cut short":
        report.notes.append(f"the recording was cut short after {len(whole)} rounds: {record.manifest['error']}")
    indexed = {line["file"] for line in lines}
    orphans = [f"{ROUNDS}/{file.name}" for file in sorted((record.path / ROUNDS).glob("*"))]
    orphans = [name for name in orphans if name not in indexed]
    if orphans:
        kind = report.notes if record.status == "open" else report.problems
        kind.append(f"{record.path}: {', '.join(orphans)} is in no line of {INDEX}")
    return report


def _read_all(item: Round) -> None:
    _read(item.common)
    _read(item.aggregate)
    for observation in item.observations:
        _read(observation.arrays)


def _read(arrays: Arrays | None) -> None:
    for _ in (arrays or {}).values():
        pass
