"""The record as a witness: what it shows of the noise that clients claim to add, without any help of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedattack.base.errors import DataError, short
from fedattack.claims.claim import Claim
from fedattack.claims.recorded.findings import NO_ROUND, recorded_dict, recorded_findings, sentence_of
from fedattack.claims.recorded.testimony import Testimony, expected_of
from fedattack.claims.recorded.watch import look_at_records
from fedattack.record import Record, records_in
from fedattack.record.folder import Part
from fedattack.record.nodes import read_nodes

# Letters of a client's name.
_NAME = 60

__all__ = ["Testimony", "recorded_dict", "recorded_findings", "sentence_of", "testify"]


def testify(claim: Claim, folder: Path, *, sends_models: bool) -> tuple[Testimony, Mapping[str, Record]]:
    """Look at a record, or at all records of a run folder, for what a claim says.

    Parameters
    ----------
    sends_models
        Whether clients reply models, and not gradients or differences: of these sent − received is no update.

    Returns
    -------
    tuple
        What was seen, and the records by name of the run.

    Raises
    ------
    RecordError
        If there is no record, or it is damaged.
    """
    records = {name.removeprefix("record").strip("/"): Record(path) for name, path in records_in(folder).items()}
    first = next(iter(records.values()))
    testimony = Testimony(expected_of(claim, first.protocol))
    testimony.lacks = _find_hindrance(first, sends_models)
    if claim.central:
        testimony.lacks = testimony.expected.lacks
    if not any(not round_.unfinished for record in records.values() for round_ in record):
        testimony.lacks = NO_ROUND
    if testimony.lacks:
        return testimony, records
    for run in records:
        _read_names(folder, run, testimony)
    look_at_records(records, testimony)
    late = 0
    for record in records.values():
        late += sum(observation.status == "late" for round_ in record for observation in round_.observations)
    if late:
        testimony.note(f"{late:,} late replies are left out")
    return testimony, records


def _read_names(folder: Path, run: str, testimony: Testimony) -> None:
    """Learn from the truth of a run folder, where it has one, what clients are called."""
    truth = Part(folder, run).truth
    if not truth.exists():
        return
    try:
        names = read_nodes(truth, DataError, "clients are called by their nodes")
    except DataError as cause:
        # A record can be examined without the names.
        testimony.note(str(cause))
        return
    for node, client in names.items():
        testimony.names[run, node] = short(client, _NAME)


def _find_hindrance(record: Record, sends_models: bool) -> str:
    """Say why records tell nothing of clients' noise; empty if they do."""
    if record.protocol == "fedmd":
        return "replies of fedmd are predictions, not updates with the noise of a claim"
    if not sends_models:
        return "clients send gradients or differences, and no models; check what makes them by --mechanism"
    if record.view == "aggregate" and record.server != "passive":
        return f"its server is {record.server} and sent clients different models, so sums say nothing about noise"
    return ""
