"""A folder that somebody hands over is data: what it names is said, and followed only if the caller trusts it."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, Knowledge, KnownDefence, read_knowledge, write_knowledge
from fedattack.base.errors import MESSAGE, DataError, RunError, TrustError
from fedattack.learning import build_model, per_record_loss
from fedattack.learning.importing import Asked, trust_given
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.folder import RunFolder, write_study
from fedattack.runs import simulating
from fedattack.runs.asked import asked_of_knowledge, asked_of_study
from fedattack.runs.runtimes import RUNTIMES
from tests.fuzz.folders import NoFlower, private_training
from tests.fuzz.worlds import STUDY
from tests.worlds.federation import MODEL, write_run
from tests.worlds.private import write_private_run
from tests.worlds.sealed import edit

# As a folder has it.
WRITTEN = {key: value for key, value in vars(MODEL).items() if key != "arguments"}
NONE = {"defence": "none"}
PRIVATE = private_training("cross-entropy")


@pytest.fixture
def call(call):
    """Run the command line, whose messages must be short here."""

    def run(*words) -> tuple[int, str, str]:
        code, out, err = call(*words)
        assert all(len(line) <= MESSAGE + 20 for line in err.splitlines())
        return code, out, err

    return run


def harmful(mark) -> dict:
    """The settings by which a standard module runs a command."""
    return {
        "version": 1,
        "handlers": {"h": {"()": "os.system", "command": f"touch {mark}"}},
        "root": {"handlers": ["h"]},
    }


def test_a_defence_that_runs_a_command_is_not_followed(call, tmp_path):
    """The first folder of the review, which ran the command of whoever called `fedattack attack private-attribute`."""
    run, mark = write_private_run(tmp_path / "run"), tmp_path / "mark"
    knowledge = run / "knowledge" / "knowledge.json"
    value = {"spec": "logging.config:dictConfig", "settings": harmful(mark), "files": {}}
    edit(knowledge, {"defence": value})
    code, _, err = call("attack", "private-attribute", run, "--option", "clients=30", "--option", "epochs=1")
    assert code == 2
    assert not mark.exists()
    assert "settings" in err, "settings of a defence are plain values"
    edit(knowledge, {"defence": value | {"settings": {"version": 1}}})
    code, _, err = call("attack", "private-attribute", run, "--option", "clients=30", "--option", "epochs=1")
    assert code == 2
    assert "asks for the defence logging.config:dictConfig, which would be imported and run" in err
    assert "--trust" in err


def test_a_trusted_defence_is_imported_and_that_is_said_first(call, tmp_path, monkeypatch):
    (tmp_path / "own_defence.py").write_text(
        "def make(settings):\n    print('imported', settings)\n    raise SystemExit(7)\n"
    )
    monkeypatch.chdir(tmp_path)
    run = write_private_run(tmp_path / "run")
    edit(run / "knowledge" / "knowledge.json", {"defence": {"spec": "own_defence:make", "settings": {}, "files": {}}})
    words = ["attack", "private-attribute", run, "--option", "clients=30", "--option", "epochs=1"]
    assert call(*words)[:2] == (2, "")
    code, out, err = call(*words, "--trust")
    assert (code, out) == (7, "imported {}\n")
    assert f"trusted: imports own_defence:make (defence) from {tmp_path / 'own_defence.py'}" in err


def test_the_loss_of_a_known_defence_is_not_imported(call, tmp_path, monkeypatch):
    (tmp_path / "own_loss.py").write_text("raise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    run = write_private_run(tmp_path / "run")
    defence = {"spec": "fedattack", "settings": {**PRIVATE, "loss": "own_loss:loss"}, "files": {}}
    edit(run / "knowledge" / "knowledge.json", {"defence": defence})
    code, _, err = call("attack", "private-attribute", run, "--option", "clients=30", "--option", "epochs=1")
    assert code == 2
    assert "asks for the loss own_loss:loss" in err
    assert "with --trust, it imports own_loss:loss (loss)" in " ".join(call("check", run)[1].split())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"defence": "dp-sgd"},
        {**PRIVATE, "training": "x"},
        {**PRIVATE, "noise": "x"},
        {**PRIVATE, "loss": 3},
        {"defence": 3},
        {"defence": "none", "recup-models": "5"},
        {"defence": "none", "other": 1},
    ],
)
def test_settings_of_a_known_defence_have_a_form(call, tmp_path, settings):
    run = write_private_run(tmp_path / "run")
    edit(run / "knowledge" / "knowledge.json", {"defence": {"spec": "fedattack", "settings": settings, "files": {}}})
    code, _, err = call("attack", "private-attribute", run)
    assert code == 2
    assert "defence" in err
    assert len(err.strip().splitlines()) == 1


def test_a_record_beside_a_record_is_refused(call, tmp_path):
    """Else `check` would speak of the one, and attacks use the other."""
    run = write_run(tmp_path / "run")
    for path in list((run / "record").iterdir()):
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, run / path.name)
    for words in (["check", run], ["attack", "sia", run], ["report", run]):
        code, _, err = call(*words)
        assert code == 2
        assert "is a record and contains another one" in err


def test_names_do_not_drive_the_terminal(call, tmp_path):
    run = write_run(tmp_path / "run")
    escape = "\x1b]0;pwned\x07\x1b[31mX\nY"
    edit(
        run / "knowledge" / "knowledge.json",
        {"defence": {"spec": "fedattack", "settings": NONE, "files": {escape: "../zoo"}}},
    )
    for words in (["check", run], ["attack", "sia", run]):
        code, out, err = call(*words)
        assert code == 2
        assert "\x1b" not in out + err
    other = write_run(tmp_path / "other")
    (other / "record").rename(tmp_path / "moved")
    (other / "record").mkdir()
    (tmp_path / "moved").rename(other / "record" / "e\x1b[2J")
    code, out, err = call("check", other)
    assert code == 2
    assert "\x1b" not in out + err
    assert "is not a plain name of a folder" in err


@pytest.mark.parametrize(
    "name", ["a; touch PWNED #", "a`touch PWNED`", "a' ; touch PWNED #", "$(touch PWNED)", "b" * 200]
)
def test_a_command_to_copy_does_what_it_says_whatever_the_folder_is_called(call, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "run")
    shutil.rmtree(run / "scores", ignore_errors=True)
    run.rename(tmp_path / name)
    code, _, err = call("report", name)
    assert code == 2
    (command,) = re.findall("run `(fedattack attack NAME .*)` first", err.replace("\n", " "))
    (program := tmp_path / "bin" / "fedattack").parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > words\n')
    program.chmod(0o700)
    subprocess.run(["sh", "-c", command], env={"PATH": f"{program.parent}:{os.environ['PATH']}"}, check=True)
    assert not (tmp_path / "PWNED").exists()
    assert (tmp_path / "words").read_text().splitlines() == ["attack", "NAME", name if len(name) < 100 else "DIR"]


def test_loops_and_names_that_are_no_files_are_one_line(call, tmp_path):
    run = write_run(tmp_path / "run")
    edit(run / "knowledge" / "knowledge.json", {"files": {"a\x00b": "0" * 64}})
    assert call("attack", "sia", run)[0] == 2
    (run / "loop").symlink_to("loop")
    for words in (["check", run], ["attack", "sia", run], ["report", run], ["resume", run]):
        code, _, err = call(*words)
        assert code == 2
        assert "is a link that leads back to itself" in err


def test_a_built_in_model_of_gigabytes_is_not_built(call, tmp_path):
    run = write_run(tmp_path / "run")
    edit(run / "knowledge" / "knowledge.json", lambda value: value["model"].update(hidden=10**6, classes=10**6))
    code, _, err = call("attack", "sia", run)
    assert code == 2
    assert "parameters; expected at most" in err


def test_a_seed_is_a_number_and_resume_deletes_nothing_elsewhere(call, tmp_path):
    """The second folder of the review: `fedattack resume` deleted a folder outside of it."""
    run = write_run(tmp_path / "a" / "b" / "run", close=False)
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("keep me")
    write_study(run, STUDY)
    for seed in ("x/../../../../victim", "../../../../victim", -1, 2**40, 1.5, None, [0]):
        edit(run / "study.json", {"seeds": [seed, 1]})
        code, _, err = call("resume", run)
        assert code == 2
        assert "seeds.0" in err
    assert (tmp_path / "victim" / "file").read_text() == "keep me"


@pytest.fixture
def no_flower(monkeypatch):
    """Look at what the runtime would be told, in place of a run."""
    told = []

    class Told(NoFlower):
        def run(self, config, **named):
            told.append(dict(config))
            raise RunError("no Flower here")

    monkeypatch.setitem(RUNTIMES, "simulation", lambda *words: Told())
    monkeypatch.setattr(simulating, "prepare", lambda configs: None)
    return told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"model": "os:system"}}, "asks for the model os:system, which would be imported and run"),
        ({"settings": {"models": "mlp, os:system"}}, "asks for the models os:system"),
        ({"settings": {"dataset": "/home/victim/private.npz"}}, "asks for the dataset /home/victim/private.npz, which"),
        ({"settings": {"data-root": "/home/victim"}}, "asks for the data-root /home/victim"),
        ({"settings": {"recup-zoo": "../zoo"}}, "asks for the recup-zoo ../zoo"),
        ({"settings": {"recup-zoo": ".."}}, "asks for the recup-zoo .."),
        ({"settings": {"data-root": "x"}}, "asks for the data-root x"),
        ({"settings": {"clients": 10**9}}, "clients = 1000000000: expected at most 100000"),
        ({"settings": {"record": "/home/victim"}}, "unknown setting 'record'"),
        ({"settings": {"clients": 0}}, "clients = 0: expected at least 2"),
        ({"settings": {"clients": "4"}}, "clients = '4': expected a whole number"),
        ({"settings": {"clients": [4]}}, "settings.clients"),
        ({"runtime": "os:system"}, "unknown runtime 'os:system'"),
        ({"preset": "../../x"}, "unknown preset"),
        ({"seeds": []}, "holds no run to continue"),
        ({"seeds": [0, 0]}, "seeds: one occurs twice"),
    ],
)
def test_a_study_is_held_to_its_form_and_leads_nowhere(call, tmp_path, no_flower, changes, message):
    run = write_run(tmp_path / "run", close=False)
    write_study(run, {**STUDY, **changes, "settings": {**STUDY["settings"], **changes.get("settings", {})}})
    code, _, err = call("resume", run)
    assert code == 2
    assert message in " ".join(err.split())
    assert no_flower == []


def test_a_trusted_study_goes_on_with_what_it_names(call, tmp_path, no_flower):
    run = write_run(tmp_path / "run", close=False)
    write_study(run, {**STUDY, "settings": {**STUDY["settings"], "dataset": str(tmp_path / "own.npz")}})
    code, _, err = call("resume", run, "--trust")
    assert code == 2
    assert f"trusted: reads {tmp_path / 'own.npz'} (dataset)" in err
    assert f"`fedattack resume {run} --trust` continues" in err
    (config,) = no_flower
    assert config["dataset"] == str(tmp_path / "own.npz")
    assert config["record"] == str(run / "record")


def own(tmp_path, monkeypatch):
    """A record from elsewhere, attacked with a model of one's own; the truth is there."""
    run = write_run(tmp_path / "run")
    (run / "knowledge" / "knowledge.json").unlink()
    (run / "knowledge" / "targets.npz").rename(tmp_path / "targets.npz")
    (tmp_path / "own_models.py").write_text(
        "from fedattack.learning import build_model\n"
        "def build():\n    return build_model('mlp', input_shape=(30,), classes=10, hidden=64)\n"
    )
    monkeypatch.chdir(tmp_path)
    return run


