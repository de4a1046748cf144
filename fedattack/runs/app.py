"""The Flower app of the reference system, and its modules that run in processes of their own.

From a checkout these are the checkout's own folders. An installed wheel carries them as data in ``fedattack/_app``, and
they are never imported from there: Flower bundles them, and preparation runs in a process of its own, so that folders
named ``clients`` or ``strategies`` in a user's project cannot collide with them.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedattack.base.errors import ConfigError, FedAttackError, RunError
from fedattack.base.settings import Value


def app_folder() -> Path:
    """Find the folder that ``flwr run`` is pointed at.

    Raises
    ------
    ConfigError
        If the installation lacks it.
    """
    package = Path(__file__).parents[1]
    # A checkout holds the folders beside the package, a wheel in it.
    for folder in (package.parent, package / "_app"):
        if (folder / "simulations" / "presets").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise ConfigError(f"{package} comes without its Flower app; install fedattack from its wheel or a checkout")


def prepare(configs: Sequence[Mapping[str, Value]]) -> None:
    """Write knowledge and truth of each run, in a process that sees the app's own modules.

    Raises
    ------
    FedAttackError
        If the settings do not fit the data.
    RunError
        If the process crashed.
    """
    run_module("simulations.prepare", list(map(dict, configs)))


def run_module(module: str, job: object) -> str:
    """Run a module of the app on a job that JSON can hold, in a process that sees the app's modules.

    Returns
    -------
    str
        What it printed.

    Raises
    ------
    FedAttackError
        If it refused the job: the one line that the process printed.
    RunError
        If it crashed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        # The app's modules are imported by name, and those of the caller's environment as well.
        paths = [str(app_folder()), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            # -P: the job's folder, in which this runs, is no place to import from.
            [sys.executable, "-P", "-m", "fedattack.runs.module", module, str(file)],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
        )
    # Such a module prints an error as its last line, as the command does.
    message = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if done.returncode == 2:
        raise FedAttackError(message)
    if done.returncode:
        raise RunError(f"{module} crashed: {message}")
    return done.stdout
