"""A run of the real Flower that is killed goes on with `fedattack resume`, and finds what it would have found."""

import json
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedattack.attacks import Knowledge, write_knowledge
from fedattack.audit.truth import note_node, read_truth
from fedattack.base.errors import ConfigError, DataError, FedAttackError, RunError
from fedattack.base.files import FolderLock
from fedattack.record import Record, RecordWriter, check_record
from fedattack.record.folder import DEALT, read_resumption, read_runs, read_study, write_study
from fedattack.runs import simulating
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.runs.runtimes import RUNTIMES
from fedattack.runs.settings import default_settings
from fedattack.runs.simulating import resume, simulate
from fedattack.runs.watch import Watch
from tests.runs.test_simulator import wait_until
from tests.worlds.federation import write_run
from tests.worlds.judged import findings_of, sources_of

CLIENTS, ROUNDS = 3, 4
SMALL = [f"clients={CLIENTS}", f"rounds={ROUNDS}", "targets=20", "local-epochs=40"]


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
        "1",
        *changes,
        *more,
    ]


def run_fedattack(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kill_after(index: Path, rounds: int, words: list[str], seconds: float = 240) -> None:
    """Start a command, and kill it, as a power cut would, in the middle of the round after so many in the index."""
    command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert wait_until(
            lambda: (index.exists() and index.read_bytes().count(b"\n") >= rounds) or command.poll() is not None,
            seconds,
        )
        time.sleep(1)
        assert command.poll() is None, command.stderr.read().decode()
        children = psutil.Process(command.pid).children(recursive=True)
    finally:
        command.send_signal(signal.SIGKILL)
        command.wait()
    # What it had started ends a moment later.
    _, left = psutil.wait_procs(children, timeout=30)
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    "runtime",
    [
        pytest.param("simulation", marks=(pytest.mark.flower, pytest.mark.long)),
        pytest.param("processes", marks=pytest.mark.deploy),
    ],
)
def test_a_killed_audit_goes_on_and_finds_the_same(runtime, tmp_path):
    """What a run on processes would have found, a simulation finds."""
    whole, out = tmp_path / "whole", tmp_path / "killed"
    run_fedattack(*words_of("audit", whole))
    index = out / "record" / "rounds.jsonl"
    kill_after(index, 1, words_of("audit", out, "--on", runtime))
    assert not (out / "findings.json").exists()
    assert [path.name for path in (out / DEALT).iterdir()] == ["run.safetensors"]
    before = index.read_bytes()
    run_fedattack(sys.executable, "-m", "fedattack", "resume", str(out))
    assert index.read_bytes().startswith(before[: before.rindex(b"\n")])
    assert check_record(out / "record").whole
    assert [item.number for item in Record(out / "record")] == [*range(1, ROUNDS + 1)]
    # The server did not live to see its clients die.
    assert {seen.status for item in Record(out / "record") for seen in item.observations} == {"ok"}
    # The nodes keep their names: no client is there twice.
    for folder in (out, whole):
        assert sorted(read_truth(folder / "truth").nodes.values()) == [str(client) for client in range(CLIENTS)]
    (combined, decided), (scores, decisions) = sources_of(out), sources_of(whole)
    assert combined.shape[1] == scores.shape[1] == CLIENTS
    assert findings_of(out) == pytest.approx(findings_of(whole), abs=1e-4)
    np.testing.assert_allclose(combined, scores, atol=1e-4)
    assert decided == decisions
    commands = json.loads((out / "study.json").read_text())["commands"]
    assert [command.split()[1] for command in commands] == ["audit", "resume"]
    assert not (out / DEALT).exists(), "clients' records lie nowhere else than before"


@pytest.mark.long
@pytest.mark.flower
def test_of_two_runs_that_start_at_once_in_one_folder_one_is_refused(tmp_path):
    """Whoever comes second; the other one's run is whole."""
    out = tmp_path / "run"
    words = words_of("simulate", out, "--set", "rounds=1")
    both = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate()[1].decode() for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    refused = next(text for process, text in zip(both, said, strict=True) if process.returncode)
    assert "at work in" in refused or "already exists" in refused
    assert check_record(out / "record").whole


class Idle:
    """A runtime that runs nothing, and keeps what it was to run."""

    def __init__(self) -> None:
        self.configs: list[dict] = []

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def declare(self, defaults) -> None:
        pass

    def run(self, config, **_):
        of_runs = read_runs(Path(config["runs"])) if "runs" in config else [{}]
        self.configs += [{**config, **own} for own in of_runs]


@pytest.fixture
def idle(monkeypatch) -> Idle:
    runtime = Idle()
    monkeypatch.setitem(RUNTIMES, "simulation", lambda *_: runtime)
    return runtime


@pytest.fixture
def stopped(tmp_path):
    """A run folder of three seeds, of which no more is there than its study."""
    study = {
        "preset": "quickstart",
        "settings": default_settings() | {"framework": "fedavg", "clients": 2, "rounds": 2, "device": "cpu"},
        "seeds": [0, 1, 2],
        "commands": ["fedattack audit quickstart"],
        "runtime": "simulation",
    }
    write_study(tmp_path, study)
    return tmp_path