def test_what_the_caller_names_is_followed_and_what_the_folder_then_names_is_not(call, tmp_path, monkeypatch):
    run = own(tmp_path, monkeypatch)
    words = ["attack", "sia", run, "--targets", tmp_path / "targets.npz", "--model", "own_models:build"]
    assert call(*words, "--classes", 10)[0] == 0
    code, _, err = call("attack", "sia", run)
    assert code == 2
    assert "asks for the model own_models:build" in err
    code, _, err = call("report", run)
    assert code == 2
    assert "asks for the model own_models:build" in err
    code, out, err = call("report", run, "--trust")
    assert code == 0
    assert "trusted: imports own_models:build (model) from" in err
    assert "sia.asr" in out
    _, out, _ = call("check", run)
    assert "with --trust, it imports own_models:build (model) from" in " ".join(out.split())
    told = json.loads(call("check", run, "--json")[1])
    assert [item["asks"][0].split(" from ")[0] for item in told.values()] == ["imports own_models:build (model)"]


def test_without_the_truth_a_report_needs_no_model(call, tmp_path, monkeypatch):
    run = own(tmp_path, monkeypatch)
    call("attack", "sia", run, "--targets", tmp_path / "targets.npz", "--model", "own_models:build", "--classes", 10)
    (run / "truth").rename(tmp_path / "truth")
    assert call("report", run)[0] == 0


