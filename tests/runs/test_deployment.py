"""A SuperLink and SuperNodes as real processes: they come up, run an audit, keep strangers out, and leave nothing."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedattack.base.errors import ConfigError, RunError
from fedattack.record import Record, check_record
from fedattack.record.nodes import note_node, read_nodes
from fedattack.runs import reaper
from fedattack.runs.credentials import make_certificates, make_node_key
from fedattack.runs.deployment import Deployment
from fedattack.runs.remote import Remote
from fedattack.runs.runtime import free_port
from tests.runs.test_simulator import give_up_after, wait_until, write_app
from tests.worlds.judged import findings_of, sources_of

NODES = 3
SMALL = ["--seeds", "1", "--set", f"clients={NODES}", "--set", "rounds=2", "--set", "targets=20"]


def run_fedattack(*words: str, cwd: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "fedattack", *words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("supernodes", [0, -1])
def test_a_deployment_without_nodes_is_refused(supernodes, tmp_path):
    with pytest.raises(ConfigError, match="expected supernodes >= 1"):
        Deployment(write_app(tmp_path), supernodes=supernodes, log=tmp_path / "log")


def test_what_does_not_come_up_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    """Here the programs that Flower would start end at once."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "flower-superlink").write_text("#!/bin/sh\necho cannot start\nexit 7\n")
    (programs / "flower-superlink").chmod(0o755)
    with Deployment(write_app(tmp_path / "app"), supernodes=NODES, log=tmp_path / "log") as deployment:
        deployment._environment["PATH"] = str(programs)
        home = deployment._home
        with pytest.raises(RunError, match="did not come up: the SuperLink ended with exit code 7; see the end of"):
            deployment.ensure_up()
        assert reaper.processes_of(home) == []
    assert (tmp_path / "log").read_text() == "cannot start\n" * 3
    assert not home.exists()


@pytest.mark.parametrize("superlink", ["superlink:8000", "https://superlink", "ftp://superlink:8000", "https://a:1/b"])
def test_what_is_no_address_of_a_superlink_is_refused(superlink, tmp_path):
    with pytest.raises(ConfigError, match=f"SuperLink {superlink}: expected https://HOST:PORT"):
        Remote(write_app(tmp_path), supernodes=NODES, superlink=superlink, log=tmp_path / "log")


def test_the_environment_names_the_superlink(tmp_path, monkeypatch):
    app = write_app(tmp_path)
    monkeypatch.delenv("FEDATTACK_SUPERLINK", raising=False)
    with pytest.raises(ConfigError, match="FEDATTACK_SUPERLINK"):
        Remote.of_environment(app, supernodes=NODES, log=tmp_path / "log")
    monkeypatch.setenv("FEDATTACK_SUPERLINK", "https://superlink:8000")
    monkeypatch.setenv("FEDATTACK_AUTHORITY", str(tmp_path / "ca.crt"))
    with Remote.of_environment(app, supernodes=NODES, log=tmp_path / "log") as remote:
        assert remote.superlink == "superlink:8000"
        assert remote._connection == {"root-certificates": str(tmp_path / "ca.crt")}


def test_clients_notes_are_fetched_and_nothing_else(tmp_path):
    """A client sees its folder as the root; what it links to elsewhere is left alone."""
    notes, truth = tmp_path / "notes", tmp_path / "truth"
    for client in ("a", "b"):
        note_node(f"{notes / client}{truth}", node=f"node-{client}", client=client)
    (tmp_path / "secret.json").write_text('{"node": "x", "client": "y"}')
    (notes / "b" / truth.relative_to("/") / "nodes" / "link.json").symlink_to(tmp_path / "secret.json")
    remote = Remote(write_app(tmp_path), supernodes=2, superlink="http://h:1", notes=notes, log=tmp_path / "log")
    remote._fetch_notes([truth])
    assert read_nodes(truth, ConfigError, "") == {"node-a": "a", "node-b": "b"}


