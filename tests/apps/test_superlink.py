"""An app on a SuperLink that is up: what is refused before the run, and what real processes leave to judge."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedattack.apps.app import app_of
from fedattack.apps.superlink import check_reach, check_witnessed, count_online
from fedattack.attacks.registry import THREATS
from fedattack.audit.truth import read_truth
from fedattack.base.errors import ConfigError, RunError
from fedattack.record import Record, check_record
from fedattack.runs.deployment import Deployment
from fedattack.runs.runtime import free_port
from fedattack.runs.watch import Watch
from fedattack.witness import write_witness
from tests.apps.projects import MESSAGE_API, fedattack
from tests.apps.test_holding import World
from tests.apps.worlds import write_record

# Of the addresses for documentation, which no machine has.
ELSEWHERE = "https://192.0.2.1:8000"


@pytest.fixture
def told() -> tuple[list[str], Watch]:
    lines: list[str] = []
    return lines, Watch(say=lambda kind, text: lines.append(f"{kind}: {text}"))


def test_another_machine_is_refused_before_the_run(call, tmp_path, monkeypatch):
    """The line names the commands by which it can be done."""
    app, out = MESSAGE_API.copy(tmp_path), tmp_path / "out"
    monkeypatch.setenv("FEDATTACK_SUPERLINK", ELSEWHERE)
    code, _, err = call("audit", app, "--out", out, "--on", "superlink")
    assert code == 2
    assert "192.0.2.1:8000 is another machine, and the record would lie there" in err
    assert "`fedattack observe --out RECORD -- flwr run APP --stream` where the ServerApp runs" in err
    assert "`fedattack gather RECORD WITNESS… --out DIR`" in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_a_folder_that_all_machines_have_is_taken(tmp_path, monkeypatch):
    app = app_of(MESSAGE_API.copy(tmp_path))
    monkeypatch.setenv("FEDATTACK_SUPERLINK", ELSEWHERE)
    monkeypatch.setenv("FEDATTACK_SHARED", str(tmp_path / "shared"))
    check_reach(app, tmp_path / "shared" / "mine")
    with pytest.raises(ConfigError, match="set FEDATTACK_SHARED to a folder that all machines have at the same path"):
        check_reach(app, tmp_path / "mine")
    monkeypatch.setenv("FEDATTACK_NOTES", str(tmp_path))
    with pytest.raises(ConfigError, match="each client writes into its own folder, as FEDATTACK_NOTES says; put"):
        check_reach(app, tmp_path / "shared" / "mine")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_is_taken_and_one_that_does_not_answer_is_told(host, tmp_path, monkeypatch):
    app = app_of(MESSAGE_API.copy(tmp_path))
    monkeypatch.setenv("FEDATTACK_SUPERLINK", f"http://{host}:{free_port()}")
    check_reach(app, tmp_path / "out")
    if host == "127.0.0.1":
        with pytest.raises(RunError, match="no SuperNode is online, or the SuperLink does not answer"):
            count_online(app)


def test_clients_that_wrote_nothing_here_are_told(tmp_path, told):
    lines, watch = told
    write_record(tmp_path / "record", ["100", "101", "102"])
    record, folder = Record(tmp_path / "record"), tmp_path / "witness"
    folder.mkdir()
    with pytest.raises(RunError, match=rf"no client wrote into {folder}: .* need a WitnessMod .* `fedattack gather "):
        check_witnessed(record, folder, watch)
    witnesses = World.witnesses(10**6)
    write_witness(folder, witnesses[0])
    check_witnessed(record, folder, watch)
    assert [line.partition(";")[0] for line in lines] == ["warning: 2 of 3 clients run elsewhere and are not witnessed"]
    lines.clear()
    for witness in witnesses:
        write_witness(folder, witness)
    check_witnessed(record, folder, watch)
    assert not lines


@pytest.fixture
def federation(tmp_path, monkeypatch) -> Iterator[Deployment]:
    """A SuperLink and two SuperNodes that somebody else has started; the environment names it."""
    with Deployment(MESSAGE_API.copy(tmp_path / "theirs"), supernodes=2, log=tmp_path / "log") as theirs:
        theirs.ensure_up()
        config = tomllib.loads(theirs._private("config.toml").read_text())["superlink"]["private"]
        monkeypatch.setenv("FEDATTACK_SUPERLINK", f"https://{config['address']}")
        monkeypatch.setenv("FEDATTACK_AUTHORITY", config["root-certificates"])
        yield theirs


@pytest.mark.deploy
def test_an_app_is_audited_on_a_superlink_that_is_up(tmp_path: Path, federation):
    app, out = MESSAGE_API.copy(tmp_path), tmp_path / "out"
    words = ("--on", "superlink", "--set", "local-epochs=1", "--set", "num-server-rounds=2")
    done = fedattack("audit", str(app), "--out", str(out), "--json", *words, cwd=tmp_path)
    assert "project: 2 clients, 1 run on superlink" in done.stderr
    # All that is asked of the simulated app is asked here, too; of what is not, the page has the reason.
    headlines = {item["attack"] for item in json.loads(done.stdout) if item["headline"]}
    assert headlines - {"inversion"} == {"sia", "membership", "labels", "plaintext"}
    untried = json.loads((out / "run.json").read_text())["untried"]
    assert all(entry["why"] for entry in untried)
    assert THREATS["exact"].question in {entry["question"] for entry in untried}
    assert check_record(out / "record").whole
    assert len(Record(out / "record")) == 2
    truth = read_truth(out / "truth")
    assert truth.clients == ("0", "1")
    assert truth.counts.sum(axis=1).tolist() == [32, 64]
    assert json.loads((out / "run.json").read_text())["provenance"]["runtime"] == "superlink"
    # It stays up, and nobody else's run is in it.
    assert federation._superlink.poll() is None
    runs = json.loads(federation._ask("flwr", "ls", "--format", "json").stdout)["runs"]
    assert [run["status"] for run in runs] == ["finished:completed"]