def test_each_seed_goes_on_from_where_it_is(stopped, idle):
    """The first is complete, the second has a round, the third none."""
    for seed in range(2):
        write_run(stopped, seed=seed, part=f"seed-{seed}", close=seed == 0)
    RecordWriter(stopped / "record" / "seed-2", seed=2).close(error="the run ended with Stopped")
    note_node(stopped / "truth" / "seed-2", node="77", client="0")
    write_knowledge(stopped / "knowledge" / "seed-2", Knowledge(record="ab" * 16))
    resume(stopped, command="fedattack resume", watch=Watch())
    second, third = idle.configs
    assert (second["seed"], third["seed"]) == (1, 2)
    assert second["record"] == str(stopped / "record" / "seed-1")
    # Of many clients, some may take part for the first time, and then note who they are.
    assert second["truth"] == str(stopped / "truth" / "seed-1")
    names, data = read_resumption(Path(second["resume"]))
    assert names == {str(client): f"node{client}" for client in range(4)}
    assert data == read_truth(stopped / "truth" / "seed-1").data
    # What nothing was recorded of starts anew, and its nodes will have other ids.
    assert third["resume"] == ""
    # The record that it makes is the one that its knowledge names; an earlier version's names none.
    assert third["record-id"] == "ab" * 16
    assert second["record-id"] == ""
    assert third["truth"] == str(stopped / "truth" / "seed-2")
    assert not (stopped / "record" / "seed-2").exists()
    assert not list((stopped / "truth" / "seed-2" / "nodes").glob("*"))
    study = read_study(stopped)
    assert study["commands"] == ["fedattack audit quickstart", "fedattack resume"]
    assert "finished" in study


def test_a_complete_run_is_left_alone(stopped, idle):
    for seed in range(3):
        write_run(stopped, seed=seed, part=f"seed-{seed}")
    (stopped / "dealt").mkdir()
    before = (stopped / "study.json").read_bytes()
    resume(stopped, command="fedattack resume", watch=Watch())
    assert (stopped / "study.json").read_bytes() == before
    assert not (stopped / "dealt").exists()
    assert not idle.configs


@pytest.mark.parametrize("settings", [{"framework": "fedmd"}])
def test_what_flower_does_not_keep_is_refused_before_anything_is_changed(stopped, idle, settings):
    study = read_study(stopped)
    write_study(stopped, study | {"settings": study["settings"] | settings, "seeds": [0]})
    write_run(stopped, close=False)
    with pytest.raises(ConfigError, match="the run cannot be continued: clients of fedmd keep their models"):
        resume(stopped, command="fedattack resume", watch=Watch())
    assert len(read_study(stopped)["commands"]) == 1
    assert Record(stopped / "record").status == "open"


def test_where_another_is_at_work_is_no_place_to_go_on(stopped):
    hold = FolderLock(stopped)
    try:
        with pytest.raises(ConfigError, match="another run is at work in"):
            resume(stopped, command="fedattack resume", watch=Watch())
    finally:
        hold.close()


def test_a_record_that_is_still_written_to_is_left_alone(stopped, idle):
    """A server may outlive whoever started it, before its first round too."""
    for seed in range(3):
        writer = RecordWriter(stopped / "record" / f"seed-{seed}")
        if seed < 2:
            writer.close()
    before = [*stopped.rglob("*")]
    with pytest.raises(ConfigError, match=r"another run is at work in .*seed-2; wait"):
        resume(stopped, command="fedattack resume", watch=Watch())
    assert [*stopped.rglob("*")] == before
    assert not idle.configs
    writer.close()


def test_a_node_that_nobody_knows_is_refused_before_it_trains(stopped, idle):
    write_study(stopped, read_study(stopped) | {"seeds": [0]})
    write_run(stopped, close=False)
    (stopped / "truth" / "nodes" / "node2.json").unlink()
    with pytest.raises(DataError, match="node2 is in the record but not in the truth"):
        resume(stopped, command="fedattack resume", watch=Watch())
    assert not idle.configs


def test_a_server_that_was_asked_to_end_has_not_finished(stopped, idle):
    """Its record may be in good order, and short."""
    write_study(stopped, read_study(stopped) | {"seeds": [0]})
    write_run(stopped, rounds=1)
    resume(stopped, command="fedattack resume", watch=Watch())
    assert len(idle.configs) == 1


def test_a_study_that_lacks_something_is_refused(stopped):
    write_study(stopped, {key: value for key, value in read_study(stopped).items() if key != "seeds"})
    with pytest.raises(ConfigError, match="holds no run to continue"):
        resume(stopped, command="fedattack resume", watch=Watch())


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("problem", [RunError("simulations.prepare crashed: killed"), KeyboardInterrupt()])
def test_a_preparation_that_ends_early_leaves_the_folder_as_it_was(tmp_path, monkeypatch, there, problem):
    """There is nothing to resume: the same command is run again."""
    out, preset = tmp_path / "run", load_preset("quickstart")
    if there:
        out.mkdir()

    def fail(configs):
        (out / "knowledge").mkdir()
        (out / "knowledge" / "targets.npz").touch()
        (out / "half").touch()
        raise problem

    monkeypatch.setattr(simulating, "prepare", fail)
    for _ in range(2):
        with pytest.raises((FedAttackError, KeyboardInterrupt)) as caught:
            simulate(preset, resolve_settings(preset, []), [0], out, command="", watch=Watch())
        assert not isinstance(caught.value, RunError)
        assert isinstance(problem, KeyboardInterrupt) or str(caught.value).endswith("run the command again")
        assert out.exists() == there
        assert not there or not [*out.iterdir()]


def test_a_folder_that_is_taken_stays_as_it_is(tmp_path):
    (tmp_path / "mine").write_text("mine")
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="already exists"):
        simulate(load_preset("quickstart"), {}, [0], tmp_path, command="", watch=Watch())
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no run to continue: expected what `fedattack simulate`"):
        resume(tmp_path, command="fedattack resume", watch=Watch())
