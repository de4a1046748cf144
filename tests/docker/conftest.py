"""The image, built once for all tests of containers, and deployments that start from it."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.containers import Containers, said, succeeds

ROOT = Path(__file__).parents[2]
BASE = "python:3.11-slim"
# The pair that the Dockerfile names; or, where pip finds no such wheels, an older one without torchvision.
PAIRS = [("2.15.0+cpu", "0.29.2+cpu"), ("2.13.0+cpu", "")]


@pytest.fixture(scope="session")
def compose() -> list[str]:
    if not succeeds("docker", "info"):
        pytest.skip("no Docker engine answers; where shared/tools is, `docker-engine.sh engine` starts one")
    for command in (["docker", "compose"], ["docker-compose"]):
        if succeeds(*command, "version"):
            return command
    pytest.skip("neither `docker compose` nor `docker-compose` is installed")


@pytest.fixture(scope="session")
def image(compose: list[str]) -> str:
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


@pytest.fixture
def deployment(compose: list[str], image: str, tmp_path: Path) -> Iterator[Containers]:
    """A deployment that everything goes down of at the end."""
    with Containers(compose, image, tmp_path) as containers:
        yield containers
