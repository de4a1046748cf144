"""The reference system's app, server and clients, in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

import clients.app
import simulations.server
from fedattack.record import Record
from tests.worlds.local_grid import FIRST_NODE, LocalGrid


def run_app(
    folder: Path,
    config: dict[str, Any],
    drop: Callable[[Message, int], str | None] = lambda *_: None,
    first: int = FIRST_NODE,
) -> Record:
    """Run a whole run config but for its folders, record and truth, which are put into ``folder``.

    ``drop`` and ``first`` are those of :class:`tests.worlds.local_grid.LocalGrid`.
    """
    # Clients of a run that goes on have noted who they are.
    truth = "" if config["resume"] else str(folder / "truth")
    config = config | {"record": str(folder / "record"), "truth": truth}
    grid = LocalGrid(clients.app.app, config["clients"], drop, first)
    for context in grid._contexts.values():
        context.run_config.update(config)
    simulations.server.app(grid, Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=config))
    return Record(folder / "record")
