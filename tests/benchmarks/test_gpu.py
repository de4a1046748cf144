"""The benchmark on a GPU: a row that does not end, or fails, says how far it came, and the others go on."""

import sys
import time

import pytest

from tests.benchmarks import gpu

STEPS = "import time\nprint('rounds: 1 of 2', flush=True)\n"
MODULES = {"ends": STEPS, "fails": STEPS + "raise SystemExit(3)\n", "hangs": STEPS + "time.sleep(60)\n"}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the benchmark with rows of a module each; return the lines of its table."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu, "ROWS", {name: lambda place, name=name: place.run_module(name) for name in MODULES})

    def run_rows(*words):
        out = tmp_path / "out"
        words = ("gpu", "--mnist", "none", "--devices", "cpu", "--out", str(out), *words)
        monkeypatch.setattr(sys, "argv", [*words])
        gpu.main()
        printed = capsys.readouterr().out
        assert (out / "table.md").read_text() == printed
        return printed.splitlines()[-len(MODULES) :]

    return run_rows


def test_rows_that_hang_or_fail_say_how_far_they_came(run):
    started = time.monotonic()
    ends, fails, hangs = run("--limit", "4")
    assert time.monotonic() - started < 30
    assert float(ends.split("|")[3]) < 4
    assert "failed, exit code 3: rounds: 1 of 2" in fails
    assert "cut off after 4 s at: rounds: 1 of 2" in hangs


def test_rows_for_which_no_time_is_left_are_not_reached(run):
    assert all("not reached" in line for line in run("--total", "0"))
