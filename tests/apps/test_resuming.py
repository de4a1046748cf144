"""An app's audit that is stopped is continued by the command that began it, and does again only what was not whole."""

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedattack.apps import asking, auditing, running
from fedattack.apps.app import App
from fedattack.apps.asking import Inquiry
from fedattack.apps.order import Order
from fedattack.apps.questions import NOTHING_BESIDES
from fedattack.apps.running import run_app
from fedattack.apps.witnessing import witness_of
from fedattack.attacks import Targets, write_knowledge
from fedattack.audit.truth import note_node
from fedattack.base.errors import ConfigError, RunError, TrustError
from fedattack.base.files import FolderLock
from fedattack.base.untrusted import PRIVATE
from fedattack.cli.steps import trust_asked
from fedattack.record import Exchange, Record, RecordWriter, Reply, check_record
from fedattack.record.folder import Part, RunFolder, new_parts, read_study, write_study
from fedattack.runs import bundle
from fedattack.runs.asked import asked_of_knowledge
from fedattack.runs.code import find_app, read_code
from fedattack.runs.runtimes import RUNTIMES
from fedattack.runs.watch import Watch
from fedattack.witness import write_witness
from tests.apps.projects import ASKED, CLIENTS, MESSAGE_API, findings_of
from tests.apps.test_holding import World
from tests.apps.worlds import pose_all, write_record
from tests.runs.test_resume import kill_after, run_fedattack, wait_until

COMMAND = "fedattack audit app --out out"


class Runtime:
    """In the place of Flower: writes records and witnesses, and stops in the middle of the seeds that it is told."""

    def __init__(self) -> None:
        self.stops: set[int] = set()
        self.seeds: list[int] = []
        self.writes: tuple = ()
        self.cwd = None

    def __enter__(self):
        return self

    def __exit__(self, *raised) -> None:
        pass

    def wrap(self, app, to, record, options, witness, keep, run_folder, hold_out, plan) -> None:
        self.writes = record, witness

    def run(self, config, on_poll: Callable[[], None]):
        record, witness = self.writes
        seed = int(record.name.removeprefix("seed-")) if record.name != "record" else 0
        self.seeds.append(seed)
        for each in World.witnesses(10**6):
            write_witness(witness, each)
        self.lock = witness / ".1.npz.lock"
        self.lock.touch()
        if seed in self.stops:
            RecordWriter(record).close(error="the run ended with KeyboardInterrupt")
            raise KeyboardInterrupt
        write_record(record, ["100", "101", "102"], rounds=1)


@pytest.fixture
def runtime(monkeypatch) -> Runtime:
    made = Runtime()
    for name in ("simulation", "superlink"):
        monkeypatch.setitem(RUNTIMES, name, lambda *_: made)
    monkeypatch.setattr(running, "wrap_app", made.wrap)
    return made


@pytest.fixture
def app(tmp_path) -> App:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "client.py").write_text("lr = 0.1\n")
    return App(folder)


def run(app: App, out, seeds=(0, 1, 2), command: str = COMMAND, on: str = "simulation") -> list[Part]:
    # Each command reads the app anew.
    order = Order(out, NOTHING_BESIDES, {}, lambda names: (), seeds=seeds, on=on, command=command)
    return run_app(replace(app), order, watch=Watch())


def content_of(folder) -> dict:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_seeds_that_are_whole_are_not_run_again(app, tmp_path, runtime):
    out = tmp_path / "out"
    runtime.stops = {1}
    with pytest.raises(KeyboardInterrupt):
        run(app, out)
    study = read_study(out)
    assert study["seeds"] == [0, 1, 2]
    assert study["runtime"] == "simulation"
    assert "finished" not in study
    before = content_of(out / "record" / "seed-0")
    # A server that was stopped may have left more than its record.
    note_node(out / "truth" / "seed-1", node="77", client="0")
    runtime.stops = set()
    parts = run(app, out)
    assert runtime.seeds == [0, 1, 1, 2]
    assert content_of(out / "record" / "seed-0") == before
    assert all(check_record(part.record).whole for part in parts)
    assert not (out / "truth" / "seed-1").exists()
    assert read_study(out)["started"] == study["started"]
    assert read_study(out)["recorded"] == [0, 1, 2]
    done = content_of(out)
    assert run(app, out) == parts
    assert content_of(out) == done


def test_what_was_whole_when_the_machine_died_is_kept_unless_a_superlink_was_asked_to_stop(app, tmp_path, runtime):
    """A server that is asked to end may close its record in good order before its last round."""
    for on, seeds in (("simulation", []), ("superlink", [0])):
        out = tmp_path / on
        run(app, out, [0], on=on)
        write_study(out, read_study(out) | {"recorded": []})
        runtime.seeds.clear()
        run(app, out, [0], on=on)
        assert runtime.seeds == seeds