def test_nothing_builds_what_only_a_folder_asks_for(tmp_path):
    asked = Asked("model", "os:system", "knowledge.json")
    for action in (
        lambda: trust_given(asked),
        lambda: build_model(asked, input_shape=(3,), classes=2),
        lambda: per_record_loss(asked),
        lambda: replace(MODEL, spec=asked).build(),
        lambda: KnownDefence(asked, {}).build(),
        lambda: KnownDefence("fedattack", {"recup-zoo": asked}).build(),
    ):
        with pytest.raises(TrustError, match="os:system"):
            action()


@pytest.mark.parametrize(
    ("knowledge", "values"),
    [
        ({"model": {**WRITTEN, "input_shape": [30], "spec": "a.b:c"}}, ["a.b:c"]),
        ({"model": {**WRITTEN, "input_shape": [30], "loss": "a.b:d"}}, ["a.b:d"]),
        ({"property": "a.b:e"}, ["a.b:e"]),
        ({"property": "membership"}, []),
        ({"defence": {"spec": "fedattack", "settings": NONE, "files": {}}}, []),
        ({"defence": {"spec": "fedattack", "settings": {**PRIVATE, "loss": "a.b:g"}, "files": {}}}, ["a.b:g"]),
        ({"defence": {"spec": "a.b:f", "settings": {}, "files": {}}}, ["a.b:f"]),
        ({"defence": {"spec": "fedattack", "settings": {**NONE, "recup-zoo": "/etc"}, "files": {}}}, ["/etc"]),
        ({"defence": {"spec": "fedattack", "settings": NONE, "files": {"recup-zoo": "../zoo"}}}, []),
        ({"defence": {"spec": "fedattack", "settings": NONE, "files": {"recup-zoo": "../../.."}}}, ["OUTSIDE"]),
    ],
)
def test_what_a_folder_asks_for_is_listed(tmp_path, knowledge, values):
    run = write_run(tmp_path / "deep" / "run")
    edit(run / "knowledge" / "knowledge.json", knowledge)
    found = [item.value for item in asked_of_knowledge(RunFolder(run))]
    assert found == [str(tmp_path) if value == "OUTSIDE" else value for value in values]
    trusted = read_knowledge(run / "knowledge", trusted=found)
    assert trusted.asks() == []


