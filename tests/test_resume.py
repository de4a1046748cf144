"""A run of the real Flower that is killed goes on with `fedattack resume`, and finds what it would have found."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedattack.attacks import Scores
from fedattack.audit.truth import read_truth
from fedattack.errors import ConfigError
from fedattack.files import Hold
from fedattack.folder import write_study
from fedattack.pipeline import Watch, resume
from fedattack.record import Record, RecordWriter, check_record
from tests.test_launch import wait_until

CLIENTS, ROUNDS = 3, 4
SMALL = [f"clients={CLIENTS}", f"rounds={ROUNDS}", "targets=20", "local-epochs=2"]


def words_of(command: str, out: Path, *more: str) -> list[str]:
    changes = [word for change in SMALL for word in ("--set", change)]
    return [
        sys.executable,
        "-m",
        "fedattack",
        command,
        "quickstart",
        "--out",
        str(out),
        "--seeds",
        "2",
        *changes,
        *more,
    ]


def run_fedattack(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kill_after(index: Path, rounds: int, words: list[str]) -> None:
    """Start a command, and kill it, as a power cut would, when so many rounds are in the index."""
    command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert wait_until(
            lambda: (index.exists() and index.read_bytes().count(b"\n") >= rounds) or command.poll() is not None, 240
        )
        assert command.poll() is None, command.stderr.read().decode()
        children = psutil.Process(command.pid).children(recursive=True)
    finally:
        command.send_signal(signal.SIGKILL)
        command.wait()
    # What it had started ends a moment later.
    _, left = psutil.wait_procs(children, timeout=30)
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]


def found_in(out: Path) -> tuple[dict, list[np.ndarray], list[list[str]]]:
    """Findings, and each seed's scores and decisions in the clients' order."""
    findings = {
        f"{item['attack']}.{item['metric']}": item["value"] for item in json.loads((out / "findings.json").read_text())
    }
    combined, decided = [], []
    for seed in ("seed-0", "seed-1"):
        truth, scores = read_truth(out / "truth" / seed), Scores.load(out / "scores" / seed / "sia.npz")
        clients = [truth.nodes[node] for node in scores.facts["clients"]]
        assert sorted(clients) == [str(client) for client in range(CLIENTS)]
        combined.append(scores.arrays["combined"][:, np.argsort(clients)])
        decided.append([clients[index] for index in scores.arrays["decisions"]])
    return findings, combined, decided


def test_a_killed_audit_goes_on_and_finds_the_same(tmp_path):
    """The second seed is killed after its first round; the first one is left alone."""
    whole, out = tmp_path / "whole", tmp_path / "killed"
    run_fedattack(*words_of("audit", whole))
    kill_after(out / "record" / "seed-1" / "rounds.jsonl", 1, words_of("audit", out))
    assert not (out / "findings.json").exists()
    first = (out / "record" / "seed-0" / "rounds.jsonl").read_bytes()
    told = json.loads(run_fedattack(sys.executable, "-m", "fedattack", "resume", str(out), "--json"))
    assert told
    for seed in ("seed-0", "seed-1"):
        assert check_record(out / "record" / seed).whole
        assert [item.number for item in Record(out / "record" / seed)] == [*range(1, ROUNDS + 1)]
        assert len(read_truth(out / "truth" / seed).nodes) == CLIENTS
    assert (out / "record" / "seed-0" / "rounds.jsonl").read_bytes() == first
    (findings, combined, decided), (expected, scores, decisions) = found_in(out), found_in(whole)
    assert findings == pytest.approx(expected, abs=1e-4)
    np.testing.assert_allclose(combined, scores, atol=1e-4)
    assert decided == decisions
    commands = json.loads((out / "study.json").read_text())["commands"]
    assert [command.split()[1] for command in commands] == ["audit", "resume"]


@pytest.fixture
def stopped(tmp_path):
    """A run folder with a study and a record of no round."""
    study = {
        "preset": "quickstart",
        "settings": {"framework": "fedavg", "clients": 2, "rounds": 2, "device": "cpu"},
        "seeds": [0],
        "commands": ["fedattack audit quickstart"],
        "runtime": "simulation",
    }
    write_study(tmp_path, study)
    return tmp_path


def test_where_another_is_at_work_is_no_place_to_go_on(stopped):
    hold = Hold(stopped)
    try:
        with pytest.raises(ConfigError, match="another fedattack is at work in"):
            resume(stopped, command="fedattack resume", watch=Watch())
    finally:
        hold.close()


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no run to go on with: expected what `fedattack simulate`"):
        resume(tmp_path, command="fedattack resume", watch=Watch())


def test_a_complete_run_is_left_alone(stopped):
    writer = RecordWriter(stopped / "record")
    writer.close()
    before = (stopped / "study.json").read_bytes()
    resume(stopped, command="fedattack resume", watch=Watch())
    assert (stopped / "study.json").read_bytes() == before


def test_two_runs_that_start_at_once_in_one_folder(tmp_path):
    """One of them is refused, whoever comes second, and the other one's run is whole."""
    out = tmp_path / "run"
    words = words_of("simulate", out)
    both = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate()[1].decode() for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    refused = next(text for process, text in zip(both, said, strict=True) if process.returncode)
    assert "at work in" in refused or "exists already" in refused
    for seed in ("seed-0", "seed-1"):
        assert check_record(out / "record" / seed).whole