def test_zoos_are_shared_with_the_clients_and_those_of_an_earlier_run_replaced(tmp_path):
    zoos, shared = tmp_path / "zoo", tmp_path / "shared"
    remote = Remote(write_app(tmp_path), supernodes=2, superlink="http://h:1", shared=shared, log=tmp_path / "log")
    assert remote._share_zoos({"zoo": str(zoos)}) == {}
    assert remote._share_zoos({"zoo": ""}) == {}
    copy = shared / zoos.relative_to("/")
    for name in ("first", "second"):
        (zoos / name).mkdir(parents=True)
        assert remote._share_zoos({"zoo": str(zoos)}) == {"zoo": str(copy)}
        assert [path.name for path in copy.iterdir()] == [name]
        (zoos / name).rmdir()


def test_a_run_goes_on_with_a_superlink_that_was_stopped_and_comes_back(tmp_path, monkeypatch):
    remote = Remote(write_app(tmp_path), supernodes=2, superlink="http://h:1", log=tmp_path / "log")
    answers, polls = iter([("lost", ""), ("running", ""), ("finished:completed", "")]), []
    monkeypatch.setattr(remote, "_status", lambda run_id: next(answers))
    assert remote._read_lost("7", "the SuperLink is gone", lambda: polls.append(0)) == ("finished:completed", "")
    assert len(polls) == 2


@pytest.mark.deploy
def test_a_superlink_that_is_up_already_is_used_and_stays_up(tmp_path):
    """A run of another's SuperLink that is given up does not go on there."""
    app, output = write_app(tmp_path / "app"), tmp_path / "result"
    with Deployment(app, supernodes=NODES, log=tmp_path / "log") as theirs:
        theirs.ensure_up()
        config = tomllib.loads(theirs._private("config.toml").read_text())["superlink"]["private"]
        options = {"superlink": f"https://{config['address']}", "authority": Path(config["root-certificates"])}
        with Remote(app, supernodes=NODES, log=tmp_path / "ours", **options) as remote:
            remote.run({"output": str(output)})
            with pytest.raises(TimeoutError):
                remote.run({"fault": "sleep"}, on_poll=give_up_after(20))
        runs = json.loads(theirs._ask("flwr", "ls", "--format", "json").stdout)["runs"]
        assert sorted(run["status"] for run in runs) == ["finished:completed", "finished:stopped"]
        assert theirs._superlink.poll() is None
    assert output.read_text() == "[2.0, 2.0, 2.0]"


@pytest.mark.deploy
def test_an_audit_of_processes_finds_what_that_of_a_simulation_finds(tmp_path):
    """Same decisions, scores to 1e-4: the clients compute the same, whatever they run on."""
    found, decided, combined = {}, {}, {}
    for runtime in ("simulation", "processes"):
        out = tmp_path / runtime
        run_fedattack("audit", "quickstart", "--on", runtime, "--out", str(out), *SMALL, cwd=tmp_path)
        record = Record(out / "record")
        assert check_record(out / "record").whole
        assert [seen.status for item in record for seen in item.observations] == ["ok"] * NODES * 2
        combined[runtime], decided[runtime] = sources_of(out)
        found[runtime] = findings_of(out)
        assert json.loads((out / "run.json").read_text())["provenance"]["runtime"] == runtime
    np.testing.assert_allclose(combined["processes"], combined["simulation"], atol=1e-4)
    assert decided["processes"] == decided["simulation"]
    assert found["processes"] == pytest.approx(found["simulation"], abs=1e-4)
    assert "PRIVATE KEY" not in (tmp_path / "processes" / "flower.log").read_text()