def test_links_that_leave_the_folder_are_refused_by_every_command(call, tmp_path):
    run = write_run(tmp_path / "run")
    ATTACKS["sia"].run(Record(run / "record"), read_knowledge(run / "knowledge"), device="cpu").save(
        run / "scores" / "sia.npz"
    )
    write_study(run, STUDY)
    (tmp_path / "outside").mkdir()
    (run / "knowledge" / "nodes").symlink_to(tmp_path / "outside")
    for words in (["attack", "sia", run], ["report", run], ["check", run], ["resume", run]):
        code, _, err = call(*words)
        assert code == 2, words
        assert "is a link that leaves" in err
    assert list((tmp_path / "outside").iterdir()) == []
    with pytest.raises(DataError, match="is a link that leaves"):
        read_knowledge(run / "knowledge")


def test_what_is_written_replaces_links_and_second_names(call, tmp_path):
    run = write_run(tmp_path / "run")
    victim = tmp_path / "victim"
    victim.write_text("keep me")
    (run / "scores").mkdir()
    (run / "scores" / "sia.npz").hardlink_to(victim)
    assert call("attack", "sia", run, "--device", "cpu")[0] == 0
    assert victim.read_text() == "keep me"
    (run / "report.html").hardlink_to(victim)
    assert call("report", run)[0] == 0
    assert victim.read_text() == "keep me"


