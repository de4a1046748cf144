"""A Flower app that claims differential privacy, set up in several ways: what is claimed, and what is the case."""

import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import numpy as np
import tomli_w
import torch
from flwr.app import Context, RecordDict

from fedattack.record import check_record
from fedattack.runs.simulator import Simulator
from tests.apps.projects import Project
from tests.worlds.local_grid import LocalGrid

HERE = Path(__file__).parent
CLIENTS = 10
FORGETS = 3
"""The partition whose client goes without the mod, in the case ``forgotten``."""

CLINICS = Project(
    str(HERE / "clinics"),
    "clinics",
    (
        (
            "from flwr.app import ArrayRecord, Context",
            "from fedattack.observe import ObservedLegacyStrategy, ObservedStrategy",
        ),
        ("# Start strategy, run FedAvg for `num_rounds`", 'strategy = ObservedStrategy(strategy, "RECORD")'),
        (
            "# Construct the LegacyContext",
            'strategy = ObservedLegacyStrategy(strategy, "RECORD", view="aggregate")',
        ),
    ),
)


@dataclass(frozen=True)
class Case:
    """How the app is run, and what its owner claims.

    Attributes
    ----------
    name, about
        In a word, and in a sentence.
    privacy
        The app's setting of this name.
    mechanism
        What of the app's ``privacy.py`` is tested.
    verdict
        Of the whole claim.
    claim
        Name of its file; the case's own if empty.
    config
        Settings that differ from the app's own.
    components
        Names of its ServerApp and its ClientApp.
    options
        Of the command that checks the claim.
    """

    name: str
    about: str
    privacy: str
    mechanism: str
    verdict: str
    claim: str = ""
    config: Mapping[str, int | float] = field(default_factory=dict)
    components: str = "app"
    options: tuple[str, ...] = ()

    @property
    def claim_file(self) -> Path:
        return HERE / "claims" / f"{self.claim or self.name}.toml"

    def app(self, folder: Path, record: Path) -> Path:
        """Copy the app to a folder, set it up, and add the lines that observe it."""
        where = CLINICS.observed(folder, record)
        project = where / "pyproject.toml"
        declared = tomllib.loads(project.read_text())
        app = declared["tool"]["flwr"]["app"]
        app["config"] |= {"privacy": self.privacy, **self.config}
        app["components"] = {f"{side}app": f"clinics.{side}_app:{self.components}" for side in ("server", "client")}
        project.write_text(tomli_w.dumps(declared))
        return where

    def observe(self, folder: Path) -> Path:
        """Run the app by ``flwr run``; the run folder has its record and its claim.

        Returns
        -------
        Path
            The app as it ran. Its log is in ``flower.log`` beside it.
        """
        where = self.app(folder, folder / "run" / "record")
        with Simulator(where, supernodes=CLIENTS, log=folder / "flower.log") as simulator:
            client_error = simulator.run({})
        assert client_error is None, client_error
        self._finish(folder / "run")
        return where

    def play(self, folder: Path, seed: int = 0) -> Path:
        """Do the same within this process, in a second, by a seed; node ids go from ``FIRST_NODE`` on.

        For apps of the Message API: the record of a legacy strategy ends with its process.
        """
        where = self.app(folder, folder / "run" / "record")
        settings = tomllib.loads((where / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        np.random.seed(seed)  # noqa: NPY002 - Flower draws from it
        torch.manual_seed(seed)
        with on_path(where):
            server, client = (import_module(f"clinics.{name}").app for name in ("server_app", "client_app"))
            grid = LocalGrid(client, CLIENTS)
            grid.configure(settings)
            server(grid, Context(7, 1, {}, RecordDict(), settings))
        self._finish(folder / "run")
        return where

    def _finish(self, run: Path) -> None:
        found = check_record(run / "record")
        assert found.whole, found.problems
        shutil.copy(self.claim_file, run / "claim.toml")


@contextmanager
def on_path(where: Path) -> Iterator[None]:
    """Let the packages of a folder be imported, and forget them: other folders have some of the same name."""
    sys.path.insert(0, str(where))
    try:
        yield
    finally:
        sys.path.remove(str(where))
        packages = {path.name for path in where.iterdir()}
        for name in [*sys.modules]:
            if name.partition(".")[0] in packages:
                del sys.modules[name]


_EQUAL = {"examples": 120, "more-examples": 0}
_BY_STEPS = {
    "num-server-rounds": 3,
    "hidden": 0,
    "examples": 128,
    "more-examples": 0,
    "batch-size": 32,
    "learning-rate": 0.05,
}
_SUMMED = {
    "num-server-rounds": 3,
    "hidden": 0,
    "examples": 100,
    "more-examples": 0,
    "local-epochs": 1,
    "batch-size": 25,
    "learning-rate": 0.05,
    "momentum": 0.0,
}

_ALL = (
    Case("platform", "a sensitivity 10,000 times below the clipping norm", "platform", "platform", "contradicted"),
    Case("honest", "the same app, with honest numbers", "honest", "honest", "consistent"),
    Case("forgotten", "honest numbers, and one clinic without the mod", "opt-in", "honest", "contradicted", "honest"),
    Case("central", "a server that clips and adds noise", "central", "released_by_server", "consistent", config=_EQUAL),
    Case(
        "central-clients",
        "clients that clip, and a server that adds noise",
        "central-clients",
        "released_by_clients",
        "consistent",
        "central",
        _EQUAL,
        options=("--clipped",),
    ),
    Case(
        "opacus",
        "an engine made anew in each round, and a round's ε claimed",
        "opacus",
        "step",
        "contradicted",
        config=_BY_STEPS,
    ),
    Case("opacus-honest", "the same, and the ε of the run claimed", "opacus", "step", "consistent", config=_BY_STEPS),
    Case(
        "secagg",
        "LocalDpMod below the masks of SecAgg+",
        "secagg",
        "masked",
        "consistent",
        config=_SUMMED,
        components="legacy",
    ),
)
CASES = {case.name: case for case in _ALL}
