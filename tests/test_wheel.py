"""The wheel: one top level, and presets that run from it in a folder full of other people's modules."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]

# What a server and a client do in an environment that has Flower and fedattack alone.
LIGHT = """
import importlib.util
from pathlib import Path
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from fedattack.observe.bridge import numpy_client_bridge
from fedattack.defences import defence_of
from fedattack.defences.mods import DefenceMod
from fedattack.base.errors import ConfigError
from fedattack.observe import ObservedStrategy
from tests.observe import apps
from tests.worlds.local_grid import LocalGrid

assert [name for name in ("torch", "ray", "scipy") if importlib.util.find_spec(name)] == []
for name in ("sparsify", "dp-gaussian", "dp-laplace", "flower-localdp"):
    defence = DefenceMod({"defence": name, "defence-strength": 0.1})
    client = ClientApp(client_fn=apps.client_fn, mods=[defence, numpy_client_bridge])
    app = apps.message_server(lambda: ObservedStrategy(FedAvg(), f"{name}/record"), 2, {})
    app(LocalGrid(client, 3), Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config={}))
Path("zoos/colour").mkdir(parents=True)
Path("zoos/colour/zoo.json").touch()
try:
    defence_of({"defence": "recup", "defence-strength": 0.1, "recup-zoo": "zoos"})
except ConfigError as refused:
    assert str(refused).startswith("defence recup needs packages that are not installed ("), refused
else:
    raise AssertionError("a defence that needs torch was made without it")
"""

# Each word is a command; prints its exit code, and what it wrote.
COMMANDS = """
import contextlib, io, json, sys
from fedattack import cli
answers = {}
for line in sys.stdin.read().splitlines():
    sys.argv = ["fedattack", *line.split()]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
    answers[line] = code, out.getvalue()
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def test_its_only_top_level_is_fedattack(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "fedattack",
        next(n for n in names if "dist-info" in n).split("/")[0],
    }
    for data in (
        "fedattack/_app/pyproject.toml",
        "fedattack/_app/clients/app.py",
        "fedattack/_app/strategies/honest_but_curious.py",
        "fedattack/_app/simulations/server.py",
        "fedattack/_app/simulations/presets/quickstart.toml",
        "fedattack/_app/simulations/reproductions/sia-table3.toml",
        "fedattack/report/schema.json",
        "fedattack/report/template.html.j2",
        "fedattack/record/FORMAT.md",
        "fedattack/py.typed",
    ):
        assert data in names


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel and this environment's other packages, none of it from the checkout."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    site = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    # A path in a .pth file comes after the environment's own packages, and its own .pth files (ours is an editable
    # install) are not followed.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in ("fedattack", "flwr", "ray"):
        for entry in importlib.metadata.distribution(name).entry_points:
            if entry.group == "console_scripts":
                script = folder / "bin" / entry.name
                script.write_text(
                    f"#!{python}\nimport sys\nfrom {entry.module} import {entry.attr}\nsys.exit({entry.attr}())\n"
                )
                script.chmod(0o755)
    return folder


@pytest.mark.flower
@pytest.mark.slow
def test_a_preset_runs_from_the_wheel_in_an_unrelated_folder(installed, tmp_path):
    work = tmp_path / "somebody"
    for name in ("clients", "strategies", "simulations"):
        (work / name).mkdir(parents=True)
        (work / name / "__init__.py").write_text("raise RuntimeError('somebody else imported me')\n")
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["HOME"] = str(tmp_path / "home")
    (tmp_path / "home").mkdir()
    script = str(installed / "bin" / "fedattack")
    where = subprocess.run(
        [installed / "bin" / "python", "-c", "import fedattack; print(fedattack.__file__)"],
        capture_output=True,
        text=True,
        cwd=work,
        check=True,
    )
    assert str(installed) in where.stdout
    words = ["audit", "quickstart", "--out", "run", "--seeds", "1", "--set", "rounds=2", "--set", "clients=3", "--json"]
    done = subprocess.run([script, *words], capture_output=True, text=True, cwd=work, env=environment, timeout=400)
    assert done.returncode == 0, done.stderr
    findings = json.loads(done.stdout)
    assert findings[0]["attack"] == "sia"
    assert findings[0]["n"] == 300
    assert (work / "run" / "report.html").exists()
    assert (work / "run" / "record" / "manifest.json").exists()
    assert not list(work.rglob("__pycache__"))


def required(lines: list[str]) -> set[str]:
    """The names of all distributions that these requirements lead to, without extras that none of them names."""
    found: set[str] = set()
    waiting = [(Requirement(line), "") for line in lines]
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        for extra_of in ("", *wanted.extras):
            if (key := f"{wanted.name.lower()}[{extra_of}]") not in found:
                found.add(key)
                there = importlib.metadata.requires(wanted.name) or []
                waiting += [(Requirement(line), extra_of) for line in there]
    return {key.partition("[")[0] for key in found}


@pytest.fixture(scope="module")
def light(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel and what it requires without an extra: links to this environment's packages."""
    folder = tmp_path_factory.mktemp("light")
    venv.create(folder, with_pip=False)
    (site,) = (folder / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    lines = next(importlib.metadata.distributions(name="fedattack", path=[str(site)])).requires
    for name in required([line for line in lines if "extra ==" not in line]):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    for name in ("__init__.py", "observe/__init__.py", "observe/apps.py", "worlds/__init__.py", "worlds/local_grid.py"):
        (folder / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / "tests" / name, folder / "tests" / name)
    return folder


def run_light(light: Path, script: str, work: Path, given: str = "") -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [light / "bin" / "python", "-c", script],
        input=given,
        capture_output=True,
        text=True,
        cwd=work,
        env={**environment, "PYTHONPATH": str(light), "HOME": str(work)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_without_the_extra_servers_are_observed_and_all_else_refused_in_a_line(light, tmp_path):
    run_light(light, LIGHT, tmp_path)
    lines = [
        "--help",
        "audit --help",
        "keygen recorder.pem",
        "check sparsify",
        "project dp-laplace/record sums/record",
        "check sums",
        "observe --out other -- python server.py",
    ]
    needing = [
        "simulate quickstart --out run",
        "attack sia sparsify",
        "report sparsify",
        "audit quickstart --out run",
        "resume sparsify",
        "compare sparsify sums --out both",
        "export sparsify --mlflow tracked",
        "reproduce sia-table3 --out run",
        "tradeoff quickstart --out run",
        "list",
        "download mnist",
    ]
    printed = run_light(light, COMMANDS, tmp_path, "\n".join([*lines, *needing]))
    answers = json.loads(printed.splitlines()[0])
    errors = printed.splitlines()[1:]
    assert [answers[line][0] for line in lines] == [0, 0, 0, 0, 0, 0, 2]
    assert "whole, 2 readable rounds" in answers["check sums"][1]
    assert "expected the command that runs the app" in errors.pop(0)
    assert [answers[line] for line in needing] == [[2, ""]] * len(needing)
    for line, error in zip(needing, errors, strict=True):
        assert re.fullmatch(
            rf"error: fedattack {line.split()[0]} needs packages that are not installed \(dp-accounting, .* more\); "
            r"install them: pip install 'fedattack\[audit\]', or in a clone pip install '\.\[audit\]'",
            error,
        ), error
    assert not (tmp_path / "run").exists()
