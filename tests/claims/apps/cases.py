"""Flower apps that claim differential privacy, each as its owner wrote it: what they claim, and what is the case."""

import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, RecordDict

from fedattack.record import check_record
from fedattack.runs.simulator import Simulator
from tests.apps.projects import BEFORE_LEGACY, IMPORT_LEGACY, Project
from tests.worlds.local_grid import LocalGrid

HERE = Path(__file__).parent
CLIENTS = 10
FORGETS = 3
"""The partition whose client goes without the mod, in the case ``forgotten``."""

_MESSAGE_API = (
    ("from flwr.app import ArrayRecord, ConfigRecord, Context", "from fedattack.observe import ObservedStrategy"),
    ("# Start strategy, run FedAvg for `num_rounds`", 'strategy = ObservedStrategy(strategy, "RECORD")'),
)
_LEGACY = (
    (BEFORE_LEGACY, IMPORT_LEGACY),
    (
        'config = ServerConfig(num_rounds=context.run_config["num-server-rounds"])',
        'strategy = ObservedLegacyStrategy(strategy, "RECORD")',
    ),
)
_SECAGG = (
    (BEFORE_LEGACY, IMPORT_LEGACY),
    ("# Construct the LegacyContext", 'strategy = ObservedLegacyStrategy(strategy, "RECORD", view="aggregate")'),
)


@dataclass(frozen=True)
class Case:
    """An app, what is changed in it, and what its owner claims.

    Attributes
    ----------
    name, about
        In a word, and in a sentence.
    project
        The app, and the lines that observe it.
    claim
        Its file, in the app's folder.
    verdict
        Of the whole claim.
    edits
        File, text and what stands there instead.
    options
        Of the command that checks the claim.
    """

    name: str
    about: str
    project: Project
    claim: str
    verdict: str
    edits: tuple[tuple[str, str, str], ...] = ()
    options: tuple[str, ...] = ()

    @property
    def mechanism(self) -> str:
        """What of it is tested."""
        return f"{self.project.package}.privacy:{_TESTED.get(self.project, 'mod')}"

    @property
    def claim_file(self) -> Path:
        return Path(self.project.folder) / self.claim

    def app(self, folder: Path, record: Path) -> Path:
        """Copy the app to a folder, change it, and add the lines that observe it."""
        where = self.project.observed(folder, record)
        for name, old, new in self.edits:
            file = where / self.project.package / name
            text = file.read_text()
            assert text.count(old) == 1, f"{file}: {old!r}"
            file.write_text(text.replace(old, new))
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
        package = self.project.package
        np.random.seed(seed)  # noqa: NPY002 - Flower draws from it
        torch.manual_seed(seed)
        with on_path(where):
            server, client = (import_module(f"{package}.{name}").app for name in ("server_app", "client_app"))
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


LOCAL = Project(str(HERE / "local_dp"), "clinics", _MESSAGE_API)
CENTRAL = Project(str(HERE / "central_dp"), "wards", _MESSAGE_API)
OPACUS = Project(str(HERE / "opacus_dp"), "practices", _LEGACY)
SECAGG = Project(str(HERE / "secagg_dp"), "sums", _SECAGG)
_TESTED = {CENTRAL: "released", OPACUS: "step"}

_HONEST = ("privacy.py", "sensitivity=1e-4, epsilon=10", "sensitivity=2.0, epsilon=1")
_OPT_IN = (
    ("client_app.py", "import mod\n", "import opt_in\n"),
    ("client_app.py", "mods=[mod]", "mods=[opt_in]"),
)


def _clients_clip(file: str) -> tuple[tuple[str, str, str], ...]:
    server, clients = (f"DifferentialPrivacy{side}SideFixedClipping" for side in ("Server", "Client"))
    return (file, f"import {server}", f"import {clients}"), (file, f"strategy = {server}", f"strategy = {clients}")


_CLIENT_SIDE = (
    *_clients_clip("server_app.py"),
    *_clients_clip("privacy.py"),
    ("client_app.py", "import ClientApp\n", "import ClientApp\nfrom flwr.clientapp.mod import fixedclipping_mod\n"),
    ("client_app.py", "ClientApp()", "ClientApp(mods=[fixedclipping_mod])"),
)

_ALL = (
    Case("platform", "a sensitivity 10,000 times below the clipping norm", LOCAL, "claim.toml", "contradicted"),
    Case("honest", "the same app, with honest numbers", LOCAL, "honest.toml", "consistent", (_HONEST,)),
    Case(
        "forgotten",
        "honest numbers, and one clinic without the mod",
        LOCAL,
        "honest.toml",
        "contradicted",
        (_HONEST, *_OPT_IN),
    ),
    Case("central", "a server that clips and adds noise", CENTRAL, "claim.toml", "consistent"),
    Case(
        "central-clients",
        "clients that clip, and a server that adds noise",
        CENTRAL,
        "claim.toml",
        "consistent",
        _CLIENT_SIDE,
        ("--clipped",),
    ),
    Case("opacus", "an engine made anew in each round, and a round's ε claimed", OPACUS, "claim.toml", "contradicted"),
    Case("opacus-honest", "the same, and the ε of the run claimed", OPACUS, "honest.toml", "consistent"),
    Case("secagg", "LocalDpMod below the masks of SecAgg+", SECAGG, "claim.toml", "consistent"),
)
CASES = {case.name: case for case in _ALL}
