"""What prepare.py writes: keys of their own, and a network for each client."""

import importlib.util
import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fedattack.runs.presets import load_preset, resolve_settings

DOCKER = Path(__file__).parents[2] / "docker"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, DOCKER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prepare = load("prepare")


def run_prepare(folder: Path, *words: str) -> dict[str, str]:
    """Prepare in this folder; returns what .env says."""
    for path in DOCKER.glob("*.yaml"):
        shutil.copy(path, folder)
    command = [sys.executable, str(DOCKER / "prepare.py"), "--folder", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (folder / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def test_secrets_are_their_owners_alone_and_kept(tmp_path):
    run_prepare(tmp_path, "--clients", "2")
    keys = tmp_path / "deployment" / "keys"
    secret = {path.name for path in keys.iterdir() if b"PRIVATE" in path.read_bytes()} | {"superexec"}
    assert secret == {"client-0", "client-1", "server.key", "superexec"}
    assert {stat.S_IMODE((keys / name).stat().st_mode) for name in secret} == {0o600}
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    before = {name: (keys / name).read_bytes() for name in secret}
    run_prepare(tmp_path, "--clients", "3")
    assert {name: (keys / name).read_bytes() for name in secret} == before
    assert (keys / "client-2").exists()
    written = (tmp_path / "clients.yaml").read_text() + (tmp_path / ".env").read_text()
    assert not any(content.hex() in written or "PRIVATE" in written for content in before.values())


def test_no_network_has_two_clients():
    services = prepare.clients_side(5)["services"]
    clients = {name: entry for name, entry in services.items() if name.startswith("client-")}
    assert len(clients) == 5
    assert sorted(network for entry in clients.values() for network in entry["networks"]) == sorted(clients)
    assert sorted(services["superlink"]["networks"]) == sorted(clients)
    assert "server" not in [network for entry in clients.values() for network in entry["networks"]]
    # Each has its own key and partition, and writes to a folder of its own.
    for index, (name, entry) in enumerate(clients.items()):
        assert {"source": name, "target": "key"} in entry["secrets"]
        assert f"partition-id={index} num-partitions=5" in entry["command"]
        assert entry["volumes"] == [f"./deployment/notes/{name}/runs:/runs"]


@pytest.mark.parametrize("profile", prepare.PROFILES)
def test_profiles_are_settings_that_a_preset_takes(profile):
    name, *words = prepare.PROFILES[profile].split()
    changes = [word for word in words if word != "--set"]
    resolve_settings(load_preset(name), changes)


def test_without_tls_nothing_is_told_of_keys(tmp_path):
    settings = run_prepare(tmp_path, "--insecure", "--profile", "defended", "--", "--set", "rounds=2")
    assert settings["SCHEME"] == "http"
    assert {settings[f"{name}_SECURITY"] for name in ("SUPERLINK", "SUPERNODE", "CONNECTION")} == {"--insecure"}
    assert settings["AUDIT"].startswith("quickstart --set defence=dp-gaussian")
    assert settings["AUDIT"].endswith("--seeds 1 --set clients=4 --set rounds=2")


def test_nothing_runs_as_root(tmp_path):
    settings = run_prepare(tmp_path)
    assert "0" not in settings["RUN_AS"].split(":")
    text = (tmp_path / "clients.yaml").read_text().partition("\n")[2]
    assert set(json.loads(text)["services"]) == {
        *("superlink", "register", "audit"),
        *(f"client-{index}" for index in range(4)),
    }


def test_the_image_takes_everything_but_torch_from_the_project():
    requirements = load("requirements")
    lines = ["torch>=2.6", "torchvision>=0.21", "numpy>=2.0", "torch==2.15.0", "nvidia-nvtx==13", "triton==3.9.0"]
    assert requirements.others(lines) == "numpy>=2.0\n"


def test_the_image_installs_the_extra_and_takes_torch_from_elsewhere(tmp_path):
    words = [
        sys.executable,
        DOCKER / "requirements.py",
        DOCKER.parent / "pyproject.toml",
        DOCKER.parent / "constraints.txt",
    ]
    subprocess.run(words, cwd=tmp_path, check=True)
    wanted = (tmp_path / "requirements.txt").read_text()
    assert "flwr>=" in wanted
    assert "ray>=" in wanted
    assert "opacus>=" in wanted
    others = (tmp_path / "other-constraints.txt").read_text()
    assert not re.search(r"^(torch|torchvision)\b", wanted + others, re.MULTILINE)
    assert "torchmetrics==" in others


def test_the_image_needs_no_argument():
    """Its versions of torch are those of the constraints, which pip's default index has."""
    constraints = (DOCKER.parent / "constraints.txt").read_text().splitlines()
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE))
    for name in ("torch", "torchvision"):
        assert f"{name}=={arguments[name.upper()]}" in constraints
