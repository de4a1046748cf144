"""The audit hook sees what a command opens."""

import os
import subprocess
import sys

import pytest

from fedattack.record.folder import write_study
from fedattack.runs.pipeline import attack_folder, choose_attacks
from fedattack.runs.watch import Watch
from tests.apps.test_auditing import write_witnessed
from tests.opens import ROOT, count_opens, read_opens
from tests.worlds.federation import write_run
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


@pytest.mark.slow
def test_a_report_opens_each_file_of_a_run_folder_at_most_twice(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, seed=seed, part=f"seed-{seed}", rounds=4, auxiliary=40)
    write_study(tmp_path, {"seeds": [0, 1]})
    for attack in choose_attacks(["sia", "membership", "plaintext"], {}):
        attack_folder(attack, tmp_path, device="cpu", watch=Watch())
    # The second report finds the first one's files.
    for _ in range(2):
        opens = count_opens(tmp_path, ["report", str(tmp_path), "--device", "cpu"])
        assert opens["record/seed-0/rounds.jsonl"] >= 1
        assert {file: count for file, count in opens.items() if count > 2} == {}


@pytest.mark.slow
def test_the_second_half_of_an_audit_of_an_app_opens_each_file_at_most_twice(tmp_path):
    witnessed = write_witnessed(tmp_path / "run")
    log = tmp_path / "opens"
    log.touch()
    words = [sys.executable, "-m", "tests.apps.second_half", str(witnessed.folder), str(log)]
    subprocess.run(words, check=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    opens = read_opens(log, witnessed.folder)
    assert opens["record/rounds.jsonl"] >= 1
    assert (witnessed.folder / "report.html").exists()
    assert {file: count for file, count in opens.items() if count > 2} == {}