@pytest.mark.deploy
def test_strangers_are_kept_out_of_a_secure_deployment(tmp_path):
    """Without a registered key, without any, without TLS; and a node of ours does not trust a stranger's SuperLink."""
    with Deployment(write_app(tmp_path / "app"), supernodes=NODES, log=tmp_path / "log") as deployment:
        deployment.ensure_up()
        keys = next(deployment._private("keys").iterdir())
        address = re.search(r'address = "([\d.:]+)"', deployment._private("config.toml").read_text())[1]
        stranger = make_node_key(tmp_path / "keys", "stranger")
        other = make_certificates(tmp_path / "keys", ["127.0.0.1"])
        log = tmp_path / "strangers.log"

        def try_to_join(*options: str) -> str:
            """Start a SuperNode that gives up soon; returns what it wrote."""
            environment = {**deployment._environment, "FLWR_HOME": str(deployment._private("stranger"))}
            command = deployment._command("flower-supernode", "--superlink", address, "--port", str(free_port()))
            with log.open("wb") as sink, contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [*command, "--max-retries", "1", *options],
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    timeout=60,
                    check=False,
                )
            return log.read_text()

        ours = ("--root-certificates", str(keys / "ca.crt"))
        unregistered = try_to_join(*ours, "--auth-supernode-private-key", str(stranger.private))
        keyless = try_to_join(*ours)
        theirs = try_to_join(
            "--root-certificates", str(other.authority), "--auth-supernode-private-key", str(keys / "node-0")
        )
        in_plain = try_to_join("--insecure")
        assert "Failed to activate SuperNode" in unregistered
        assert "All SuperNodes must be registered" in keyless
        assert "CERTIFICATE_VERIFY_FAILED" in theirs
        assert "Exit Code: " in in_plain, in_plain
        nodes = deployment._ask("flwr", "supernode", "list", "--format", "json", "--verbose")
        assert [node["status"] for node in json.loads(nodes.stdout)["nodes"]] == ["online"] * NODES
        assert deployment.run({"output": str(tmp_path / "result"), "fault": "none"}) is None
        assert "PRIVATE KEY" not in deployment.log.read_text()
    assert not keys.exists()


@pytest.mark.deploy
def test_a_deployment_without_tls_and_keys_is_one_that_was_asked_for(tmp_path):
    with Deployment(write_app(tmp_path / "app"), supernodes=NODES, secure=False, log=tmp_path / "log") as deployment:
        deployment.run({"output": str(tmp_path / "result"), "fault": "client"})
        assert not deployment._private("keys").exists()
        assert "insecure = true" in deployment._private("config.toml").read_text()
        # A second run uses the same processes; a crash of its server is told as such.
        before = [node.pid for node in deployment._nodes]
        with pytest.raises(RunError, match="ValueError: the server fell over"):
            deployment.run({"fault": "server"})
        assert [node.pid for node in deployment._nodes] == before
    assert (tmp_path / "result").read_text() == "[2.0, 2.0, 2.0]"
    log = (tmp_path / "log").read_text()
    assert "SuperNode authentication is disabled" in log
    assert all(not psutil.pid_exists(pid) for pid in before)


@pytest.mark.deploy
def test_an_interrupt_ends_everything_that_was_started(tmp_path):
    """Ctrl-C during the training: no process is left, and neither are the keys."""
    out = tmp_path / "run"
    words = ("simulate", "quickstart", "--on", "processes", "--out", str(out), *SMALL, "--set", "rounds=50")
    command = subprocess.Popen(
        [sys.executable, "-m", "fedattack", *words],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        # A shell that starts this in the background has it ignore Ctrl-C, and so would the command.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    index = out / "record" / "rounds.jsonl"
    try:
        assert wait_until(lambda: index.exists() and index.read_bytes().count(b"\n") > 0, 240)
        homes = []
        for process in psutil.Process(command.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                homes += [Path(process.environ()["FLWR_HOME"])] if "FLWR_HOME" in process.environ() else []
        home = min(homes, key=lambda path: len(path.parts))
        seen = reaper.processes_of(home)
        assert len(seen) >= 1 + NODES
        command.send_signal(signal.SIGINT)
        command.wait(60)
    finally:
        command.kill()
    assert command.returncode == 130
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in seen)
    assert not home.exists()
    # What was recorded up to then is whole.
    assert len(Record(out / "record")) >= 1