def test_a_run_in_which_nobody_answered_is_run_anew(app, tmp_path, runtime):
    out = tmp_path / "out"
    run(app, out, [0])
    (part,) = new_parts(out, [0])
    shutil.rmtree(part.record)
    writer = RecordWriter(part.record)
    writer.write(Exchange(1, None, [Reply("100", "missing", reason="no reply")]))
    writer.close()
    run(app, out, [0])
    assert runtime.seeds == [0, 0]
    assert not Record(part.record).silence


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"seeds": [0, 1]}, "other seeds: that one has 0, this one 0, 1"),
        ({"command": f"{COMMAND} --quiet"}, "another command: this command adds `--quiet`"),
    ],
)
def test_another_run_is_refused(app, tmp_path, runtime, words, message):
    out = tmp_path / "out"
    run(app, out, [0])
    before = content_of(out)
    with pytest.raises(ConfigError, match=f"holds a run of {message}.*give this run another folder"):
        run(app, out, **{"seeds": [0], **words})
    assert content_of(out) == before


def test_a_command_that_leaves_out_a_word_is_told_which(app, tmp_path, runtime):
    run(app, tmp_path / "out", [0], f"{COMMAND} --set lr=0.1")
    with pytest.raises(ConfigError, match=r"this command adds `lr=0\.2` and leaves out `lr=0\.1`; give this"):
        run(app, tmp_path / "out", [0], f"{COMMAND} --set lr=0.2")


def test_files_by_which_witnesses_took_turns_go_with_the_run(app, tmp_path, runtime):
    (part,) = run(app, tmp_path / "out", [0])
    assert runtime.lock.parent == witness_of(part)
    assert not runtime.lock.exists()
    # Clients of a SuperLink that stays up may be at work.
    run(app, tmp_path / "other", [0], on="superlink")
    assert runtime.lock.exists()


