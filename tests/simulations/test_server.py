"""Runs that share one Flower run: each is the run that it would be by itself."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import clients.app
import simulations.server
from fedattack.base.errors import DataError
from fedattack.record import Record
from fedattack.record.folder import Part, write_runs
from fedattack.record.nodes import read_nodes
from tests.worlds.local_grid import LocalGrid
from tests.worlds.reference import DEFAULTS, run_app

SEEDS = (3, 4, 5)
SMALL = {"dataset": "digits", "size": 200, "clients": 4, "rounds": 2, "local-epochs": 1, "device": "cpu"}


def run_together(folder, config):
    """Run all seeds by one ServerApp; return the part of each."""
    parts = [Part(folder, f"seed-{seed}") for seed in SEEDS]
    own = [
        {"seed": seed, "record": str(part.record), "record-id": f"{seed:032x}", "truth": str(part.truth)}
        for seed, part in zip(SEEDS, parts, strict=True)
    ]
    write_runs(folder / "runs.json", own)
    config = config | own[0] | {"runs": str(folder / "runs.json")}
    grid = LocalGrid(clients.app.app, len(SEEDS) * config["clients"])
    for context in grid._contexts.values():
        context.run_config.update(config)
    simulations.server.app(grid, Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=config))
    return parts


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"framework": "fedmd", "public-records": 20, "student": "student-mlp"},
        {"secagg": True},
        {"fraction": 0.5, "server": "isolating", "sensitive": "1", "victims": 1, "auxiliary": 20},
    ],
    ids=["fedavg", "fedmd", "secagg", "isolating"],
)
def test_each_seed_is_as_it_is_by_itself(tmp_path, changes):
    config = DEFAULTS | SMALL | changes
    nodes = set()
    for seed, part in zip(SEEDS, run_together(tmp_path, config), strict=True):
        alone = run_app(tmp_path / f"alone-{seed}", config | {"seed": seed})
        together = Record(part.record)
        assert together.status == "complete"
        assert together.id == f"{seed:032x}"
        assert len(together) == len(alone) == 2
        assert not nodes & set(together.nodes), "every run has nodes of its own"
        nodes |= set(together.nodes)
        assert set(read_nodes(part.truth, DataError, "look")) == set(together.nodes)
        for one, other in zip(together, alone, strict=True):
            for name, array in (other.aggregate or {}).items():
                # SecAgg+ rounds by chance.
                np.testing.assert_allclose(one.aggregate[name], array, rtol=0, atol=1e-3 if "secagg" in changes else 0)
