"""What breaks in a running deployment of containers: the record is whole up to then, and can be attacked."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedattack.record import Record, check_record
from tests.docker.containers import Containers, await_that, clients_of, rounds_of, said, statuses_of, succeeds

CLIENTS = 3
ALL_OK = {str(index): "ok" for index in range(CLIENTS)}
# A client is at work for some seconds of a round.
BUSY = "--set targets=20 --set local-epochs=60"
CUT_SECONDS = 30

pytestmark = pytest.mark.deploy


@pytest.fixture(scope="module")
def running(compose: list[str], image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Everything but an audit is up, which each test starts for itself."""
    with Containers(compose, image, tmp_path_factory.mktemp("deployment")) as containers:
        containers.prepare("--clients", str(CLIENTS))
        containers.do("up", "--detach", "superexec", *(f"client-{index}" for index in range(CLIENTS)))
        yield containers


class Audit:
    """An audit that goes on while the test does something to the deployment."""

    def __init__(self, containers: Containers, name: str, *, rounds: int, **environment: str) -> None:
        self.folder = containers.audited(name)
        words = f"quickstart --seeds 1 --set clients={CLIENTS} --set rounds={rounds} {BUSY}"
        self._process = containers.start("run", "--rm", "audit", AUDIT=words, OUT=name, **environment)
        self._name, self._rounds, self._started = name, rounds, time.monotonic()

    def await_rounds(self, number: int) -> None:
        await_that(lambda: rounds_of(self.folder) >= number or self._process.poll() is not None, 240, "a round")
        assert self._process.poll() is None, self._process.communicate()[0][-4000:]
        assert rounds_of(self.folder) < self._rounds

    def ended(self) -> tuple[int, str]:
        output, _ = self._process.communicate(timeout=600)
        print(f"\n{self._name}: {time.monotonic() - self._started:.0f} s")
        return self._process.returncode, output


def attack(folder: Path) -> None:
    """Nothing that is in the record is damaged, and the attack works on it, here."""
    assert check_record(folder / "record").problems == []
    said(sys.executable, "-m", "fedattack", "attack", "sia", str(folder))
    assert (folder / "scores" / "sia.npz").stat().st_size > 0


def is_at_work(container: str) -> bool:
    done = subprocess.run(["docker", "top", container, "-eo", "pid,args"], capture_output=True, text=True)
    # One that has ended, and that its parent has not collected yet, has no path there.
    return "/flwr-clientapp" in done.stdout


def test_a_client_that_is_cut_off_for_a_while_comes_back(running):
    """Its round waits for it: Flower gives a node up after a minute without a sign of life."""
    audit = Audit(running, "cut", rounds=3)
    audit.await_rounds(1)
    client, network = running.container("client-1"), f"{running.project}_client-1"
    said("docker", "network", "disconnect", network, client)
    time.sleep(CUT_SECONDS)
    said("docker", "network", "connect", network, client)
    code, output = audit.ended()
    assert code == 0, output[-4000:]
    statuses = statuses_of(audit.folder)
    print(statuses)
    assert len(statuses) == 3
    assert statuses[0] == statuses[-1] == ALL_OK
    assert {**statuses[1], "1": "ok"} == ALL_OK
    attack(audit.folder)


def test_a_client_that_is_killed_at_work_takes_part_again_once_it_is_back(running):
    """Flower misses it for a minute first, in which its round waits and it is not taken back."""
    audit = Audit(running, "killed", rounds=12)
    audit.await_rounds(1)
    client = running.container("client-1")
    await_that(lambda: is_at_work(client), 60, "client-1 at work")
    said("docker", "kill", client)
    said("docker", "start", client)
    code, output = audit.ended()
    assert code == 0, output[-4000:]
    statuses = statuses_of(audit.folder)
    print(statuses)
    # The same key is the same node.
    assert sorted(clients_of(audit.folder).values()) == sorted(ALL_OK)
    assert statuses[0] == statuses[-1] == ALL_OK
    assert statuses[1]["1"] == "failed"
    assert all({**status, "1": "ok"} == ALL_OK for status in statuses)
    attack(audit.folder)


