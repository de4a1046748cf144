"""Shows findings: a table for the terminal and one self-contained HTML page.

Everything is rendered from two files, ``findings.json`` (``schema.json``) and ``run.json`` (``run.schema.json``). The
page of a privacy claim is rendered from ``claim.json`` (``claim.schema.json``).
"""

from fedattack.report.compare import compare_runs
from fedattack.report.html import render_html, write_report
from fedattack.report.terminal import render_summary
from fedattack.report.validate import read_claim, read_findings, read_run, validate_findings, validate_run

__all__ = [
    "compare_runs",
    "read_claim",
    "read_findings",
    "read_run",
    "render_html",
    "render_summary",
    "validate_findings",
    "validate_run",
    "write_report",
]
