"""The real image and the real compose file: built, started, and audited like a simulation."""

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedattack.attacks import Scores
from fedattack.audit.truth import read_truth
from fedattack.record import Record, check_record
from tests.docker.test_prepare import run_prepare

ROOT = Path(__file__).parents[2]
BASE = "python:3.11-slim"
CLIENTS = 2
SMALL = ["--set", "rounds=2", "--set", "targets=20"]
# The pair that the Dockerfile names; or, where pip finds no such wheels, an older one without torchvision.
PAIRS = [("2.15.0+cpu", "0.29.2+cpu"), ("2.13.0+cpu", "")]
MOST_BYTES = 2.5e9
MOST_SECONDS = 10.0

pytestmark = pytest.mark.deploy


def succeeds(*command: str) -> bool:
    return shutil.which(command[0]) is not None and not subprocess.run(command, capture_output=True).returncode


def said(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def compose() -> list[str]:
    if not succeeds("docker", "info"):
        pytest.skip("no Docker engine answers; where shared/tools is, `docker-engine.sh engine` starts one")
    for command in (["docker", "compose"], ["docker-compose"]):
        if succeeds(*command, "version"):
            return command
    pytest.skip("neither `docker compose` nor `docker-compose` is installed")


@pytest.fixture(scope="module")
def image(compose) -> Iterator[str]:
    """The image, built from this checkout with CPU wheels that pip finds."""
    if not succeeds("docker", "image", "inspect", BASE) and not succeeds("docker", "pull", "--quiet", BASE):
        pytest.skip(f"no base image {BASE}; where shared/tools is, `docker-engine.sh base {BASE}` makes a stand-in")
    wheels = ROOT / "docker" / "wheels"
    for torch, torchvision in PAIRS:
        wanted = [f"torch=={torch}", *([f"torchvision=={torchvision}"] if torchvision else [])]
        if succeeds(sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(wheels), *wanted):
            break
    else:
        pytest.skip("pip finds no CPU build of torch")
    tag = "fedattack-tested"
    started = time.monotonic()
    arguments = ["--build-arg", f"TORCH={torch}", "--build-arg", f"TORCHVISION={torchvision}"]
    said("docker", "build", "--file", "docker/Dockerfile", "--tag", tag, *arguments, ".", cwd=ROOT)
    print(f"\nimage built in {time.monotonic() - started:.0f} s")
    return tag


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


@pytest.fixture
def deployment(compose, image, tmp_path) -> Iterator[list[str]]:
    """The compose command for a copy of docker/ in ``tmp_path``; everything goes down at the end."""
    command = [*compose, "--project-name", f"fa{uuid.uuid4().hex[:8]}"]
    os.environ["IMAGE"] = image
    yield command
    del os.environ["IMAGE"]
    subprocess.run([*command, "down", "--volumes", "--timeout", "5"], cwd=tmp_path, capture_output=True)


def findings_of(folder: Path) -> dict[str, float | None]:
    found = json.loads((folder / "findings.json").read_text())
    return {f"{item['attack']}.{item['metric']}": item["value"] for item in found}


def combined_of(folder: Path) -> np.ndarray:
    """Scores of source inference, a column for each client in their order."""
    truth, scores = read_truth(folder / "truth"), Scores.load(folder / "scores" / "sia.npz")
    return scores.arrays["combined"][:, np.argsort([truth.nodes[node] for node in scores.facts["clients"]])]


def test_an_audit_of_containers_finds_what_that_of_a_simulation_finds(deployment, tmp_path):
    run_prepare(tmp_path, "--clients", str(CLIENTS), "--", *SMALL)
    started = time.monotonic()
    said(*deployment, "run", "--rm", "audit", cwd=tmp_path)
    print(f"\naudit in containers: {time.monotonic() - started:.0f} s")
    running = said(*deployment, "ps", "-q", cwd=tmp_path).split()
    print(said("docker", "stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}", *running))
    found = tmp_path / "runs" / "audit"
    assert (found / "report.html").stat().st_size > 0
    assert check_record(found / "record").whole
    assert [seen.status for item in Record(found / "record") for seen in item.observations] == ["ok"] * CLIENTS * 2
    assert json.loads((found / "run.json").read_text())["provenance"]["runtime"] == "superlink"
    simulated = tmp_path / "simulated"
    words = ["audit", "quickstart", "--out", str(simulated), "--seeds", "1", "--set", f"clients={CLIENTS}", *SMALL]
    said(sys.executable, "-m", "fedattack", *words, cwd=tmp_path)
    assert findings_of(found) == pytest.approx(findings_of(simulated), abs=1e-4)
    np.testing.assert_allclose(combined_of(found), combined_of(simulated), atol=1e-4)

    assert "PRIVATE KEY" not in said(*deployment, "logs", "--no-color", cwd=tmp_path)
    the_clients_are_alone(deployment, tmp_path)


def the_clients_are_alone(deployment: list[str], folder: Path) -> None:
    """The SuperLink and a client reach each other, which no two clients do; and no client can write to its image."""

    def inside(service: str, code: str, *options: str) -> bool:
        command = [*deployment, "exec", *options, "-T", service, "python", "-c", code]
        return not subprocess.run(command, cwd=folder, capture_output=True).returncode

    def reaches(service: str, host: str, port: int) -> bool:
        return inside(service, f"import socket; socket.create_connection(('{host}', {port}), 5)")

    container = said(*deployment, "ps", "-q", "client-1", cwd=folder).strip()
    form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    address = said("docker", "inspect", "--format", form, container).strip()
    serve = "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port=9999, bind='0.0.0.0')"
    said("docker", "exec", "--detach", container, "python", "-c", serve)
    deadline = time.monotonic() + 30
    while not reaches("client-1", address, 9999) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert reaches("superlink", address, 9999)
    assert not reaches("client-0", address, 9999)
    assert not reaches("client-0", "client-1", 9999)
    assert reaches("client-0", "superlink", 8000)
    assert not inside("client-0", "open('/opt/fedattack/written', 'w')")
    assert not inside("client-0", "open('/written', 'w')")
    assert inside("client-0", "open('/state/written', 'w')")


def test_a_defended_audit_without_tls_is_one_that_was_asked_for(deployment, tmp_path):
    """`up` starts everything, and the report is there once the audit has ended."""
    words = ["--insecure", "--profile", "defended", "--clients", str(CLIENTS), "--out", "open", "--", *SMALL]
    run_prepare(tmp_path, *words)
    said(*deployment, "up", "--detach", cwd=tmp_path)
    container = said(*deployment, "ps", "-q", "audit", cwd=tmp_path).strip()
    assert said("docker", "wait", container).strip() == "0", said("docker", "logs", container)
    found = tmp_path / "runs" / "open"
    assert (found / "report.html").stat().st_size > 0
    study = json.loads((found / "study.json").read_text())
    assert study["settings"]["defence"] == "dp-gaussian"
    logs = said(*deployment, "logs", "--no-color", cwd=tmp_path)
    assert "no TLS" in logs