def test_a_nodes_name_from_a_record_is_no_path(tmp_path):
    """The guide names nodes by a record, which may come from elsewhere."""
    from fedattack.audit.truth import note_node
    from fedattack.record.nodes import read_nodes

    for node in ("../../victim", "/etc/passwd", ".", "", "a/b", "x" * 500, "ok-7"):
        note_node(tmp_path / "truth", node=node, client="c")
    assert {path.parent for path in tmp_path.rglob("*.json")} == {tmp_path / "truth" / "nodes"}
    assert len(read_nodes(tmp_path / "truth", DataError, "")) == 7


def test_a_run_in_which_no_client_answers_ends_with_the_clients_reason(call, tmp_path, monkeypatch):
    """Of the review: it went on, and ended in an error about knowledge/nodes."""
    why = "error 4: MemoryError: " + "the node ran low on memory " * 200

    class Dying(NoFlower):
        def run(self, config, **named):
            writer = RecordWriter(type(tmp_path)(config["record"]))
            state = {"w": np.zeros(2, dtype=np.float32)}
            for number in (1, 2):
                writer.write(Exchange(number, state, [Reply(str(c), "failed", reason=why) for c in range(3)]))
            writer.close(final=state)
            return "OutOfMemoryError: " + "x" * 3_000

    monkeypatch.setitem(RUNTIMES, "simulation", lambda *words: Dying())
    monkeypatch.setattr(simulating, "prepare", lambda configs: None)
    monkeypatch.setattr("fedattack.runs.forecast.foretell", lambda *words, **named: None)  # nothing was prepared
    code, _, err = call("audit", "quickstart", "--out", tmp_path / "run", "--seeds", 1)
    assert code == 2
    assert "no client answered a training message in any of 2 rounds: OutOfMemoryError: xxx" in err
    assert max(map(len, err.splitlines())) < MESSAGE + 20
    code, out, _ = call("check", tmp_path / "run")
    assert code == 2
    assert (
        "no client answered a training message in any of 2 rounds: error 4: MemoryError: the node ran low"
        in " ".join(out.split())
    )


def test_knowledge_of_a_study_is_asked_for_by_name(tmp_path):
    write_study(
        tmp_path,
        {**STUDY, "settings": {**STUDY["settings"], "model": "m:n"}, "options": {"workers": "2"}},
    )
    assert [(item.what, item.value) for item in asked_of_study(RunFolder(tmp_path))] == [("model", "m:n")]
    write_knowledge(tmp_path / "knowledge", Knowledge())
    assert read_knowledge(tmp_path / "knowledge").asks() == []
