"""The rows of the table of sizes: each can be made and attacked, as small as it can be."""

import subprocess
import sys
from dataclasses import replace

import pytest

from fedattack.attacks import ATTACKS
from fedattack.record import check_record
from tests.benchmarks import scale

TINY = {"clients": 3, "rounds": 1, "auxiliary": 60, "targets": 5}


def test_each_row_has_a_name_of_its_own_and_something_to_run():
    names = [row.name for row in scale.ROWS]
    assert len(names) == len(set(names))
    assert {row.kind for row in scale.ROWS} - {"recording", "simulation"} <= set(ATTACKS)
    assert set(scale.QUICK) <= set(names)


@pytest.mark.parametrize("kind", ["sia", "membership-aggregate"])
def test_what_is_made_can_be_attacked(kind, tmp_path):
    row = replace(next(row for row in scale.ROWS if row.name == kind), **TINY)
    made = scale.make(row, tmp_path)
    report = check_record(tmp_path / "record")
    assert (report.problems, report.rounds) == ([], 1)
    assert made["bytes"] > 0
    assert scale.attack(row, tmp_path)["bytes"] > 0


def test_a_row_that_fails_or_takes_too_long_says_so(monkeypatch):
    row = scale.ROWS[0]
    failing = subprocess.CompletedProcess([], 137, b"", b"a\nKilled")
    monkeypatch.setattr(scale, "watched", lambda *words: (failing, 1))
    found = scale.measure(row, 1.0)
    assert found == {"failed": "make: exit code 137: Killed"}
    assert "Killed" in scale.line_of(row, found)

    def late(words, environment, seconds):
        raise subprocess.TimeoutExpired(words, seconds)

    monkeypatch.setattr(scale, "watched", late)
    assert scale.measure(row, 1.0) == {"failed": "make: not ended after 1 s"}


def test_what_a_command_and_its_children_take_counts(monkeypatch):
    monkeypatch.setattr(scale, "SAMPLE_SECONDS", 0.1)
    hold = "import time; held = bytearray(60_000_000); time.sleep(1)"
    words = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"]
    done, peak = scale.watched(words, {}, 20.0)
    assert done.returncode == 0
    assert 60e6 < peak < 200e6
    with pytest.raises(subprocess.TimeoutExpired):
        scale.watched([sys.executable, "-c", "import time; time.sleep(60)"], {}, 0.2)
