"""The reference system's app, server and clients, in this process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

import clients.app
import simulations.server
from fedattack.record import Record
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.runs.settings import load_settings
from simulations.prepare import prepare_run
from tests.worlds.local_grid import FIRST_NODE, LocalGrid

DEFAULTS = {name: setting.default for name, setting in load_settings().items()}


def run_preset(preset: str, changes: Sequence[str], seed: int, folder: Path) -> Record:
    """Prepare and run a preset with changes such as ``rounds=5``; record, knowledge and truth lie in ``folder``."""
    settings = resolve_settings(load_preset(preset), changes)
    folders = {"knowledge": str(folder / "knowledge"), "truth": str(folder / "truth")}
    config = {**DEFAULTS, **settings, **folders, "seed": seed, "device": "cpu"}
    prepare_run(config)
    return run_app(folder, config)


def run_app(
    folder: Path,
    config: dict[str, Any],
    drop: Callable[[Message, int], str | None] = lambda *_: None,
    first: int = FIRST_NODE,
) -> Record:
    """Run a whole run config but for its folders, record and truth, which are put into ``folder``.

    ``drop`` and ``first`` are those of :class:`tests.worlds.local_grid.LocalGrid`.
    """
    config = config | {"record": str(folder / "record"), "truth": str(folder / "truth")}
    grid = LocalGrid(clients.app.app, config["clients"], drop, first)
    for context in grid._contexts.values():
        context.run_config.update(config)
    simulations.server.app(grid, Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=config))
    return Record(folder / "record")