def test_a_full_volume_ends_the_record_and_not_the_training(running, tmp_path):
    """A small volume stands for the runs. Somebody else fills it after the first round, but for what a log takes."""
    owner = re.search(r"^RUN_AS=(\d+):(\d+)$", (running.folder / ".env").read_text(), re.MULTILINE)
    (running.folder / "small.yaml").write_text(
        "services:\n"
        '  superexec: {volumes: ["small:/runs"]}\n'
        '  audit: {volumes: ["small:/runs"]}\n'
        "volumes:\n"
        "  small:\n"
        f'    driver_opts: {{type: tmpfs, device: tmpfs, o: "size=3M,uid={owner[1]},gid={owner[2]},mode=0700"}}\n'
    )
    files = {"COMPOSE_FILE": "compose.yaml:clients.yaml:small.yaml"}
    running.do("up", "--detach", "superexec", **files)
    audit, server = Audit(running, "full", rounds=5, **files), running.container("superexec")
    await_that(
        lambda: succeeds("docker", "exec", server, "test", "-s", "/runs/full/record/rounds.jsonl"), 240, "a round"
    )
    fill = 'head -c "$(($(df --output=avail -k /runs | tail -n 1) - 60))k" /dev/zero > /runs/other'
    said("docker", "exec", server, "sh", "-c", fill)
    code, output = audit.ended()
    said("docker", "cp", f"{server}:/runs/full", str(tmp_path))
    words = "head -c 3M /dev/zero > /runs/filler; fedattack attack sia /runs/full"
    without_space = running.start("run", "--rm", "audit", "sh", "-c", words, **files)
    complaint, _ = without_space.communicate(timeout=300)
    running.do("up", "--detach", "superexec")
    found = tmp_path / "full"
    logs = (found / "flower.log").read_text()
    record = Record(found / "record")
    assert 0 < len(record) < 5
    (said_once,) = [line for line in logs.splitlines() if "fedattack stopped recording" in line]
    assert f"the run continues: round {len(record) + 1}: " in said_once
    assert "No space left on device" in said_once
    assert record.status == "cut short"
    assert "No space left on device" in record.manifest["error"]
    # The training went on to its end; what had been dealt to clients is gone then, and leaves the attack its space.
    assert "[ROUND 5/5]" in logs
    assert code == 0, output[-4000:]
    assert "the recording was cut short: round" in (found / "report.html").read_text()
    # Where none is left, one line says so.
    assert without_space.returncode == 2, complaint[-4000:]
    assert len(re.findall(r"^error: \[Errno 28\] No space left on device", complaint, re.MULTILINE)) == 1
    assert "Traceback" not in output + complaint
    attack(found)


def test_a_superlink_that_is_stopped_and_started_knows_its_clients(running):
    """Flower goes on with the run, and so do its record and the audit; the next one needs no new keys."""
    audit = Audit(running, "stopped", rounds=3)
    audit.await_rounds(1)
    superlink = running.container("superlink")
    said("docker", "stop", "--time", "5", superlink)
    said("docker", "start", superlink)
    code, output = audit.ended()
    assert code == 0, output[-4000:]
    assert statuses_of(audit.folder) == [ALL_OK] * 3
    attack(audit.folder)
    code, output = Audit(running, "again", rounds=1).ended()
    assert code == 0, output[-4000:]
    assert statuses_of(running.audited("again")) == [ALL_OK]


def test_a_server_and_an_audit_that_die_are_gone_on_with(running, tmp_path):
    """By `fedattack resume`, in a run of its own with the same nodes, after the last whole round."""
    audit = Audit(running, "dead", rounds=3)
    audit.await_rounds(1)
    said("docker", "kill", running.container("superexec"), running.container("audit"))
    assert audit.ended()[0] != 0
    before = rounds_of(audit.folder)
    assert Record(audit.folder / "record").status == "open"
    # What we write beside the record would be ours, and not the containers' to change.
    attack(Path(shutil.copytree(audit.folder, tmp_path / "dead")))
    running.do("up", "--detach", "superexec")
    running.do("run", "--rm", "audit", "fedattack", "resume", "/runs/dead")
    assert statuses_of(audit.folder) == [ALL_OK] * 3
    assert [item["after"] for item in Record(audit.folder / "record").manifest["resumed"]] == [before]
    assert (audit.folder / "report.html").stat().st_size > 0
