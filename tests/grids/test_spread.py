"""Cells that are made on a cluster."""

import time
from pathlib import Path

import numpy as np
import pytest

from fedattack.base.errors import RunError
from fedattack.grids.cell import Job, Request
from fedattack.grids.engine import run_grid
from fedattack.grids.reproduce.design import Reproducing
from fedattack.grids.reproduce.spec import Reproduction
from fedattack.grids.spread import Packed
from fedattack.record.folder import read_study
from fedattack.runs.watch import Watch
from tests.grids.cells import begin_cell, end_cell
from tests.grids.reproduce.test_spec import SPEC

SMALL = 100_000_000


def made_up(job: Job, device: str, watch: Watch) -> None:
    """Stand for the training: write a realistic run folder in a moment; one cell cannot be made if it is asked to."""
    begin_cell(job)
    if job.cell.place["alpha"] == 0.1 and job.settings["hidden"] == 7:
        raise RunError(f"{job.folder} has no clients")
    time.sleep(0.5)
    (job.folder / "scores").mkdir()
    (job.folder / "scores" / "empty").touch()
    end_cell(job)


def reproduced(out: Path, **words):
    """Make four cells of which nothing is trained, and no pages."""
    out.mkdir()
    (out.parent / "some.toml").write_text(SPEC)
    what = Reproduction.read(out.parent / "some.toml")
    request = Request(out, seeds=3, **words)
    design = Reproducing(name=what.name, request=request, cells=what.cells, audit=made_up, spec=what)
    design.write_pages = lambda results: {}
    return run_grid(design)


def states(results) -> list[str]:
    return [cell["state"] for cell in results["cells"]]


@pytest.fixture(scope="module")
def machine():
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=SMALL, log_to_driver=False)
    yield "auto"
    ray.shutdown()


@pytest.mark.slow
def test_cells_of_a_cluster_are_those_made_here(machine, tmp_path):
    here = reproduced(tmp_path / "here")
    there = reproduced(tmp_path / "there", cluster=machine)
    assert states(there) == ["done"] * 4
    for one, other in zip(here["cells"], there["cells"], strict=True):
        assert one | {"minutes": 0} == other | {"minutes": 0}
        assert other["minutes"] >= 0.5 / 60
        folders = [tmp_path / name / "cells" / one["cell"] for name in ("here", "there")]
        files = [sorted(path.relative_to(folder) for path in folder.rglob("*")) for folder in folders]
        assert files[0] == files[1]
        for file in files[0]:
            if file.suffix and file.name != "cell.json":
                assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes()
        assert not (folders[1] / "record").exists()
        assert (folders[1].stat().st_mode & 0o777) == 0o700


@pytest.mark.slow
def test_a_cell_that_fails_elsewhere_says_so_and_the_others_are_kept(machine, tmp_path):
    """So are records, if they are asked for."""
    words = {"changes": ["hidden=7"], "cluster": machine, "keep_records": True}
    found = reproduced(tmp_path / "out", **words)
    assert states(found) == ["done", "failed", "done", "failed"]
    failed = found["cells"][1]
    assert failed["reason"] == f"cannot run: DIR/cells/{failed['cell']} has no clients"
    assert (tmp_path / "out" / "cells" / found["cells"][0]["cell"] / "record" / "big.bin").read_bytes() == b"x"


def test_a_file_that_would_leave_the_cells_folder_is_refused(tmp_path):
    made = Packed({"../elsewhere": np.zeros(3, dtype=np.uint8)}, 1.0)
    with pytest.raises(RunError, match=r"the file '../elsewhere', which leads out of the cell's folder"):
        made.write(tmp_path / "cell")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_memory_reaches_the_attacks_that_have_it_and_the_command(tmp_path):
    results = reproduced(tmp_path / "out", memory="300MB")
    assert results["command"].endswith("--memory 300MB")
    cell = results["cells"][0]
    assert cell["command"].endswith("--option memory=300MB")
    assert read_study(tmp_path / "out" / "cells" / cell["cell"])["options"] == {"memory": "300MB"}
    assert "--memory" not in reproduced(tmp_path / "usual")["command"]
