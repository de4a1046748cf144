"""What a Flower app can run on; what takes long to import is imported when something runs."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedattack.runs.app import app_folder

if TYPE_CHECKING:
    from fedattack.runs.runtime import Runtime

SUPERLINK = "superlink"


def _simulate(app: Path, clients: int, device: str, log: Path) -> "Runtime":
    from fedattack.runs.simulator import Simulator

    return Simulator(app, supernodes=clients, gpus_per_client=_gpu_share(device, clients), log=log)


def _deploy(app: Path, clients: int, device: str, log: Path, *, secure: bool = True) -> "Runtime":
    from fedattack.runs.deployment import Deployment

    return Deployment(app, supernodes=clients, secure=secure, log=log)


def _connect(app: Path, clients: int, device: str, log: Path) -> "Runtime":
    from fedattack.runs.remote import Remote

    return Remote.of_environment(app, supernodes=clients, log=log, shares=app == app_folder())


RUNTIMES: dict[str, Callable[[Path, int, str, Path], "Runtime"]] = {
    "simulation": _simulate,
    "processes": _deploy,
    "processes-insecure": partial(_deploy, secure=False),
    SUPERLINK: _connect,
}
"""Takes the folder of the app, the number of clients, their device and the file of the log."""


def _gpu_share(device: str, clients: int) -> float:
    """Return the share of a GPU that each simulated client asks Ray for, so that clients train on it side by side."""
    if device == "cpu":
        return 0.0
    import torch

    if not torch.cuda.is_available():
        return 0.0
    return torch.cuda.device_count() / min(clients, os.cpu_count() or 1)
