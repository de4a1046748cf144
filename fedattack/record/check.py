"""Check whether a record is whole."""

from dataclasses import dataclass, field
from pathlib import Path

from fedattack.base.errors import RecordError
from fedattack.record.format import INDEX, Arrays
from fedattack.record.index import strangers
from fedattack.record.reader import Record, Round


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
        Facts that a reader should know and that are no damage, such as a killed run.
    remarks
        Facts that no reader of such a record can know, such as who wrote it.
    signer
        Fingerprint of the key that the record is signed by; ``None`` where it is not signed.
    """

    rounds: int = 0
    size: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    signer: str | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged or missing, the run was recorded to its end, and some client answered."""
        return not self.problems and not self.notes


def check_record(path: Path | str) -> CheckReport:
    """Read every byte of the record at ``path`` and compare it with the index and the manifest.

    Raises
    ------
    RecordError
        If there is no readable manifest or index, so that nothing can be said about the rest, or if the record is not
        what its recorder signed.
    """
    # Without an exception at the first fault: all of them are listed.
    record = Record(path, skip_damaged=True, thinned=True)
    report = CheckReport(problems=list(record.damage), signer=record.signer, remarks=record.remarks)
    for round_ in record:
        try:
            _read_all(round_)
        except RecordError as problem:
            report.problems.append(str(problem))
        else:
            report.rounds += 1
            report.size += round_.file.size
    # Lines of rounds that are not kept hold a common model alone.
    for line in record.lines:
        if not record.keep.round(line.number):
            try:
                _read(line.common)
                report.size += line.file.size
            except RecordError as problem:
                report.problems.append(str(problem))
    if record.status == "open":
        report.notes.append(
            f"the run has not ended, or is still running: {report.rounds} rounds are readable, a round in flight was "
            "lost"
        )
        unknown = strangers(record.path, record.index)
        if unknown:
            report.notes.append(f"{record.path}: {', '.join(unknown[:5])} is in no line of {INDEX}")
    elif record.status == "cut short":
        report.notes.append(f"the recording was cut short after {report.rounds} rounds: {record.manifest['error']}")
    if record.silence:
        report.notes.append(record.silence)
    report.notes += record.gaps
    return report


def _read_all(round_: Round) -> None:
    _read(round_.common)
    _read(round_.aggregate)
    for observation in round_.observations:
        _read(observation.arrays)
        if observation.singled_out:
            _read(observation.received)


def _read(arrays: Arrays | None) -> None:
    # Reading is checking: each array is verified when it is asked for.
    for _ in (arrays or {}).values():
        pass
