"""The audit hook sees what a command opens."""

import subprocess

import pytest

from tests.opens import count_opens
from tests.worlds.still import write_still_record


def test_files_that_a_command_reads_are_counted(tmp_path):
    record = write_still_record(tmp_path / "record", clients=2, rounds=1)
    (tmp_path / "beside").write_text("x")
    opens = count_opens(record, ["check", str(record)])
    assert opens["manifest.json"] >= 1
    assert opens["rounds.jsonl"] >= 1
    assert {*opens} <= {str(path.relative_to(record)) for path in record.rglob("*") if path.is_file()}


def test_a_command_that_fails_is_no_count(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        count_opens(tmp_path, ["check", str(tmp_path / "nowhere")])
