"""The record as a witness: what it shows of the noise that a claim speaks of, without any help of the clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedattack.claims.claim import Claim
from fedattack.claims.recorded.clients import ClientWatch
from fedattack.claims.recorded.findings import recorded_dict, recorded_findings, sentence_of
from fedattack.claims.recorded.server import ServerWatch
from fedattack.claims.recorded.sums import SumWatch
from fedattack.claims.recorded.testimony import Testimony, expected_of
from fedattack.claims.recorded.watch import NoiseWatch, watch_records
from fedattack.record import Record, records_in

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
    if first.protocol == "fedmd":
        testimony.lacks = "replies of fedmd are predictions, and no updates that noise of a claim is added to"
        return testimony, records
    if not sends_models:
        testimony.lacks = "clients send gradients or differences, and no models; check what makes them by --mechanism"
        return testimony, records
    if first.view == "aggregate" and first.server != "passive":
        testimony.lacks = f"its server is {first.server} and sent clients different models, whose sums tell no noise"
        return testimony, records
    kind: type[NoiseWatch] = ServerWatch if claim.central else ClientWatch
    if first.view == "aggregate":
        kind = SumWatch
    watch_records(kind, records, claim, testimony)
    late = 0
    for record in records.values():
        late += sum(observation.status == "late" for round_ in record for observation in round_.observations)
    if late:
        testimony.note(f"{late:,} late replies are left out")
    return testimony, records