def test_the_code_of_an_app_is_read_once(app, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(bundle, "app_files", lambda folder: read.append(folder) or iter([folder / "client.py"]))
    (tmp_path / "out").mkdir()
    write_study(tmp_path / "out", {"app": "app", "seeds": [0], "commands": [COMMAND], "code": app.code})
    for _ in range(2):
        assert running.find_stopped(app, tmp_path / "out", [0], COMMAND)
    assert read == [app.folder]


def test_another_app_and_one_that_was_changed_are_refused(app, tmp_path, runtime):
    out = tmp_path / "out"
    run(app, out, [0])
    other = tmp_path / "other"
    app.folder.rename(other)
    with pytest.raises(ConfigError, match=r"a run of another app: that one has app, this one other; give this run"):
        run(App(other), out, [0])
    other.rename(app.folder)
    (app.folder / "notes.md").write_text("It runs.")
    run(app, out, [0])
    (app.folder / "client.py").write_text("lr = 0.2\n")
    with pytest.raises(ConfigError, match=r"another version of the app: the app's files have changed since it began"):
        run(app, out, [0])


def test_code_that_a_folder_names_is_that_of_a_run_on_this_machine(app, tmp_path, runtime, monkeypatch):
    """The folder is data: it may have been in other hands meanwhile."""
    out = tmp_path / "out"
    (part,) = run(app, out, [0])
    assert read_code(out) == {"torch.nn:Linear"}
    (posed,) = pose_all([part])
    write_knowledge(part.knowledge, replace(posed.knowledge, model=replace(posed.knowledge.model, spec="os:system")))
    with pytest.raises(TrustError, match="asks for the model os:system, which would be imported"):
        pose_all([part])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(TrustError, match=r"names torch.nn:Linear, which would be imported; .* `fedattack gather "):
        run(app, out, [0])
    assert runtime.seeds == [0]


def test_where_an_app_lies_is_known_on_the_machine_that_ran_it(app, tmp_path, runtime, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    out = tmp_path / "out"
    (part,) = run(app, out, [0])
    assert read_code(out) == {"torch.nn:Linear"}
    assert find_app(out) == str(app.folder)
    (posed,) = pose_all([part])
    write_knowledge(part.knowledge, replace(posed.knowledge, model=replace(posed.knowledge.model, spec="client:Net")))
    (asked,) = asked_of_knowledge(RunFolder(out))
    assert asked.describe() == f"imports client:Net (model) from {app.folder / 'client.py'}"
    assert trust_asked([asked]) == {"client:Net"}
    assert sys.path[-1] == str(app.folder)
    sys.path.pop()
    (app.folder / "client.py").write_text("lr = 0.2\n")
    assert find_app(out) == ""
    (asked,) = asked_of_knowledge(RunFolder(out))
    assert asked.describe().endswith("from nowhere: there is no such module")
    # What cannot be read is not the app that ran, and keeps nobody from the report.
    os.mkfifo(app.folder / "pipe.py")
    assert find_app(out) == ""


def test_a_folder_of_a_preset_and_one_where_another_is_at_work_are_refused(app, tmp_path, runtime):
    write_study(tmp_path, {"preset": "quickstart"})
    with pytest.raises(ConfigError, match=r"already exists; .* `fedattack resume .*` continues the run"):
        run(app, tmp_path)
    out = tmp_path / "out"
    run(app, out, [0])
    with FolderLock(out), pytest.raises(ConfigError, match="another run is at work in"):
        run(app, out, [0])
    writer = RecordWriter(tmp_path / "out-2" / "record")
    write_study(tmp_path / "out-2", read_study(out))
    with pytest.raises(ConfigError, match=r"another run is at work in .*record"):
        run(app, tmp_path / "out-2", [0])
    writer.close()


@pytest.mark.slow
def test_the_command_that_is_given_again_poses_and_attacks_only_what_is_missing(tmp_path, runtime, call, monkeypatch):
    """Stopped while it trains, while it poses the second run, and while it makes the second attack."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    monkeypatch.setattr(auditing, "control", lambda *_: {})
    app, out = MESSAGE_API.copy(tmp_path), tmp_path / "out"
    words = ("audit", app, "--out", out, "--seeds", 2, "--supernodes", 3, "--device", "cpu", "--quiet")
    runtime.stops = {1}
    stopped(call, words)
    runtime.stops = set()
    posed = stop_at(monkeypatch, "pose", 2, lambda part, *_, **__: part.name)
    stopped(call, words)
    assert runtime.seeds == [0, 1, 1]
    assert posed == ["seed-0", "seed-1"]
    made = stop_at(monkeypatch, "attack_runs", 2, lambda attack, *_, **__: attack.name)
    stopped(call, words)
    assert posed == ["seed-0", "seed-1", "seed-1"]
    code, _, err = call(*words, "--json")
    assert code == 2
    assert "holds a run of another command: this command adds `--json`; give this run another folder" in err
    code, _, err = call(*words)
    assert code == 0, err
    assert posed == ["seed-0", "seed-1", "seed-1"]
    assert made[:3] == ["sia", "membership", "membership"]
    assert len({*made}) == len(made) - 1
    assert runtime.seeds == [0, 1, 1]
    found = (out / "findings.json").read_text()
    whole = tmp_path / "whole"
    code, _, err = call(*(whole if word is out else word for word in words))
    assert code == 0, err
    assert stated(whole / "findings.json") == stated(out / "findings.json")
    # A finished audit is only judged anew.
    made.clear()
    code, _, err = call(*words)
    assert code == 0, err
    assert not made
    assert (out / "findings.json").read_text() == found


@pytest.mark.parametrize("fails", [0, 1])
def test_an_app_that_fails_itself_is_not_told_to_go_on(tmp_path, runtime, call, monkeypatch, fails):
    """Its own error is what the line says; going on makes sense once a seed is whole."""
    real = runtime.run

    def run(config, on_poll):
        if len(runtime.seeds) == fails:
            raise RunError("flwr run failed: ValueError: the app's own")
        real(config, on_poll)

    monkeypatch.setattr(runtime, "run", run)
    app, out = MESSAGE_API.copy(tmp_path), tmp_path / "out"
    words = ("audit", app, "--out", out, "--seeds", 2, "--supernodes", 3, "--device", "cpu", "--quiet")
    code, _, err = call(*words)
    assert code == 2
    assert err.splitlines()[-1] == "error: flwr run failed: ValueError: the app's own"
    assert ("continues after what is recorded" in err) == bool(fails)


def stopped(call, words) -> None:
    code, _, err = call(*words)
    assert code == 130, err
    (line,) = (line for line in err.splitlines() if "continues after what is recorded" in line)
    command = re.search("`(.*)` continues after what is recorded", line)[1]
    assert shlex.split(command) == ["fedattack", *map(str, words)]


def stop_at(monkeypatch, name: str, number: int, label: Callable) -> list[str]:
    """Interrupt the call of this number of a function of the audit; returns a list of all calls."""
    calls: list[str] = []
    real = getattr(auditing, name)

    def call(*words, **named):
        calls.append(label(*words, **named))
        if len(calls) == number:
            raise KeyboardInterrupt
        return real(*words, **named)

    monkeypatch.setattr(auditing, name, call)
    return calls


def stated(findings) -> list:
    """All that findings state but where they lie and when they were made."""
    found = json.loads(findings.read_text())
    for finding in found if isinstance(found, list) else found["findings"]:
        finding.pop("provenance", None)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_audit_that_is_ended_by_a_signal_says_how_it_goes_on_and_leaves_no_file_and_no_process(
    tmp_path, runtime, call, monkeypatch, number
):
    """Whatever it is at: here it asks the app."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    app, out = MESSAGE_API.copy(tmp_path), tmp_path / "out"
    begun: list[subprocess.Popen] = []
    seen: list[Path] = []

    def pose(part, holding, asked, *, app, watch, notes):
        asking.Asker(app, watch).losses(
            Inquiry(part, holding.witnesses, Targets(np.zeros((1, 2), np.float32), np.zeros(1, np.int64)))
        )

    def end() -> None:
        seen.extend((out / PRIVATE).glob("*/targets.npz"))
        os.kill(os.getpid(), number)

    class Endless(subprocess.Popen):
        def __init__(self, command, **words):
            if "fedattack.apps.answering" not in " ".join(command):
                super().__init__(command, **words)
                return
            super().__init__([sys.executable, "-c", "import time; time.sleep(60)"], **words)
            begun.append(self)
            threading.Timer(0.5, end).start()

    monkeypatch.setattr(auditing, "pose", pose)
    monkeypatch.setattr(asking, "_handlers", lambda *_: {"100": {}})
    monkeypatch.setattr(asking.subprocess, "Popen", Endless)
    before = signal.getsignal(number)
    code, _, err = call("audit", app, "--out", out, "--supernodes", 3, "--device", "cpu", "--quiet")
    assert code == 128 + number, err
    assert "continues after what is recorded" in err
    assert len(begun) == len(seen) == 1
    assert begun[0].poll() is not None
    assert not [*(tmp_path / "tmp").iterdir()]
    assert not (out / PRIVATE).exists()
    assert signal.getsignal(number) is before


@pytest.mark.long
@pytest.mark.flower
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_an_audit_that_is_killed_while_it_asks_leaves_no_example_and_nobody_who_asks(tmp_path, number):
    """As the kernel does where memory is short, and a terminal that closes."""
    app, out, temporary = ASKED.copy(tmp_path), tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace('name = "asked_app"', 'name = "asked-app"'))
    words = ["audit", app, "--out", out, "--supernodes", 6, "--set", "kind=autoencoder", "--quiet"]
    audit = subprocess.Popen(
        [sys.executable, "-m", "fedattack", *map(str, words)],
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def find_copies() -> list[Path]:
        return [*(out / PRIVATE).glob("*/targets.npz"), *temporary.glob("*/targets.npz")]

    def find_askers() -> list[psutil.Process]:
        askers = []
        for process in psutil.process_iter(["cmdline"]):
            command = " ".join(process.info["cmdline"] or ())
            if "fedattack.apps.answering" in command and str(tmp_path) in command:
                askers.append(process)
        return askers

    try:
        assert wait_until(lambda: bool(find_copies() and find_askers()) or audit.poll() is not None, 600)
        assert find_copies()
        assert stat.S_IMODE(find_copies()[0].parent.stat().st_mode) == 0o700
        audit.send_signal(number)
        audit.wait(30)
        assert wait_until(lambda: not find_copies() and not find_askers(), 30)
    finally:
        audit.kill()
        audit.wait()
    assert not [*(out / PRIVATE).glob("*")]


@pytest.mark.long
@pytest.mark.flower
def test_a_killed_audit_of_an_app_goes_on_and_finds_the_same(tmp_path):
    """As a power cut would kill it, in the middle of its second run."""
    app, whole, out = MESSAGE_API.copy(tmp_path), tmp_path / "whole", tmp_path / "killed"
    path = app / MESSAGE_API.package / "task.py"
    line = "    return Net()\n"
    path.write_text(path.read_text().replace(line, f"    torch.manual_seed(5)\n{line}"))

    def words_to(folder) -> list[str]:
        words = ["audit", str(app), "--out", str(folder), "--supernodes", str(CLIENTS), "--seeds", "2"]
        for change in ("fraction-evaluate=1.0", "num-server-rounds=2", "local-epochs=2"):
            words += ["--set", change]
        return [sys.executable, "-m", "fedattack", *words]

    kill_after(out / "record" / "seed-1" / "rounds.jsonl", 1, words_to(out), seconds=900)
    before = content_of(out / "record" / "seed-0")
    assert before
    assert not (out / "findings.json").exists()
    # The server ends a moment after whoever started it.
    time.sleep(5)
    run_fedattack(*words_to(out))
    assert content_of(out / "record" / "seed-0") == before
    assert all(check_record(part.record).whole for part in new_parts(out, [0, 1]))
    assert witness_of(Part(out, "seed-1")).is_dir()
    run_fedattack(*words_to(whole))
    found, expected = findings_of(out, app), findings_of(whole, app)
    assert found.keys() == expected.keys()
    for name, finding in found.items():
        assert finding["value"] == pytest.approx(expected[name]["value"], abs=1e-4), name
