"""Run folders as training, attacks and judging would leave them, written at once."""

import json
from dataclasses import replace

from fedattack.record.folder import write_study
from tests.report import example


def begin_cell(job) -> None:
    """Write what is there when a cell is halfway: a record, and the study."""
    (job.folder / "record").mkdir(parents=True)
    (job.folder / "record" / "big.bin").write_bytes(b"x")
    study = {"settings": dict(job.settings), "seeds": list(job.seeds), "options": dict(job.options)}
    write_study(job.folder, study)


def end_cell(job, findings=None, run=None) -> None:
    """Write what the audit found; by default made-up source inference."""
    if findings is None:
        findings = [replace(finding, seeds=list(job.seeds)) for finding in example.findings()]
    (job.folder / "findings.json").write_text(json.dumps([finding.to_dict() for finding in findings]))
    (job.folder / "run.json").write_text(json.dumps(run or example.run()))
