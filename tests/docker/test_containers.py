"""The real image and the real compose file: built, started, and audited like a simulation."""

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedattack.record import Record, check_record
from tests.docker.conftest import ROOT
from tests.docker.containers import Containers, await_that, clients_of, said, statuses_of
from tests.worlds.judged import findings_of, sources_of

CLIENTS = 2
SMALL = ["--set", "rounds=2", "--set", "targets=20"]
MOST_BYTES = 2.5e9
MOST_SECONDS = 10.0

pytestmark = pytest.mark.deploy


def test_the_image_is_small_starts_soon_and_is_not_roots(image):
    size = int(said("docker", "image", "inspect", "--format", "{{.Size}}", image))
    started = time.monotonic()
    version = said("docker", "run", "--rm", "--read-only", "--tmpfs", "/tmp", image, "fedattack", "--version")
    seconds = time.monotonic() - started
    print(f"\nimage: {size / 1e9:.2f} GB, starts in {seconds:.1f} s")
    assert version.startswith("fedattack ")
    assert size < MOST_BYTES
    assert seconds < MOST_SECONDS
    assert said("docker", "run", "--rm", image, "id", "-u").strip() != "0"
    assert "PRIVATE KEY" not in said("docker", "history", "--no-trunc", image)


def test_prepare_runs_in_the_image_where_the_host_lacks_fedattack(image, tmp_path):
    shutil.copy(ROOT / "docker" / "prepare.py", tmp_path)
    user, where = f"{os.getuid()}:{os.getgid()}", ("--volume", f"{tmp_path}:/docker", "--workdir", "/docker")
    said("docker", "run", "--rm", "--user", user, *where, image, "python", "prepare.py", "--clients", "2")
    settings = (tmp_path / ".env").read_text()
    assert f"RUN_AS={os.getuid() or 10001}:" in settings
    assert "--set clients=2" in settings
    assert (tmp_path / "deployment" / "keys" / "client-1").stat().st_mode & 0o077 == 0


def simulate(folder: Path, *words: str) -> Path:
    """Audit the same preset in a simulation."""
    command = [sys.executable, "-m", "fedattack", "audit", *words, "--seeds", "1", "--out", str(folder / "simulated")]
    said(*command, cwd=folder)
    return folder / "simulated"


def test_an_audit_of_containers_finds_what_that_of_a_simulation_finds(deployment, tmp_path):
    deployment.prepare("--clients", str(CLIENTS), "--", *SMALL)
    started = time.monotonic()
    deployment.do("run", "--rm", "audit")
    print(f"\naudit in containers: {time.monotonic() - started:.0f} s")
    running = deployment.do("ps", "-q").split()
    print(said("docker", "stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}", *running))
    found = deployment.audited("audit")
    assert (found / "report.html").stat().st_size > 0
    assert statuses_of(found) == [dict.fromkeys(map(str, range(CLIENTS)), "ok")] * 2
    assert json.loads((found / "run.json").read_text())["provenance"]["runtime"] == "superlink"
    simulated = simulate(tmp_path, "quickstart", "--set", f"clients={CLIENTS}", *SMALL)
    assert findings_of(found) == pytest.approx(findings_of(simulated), abs=1e-4)
    np.testing.assert_allclose(sources_of(found)[0], sources_of(simulated)[0], atol=1e-4)

    assert "PRIVATE KEY" not in deployment.logs()
    the_clients_are_alone(deployment)
    a_folder_that_is_taken_is_refused(deployment)


def the_clients_are_alone(deployment: Containers) -> None:
    """The SuperLink and a client reach each other, which no two clients do; and no client can write to its image."""

    def inside(service: str, code: str) -> bool:
        return not deployment.tell("exec", "-T", service, "python", "-c", code)[0]

    def reaches(service: str, host: str, port: int) -> bool:
        return inside(service, f"import socket; socket.create_connection(('{host}', {port}), 5)")

    container = deployment.container("client-1")
    form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    address = said("docker", "inspect", "--format", form, container).strip()
    serve = "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port=9999, bind='0.0.0.0')"
    said("docker", "exec", "--detach", container, "python", "-c", serve)
    await_that(lambda: reaches("client-1", address, 9999), 30, "a server in client-1")
    assert reaches("superlink", address, 9999)
    assert not reaches("client-0", address, 9999)
    assert not reaches("client-0", "client-1", 9999)
    assert reaches("client-0", "superlink", 8000)
    for path in ("/opt/fedattack/written", "/written", "/data/written", "/shared/written"):
        assert not inside("client-0", f"open('{path}', 'w')"), path
    assert inside("client-0", "open('/state/written', 'w')")


def a_folder_that_is_taken_is_refused(deployment: Containers) -> None:
    code, output = deployment.tell("run", "--rm", "audit")
    assert code == 2
    assert "/runs/audit already exists" in output


def test_a_defended_audit_without_tls_of_data_of_ones_own(deployment):
    """`up` starts everything, ends with the audit's exit code, and the report is there.

    The clients read the data in a file that they share, and zoos that were trained before the run.
    """
    zoo = ["defence=recup", "defence-strength=0.01", "recup-models=1", "recup-zoo-models=2", "recup-zoo-epochs=1"]
    changes = ["dataset=/data/mine.npz", "rounds=1", "targets=20", *zoo]
    words = [word for change in changes for word in ("--set", change)]
    deployment.prepare("--insecure", "--profile", "defended", "--clients", str(CLIENTS), "--out", "open", "--", *words)
    digits = load_digits()
    np.savez(deployment.folder / "data" / "mine.npz", x=digits.data, y=digits.target)
    code, output = deployment.tell("up", "--exit-code-from", "audit")
    assert code == 0, output[-6000:]
    found = deployment.audited("open")
    assert (found / "report.html").stat().st_size > 0
    study = json.loads((found / "study.json").read_text())
    assert study["settings"]["dataset"] == "/data/mine.npz"
    assert study["settings"]["defence"] == "recup"
    assert statuses_of(found) == [dict.fromkeys(map(str, range(CLIENTS)), "ok")]
    assert "no TLS" in deployment.logs("register")


def test_sums_alone_are_seen_behind_secure_aggregation(deployment, tmp_path):
    """Real SecAgg+, whose sums are those of a simulation but for its rounding, which is random."""
    deployment.prepare("--profile", "secure-aggregation", "--clients", "4", "--", "--set", "rounds=1")
    started = time.monotonic()
    deployment.do("run", "--rm", "audit")
    print(f"\nSecAgg+ in containers: {time.monotonic() - started:.0f} s")
    found = deployment.audited("audit")
    assert (found / "report.html").stat().st_size > 0
    assert check_record(found / "record").whole
    asked = re.search(r"^AUDIT=(.*) --seeds 1 (.*)$", (deployment.folder / ".env").read_text(), re.MULTILINE)
    simulated = simulate(tmp_path, *f"{asked[1]} {asked[2]}".split())
    assert findings_of(found).keys() == findings_of(simulated).keys()
    (ours,), (theirs,) = Record(found / "record"), Record(simulated / "record")
    assert Record(found / "record").view == "aggregate"
    assert Record(found / "record").manifest["aggregation"]["by"] == "secagg+"
    assert [seen.arrays for seen in ours.observations] == [None] * 3
    assert {clients_of(found)[node] for node in ours.sampled} == {
        clients_of(simulated)[node] for node in theirs.sampled
    }
    for name, array in theirs.aggregate.items():
        np.testing.assert_allclose(ours.aggregate[name], array, atol=1e-5)
