"""The reference system's app, server and clients, in this process."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

import clients.app
import simulations.prepare
import simulations.server
from fedattack.attacks import Knowledge, read_knowledge
from fedattack.audit.truth import Truth, read_truth
from fedattack.base.errors import DataError
from fedattack.record import Observation, Record
from fedattack.record.nodes import read_nodes
from fedattack.runs.app import app_folder
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.runs.settings import load_settings
from fedattack.runs.simulator import Simulator
from simulations.prepare import prepare, prepare_run
from simulations.study import Study
from tests.worlds.local_grid import FIRST_NODE, LocalGrid

DEFAULTS = {name: setting.default for name, setting in load_settings().items()}


def change(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a run config with changes, whose names have underscores."""
    return config | {key.replace("_", "-"): value for key, value in changes.items()}


def prepare_in(folder: Path, study: Study, **options: Any) -> tuple[Knowledge, Truth]:
    """Prepare a study in a folder, and read what was written."""
    prepare(study, knowledge=folder / "knowledge", truth=folder / "truth", **options)
    return read_knowledge(folder / "knowledge"), read_truth(folder / "truth")


def prepare_by_command(folder: Path, config: dict[str, Any], names: Sequence[str] = ("knowledge", "truth")) -> None:
    """Prepare as the process before a run does, in this one; what it writes lies in ``folder`` under these names."""
    config = config | {name: str(folder / name) for name in names}
    (folder / "configs.json").write_text(json.dumps([config]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["prepare", str(folder / "configs.json")])
        simulations.prepare.main()


def run_here(folder: Path, config: dict[str, Any]) -> Record:
    """Prepare and run a config in this process; record, knowledge and truth lie in ``folder``."""
    config = config | {name: str(folder / name) for name in ("knowledge", "truth")}
    prepare_run(config)
    return run_app(folder, config)


def run_on_flower(folder: Path, config: dict[str, Any]) -> Record:
    """Do the same on Flower and Ray."""
    config = config | {name: str(folder / name) for name in ("record", "knowledge", "truth")}
    folder.mkdir(exist_ok=True)
    prepare_run(config)
    with Simulator(app_folder(), supernodes=config["clients"], log=folder / "flower.log") as simulator:
        assert simulator.run(config) is None
    return Record(folder / "record")


def by_client(record: Record) -> list[dict[str, Observation]]:
    """Return for each round what was seen of each client that answered."""
    nodes = read_nodes(record.path.parent / "truth", DataError, "")
    return [{nodes[seen.node]: seen for seen in item.observations if seen.status == "ok"} for item in record]


def run_preset(preset: str, changes: Sequence[str], seed: int, folder: Path) -> Record:
    """Prepare and run a preset with changes such as ``rounds=5``; record, knowledge and truth lie in ``folder``."""
    settings = resolve_settings(load_preset(preset), changes)
    return run_here(folder, {**DEFAULTS, **settings, "seed": seed, "device": "cpu"})


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
