"""The wheel: one top level, and presets that run from it in a folder full of other people's modules."""

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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
