"""What a Flower app can run on; what takes long to import is imported when something runs."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedattack.base.errors import ConfigError
from fedattack.base.machine import may_have_gpu
from fedattack.runs.app import app_folder

if TYPE_CHECKING:
    from fedattack.runs.runtime import Runtime

SUPERLINK = "superlink"

GPU_OF_CLIENT = 2**30
"""Bytes of a GPU that are reckoned for a simulated client: CUDA itself takes half of them."""


def _simulate(app: Path, clients: int, device: str, log: Path) -> "Runtime":
    from fedattack.runs.simulator import Simulator, clients_at_once

    at_once = clients_at_once(clients)
    share = _gpu_share(device, at_once)
    return Simulator(app, supernodes=clients, cpus=at_once, gpus_per_client=share, log=log)


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
    """Return the share of a GPU that each simulated client asks Ray for.

    Parameters
    ----------
    device
        The clients' device.
    clients
        How many train side by side, if they all fit onto the GPUs.

    Raises
    ------
    ConfigError
        If the device is one of several GPUs: Ray gives them out.
    """
    # Importing torch takes as long as a run of Flower to begin.
    if device == "cpu" or (device == "auto" and not may_have_gpu()):
        return 0.0
    import torch

    if not torch.cuda.is_available():
        return 0.0
    if device not in ("auto", "cuda", "cuda:0"):
        raise ConfigError(
            f"device={device}: simulated clients take the GPU that Ray gives them; take device=cuda, and set "
            "CUDA_VISIBLE_DEVICES for the command"
        )
    gpus = torch.cuda.device_count()
    memory = torch.cuda.get_device_properties(0).total_memory
    # Rounded up: each GPU takes its part of the clients, unless its memory has room for fewer.
    on_each = max(1, min(-(-clients // gpus), int(memory // GPU_OF_CLIENT)))
    # Ray counts in ten-thousandths, and rounds up.
    return math.floor(10_000 / on_each) / 10_000
