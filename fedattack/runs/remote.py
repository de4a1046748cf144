"""Run a Flower app on a SuperLink and SuperNodes that are up, as in containers."""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Self

from fedattack.base.errors import ConfigError, RunError
from fedattack.base.files import write_atomically
from fedattack.base.untrusted import read_bytes
from fedattack.record.nodes import NODES
from fedattack.runs.deployment import POLL_SECONDS, START_SECONDS, START_SECONDS_PER_NODE, NotUpError, SuperNodeRuntime
from fedattack.runs.logs import RUN_ID

# As long as a SuperLink may take to come back.
LOST_SECONDS = 180.0

NOTES = "FEDATTACK_NOTES"
SHARED = "FEDATTACK_SHARED"

# Bytes of the largest note of a client, which is two names.
_MOST_NOTE = 2**16

_ADDRESS = re.compile(r"(?P<scheme>https?)://(?P<address>[^/\s]+:\d+)/?")


def _path_from(variable: str) -> Path | None:
    path = os.environ.get(variable, "")
    return Path(path) if path else None


class Remote(SuperNodeRuntime):
    """A :class:`~fedattack.runs.runtime.Runtime` of a SuperLink and SuperNodes that somebody else started and keeps.

    The ServerApp runs where the SuperLink has it run, and must find the run config's absolute paths there.

    Parameters
    ----------
    app, log
        As for :class:`fedattack.runs.runtime.Runtime`; the log has what ``flwr run`` shows of each run.
    supernodes : int
        Number of SuperNodes to wait for.
    superlink : str
        Address of the SuperLink, ``https://HOST:PORT``, or ``http://HOST:PORT`` for one without TLS.
    authority : Path, optional
        Certificate of the authority that signed the SuperLink's; by default those that the system trusts.
    notes : Path, optional
        Has a folder for each client, which the client sees as the root folder. The client's notes on itself lie there
        under the paths ``truth`` and ``knowledge`` of the run config. They are added to ours as they come.
    shared : Path, optional
        Clients see this folder at the same path: the run's model zoos are copied there for them.

    Raises
    ------
    ConfigError
        If the app has no pyproject.toml, there is no SuperNode, or the address is none.
    """

    def __init__(
        self,
        app: Path,
        *,
        supernodes: int,
        superlink: str,
        authority: Path | None = None,
        notes: Path | None = None,
        shared: Path | None = None,
        log: Path,
    ) -> None:
        super().__init__(app, supernodes=supernodes, log=log)
        url = _ADDRESS.fullmatch(superlink)
        if url is None:
            raise ConfigError(f"SuperLink {superlink}: expected https://HOST:PORT, or http://HOST:PORT without TLS")
        self.superlink = url["address"]
        self._connection: dict[str, str | bool] = {}
        if url["scheme"] == "http":
            self._connection["insecure"] = True
        elif authority is not None:
            self._connection["root-certificates"] = str(authority.resolve())
        self._notes = notes
        self._shared = shared

    @classmethod
    def of_environment(cls, app: Path, *, supernodes: int, log: Path, shares: bool = True) -> Self:
        """Take the SuperLink from ``FEDATTACK_SUPERLINK``, the rest from ``…_AUTHORITY``, ``…_NOTES`` and ``…_SHARED``.

        Parameters
        ----------
        shares
            Whether the app writes such notes and takes such zoos; only the reference system does.

        Raises
        ------
        ConfigError
            If no SuperLink is named.
        """
        superlink = os.environ.get("FEDATTACK_SUPERLINK", "")
        if not superlink:
            raise ConfigError(
                "no SuperLink is named: expected its address in FEDATTACK_SUPERLINK, such as https://superlink:8000"
            )
        return cls(
            app,
            supernodes=supernodes,
            superlink=superlink,
            authority=_path_from("FEDATTACK_AUTHORITY"),
            notes=_path_from(NOTES) if shares else None,
            shared=_path_from(SHARED) if shares else None,
            log=log,
        )

    def ensure_up(self) -> None:
        """Wait until all nodes are online.

        Raises
        ------
        RunError
            If they are not in time.
        """
        self._connect(self.superlink, **self._connection)
        try:
            self._await_online(time.monotonic() + START_SECONDS + START_SECONDS_PER_NODE * self.supernodes)
        except NotUpError as cause:
            raise RunError(f"SuperLink {self.superlink}: {cause}; expected all; see its own log") from None

    def count_online(self) -> int:
        """Count the nodes that are online; 0 also if the SuperLink does not answer."""
        self._connect(self.superlink, **self._connection)
        return self._count_online()

    def run(
        self,
        run_config: Mapping[str, str | int | float | bool],
        *,
        on_poll: Callable[[], None] = lambda: None,
    ) -> str | None:
        """Run the app once, as :meth:`fedattack.runs.runtime.Runtime.run` does; what is given up is stopped, too."""
        self.log.touch()
        log_size = self.log.stat().st_size
        # Paths of the run folder as the clients' machines name them, below the folder of notes.
        folders = [Path(str(run_config[key])) for key in ("truth", "knowledge") if run_config.get(key)]

        def poll() -> None:
            # The notes are fetched at once, so that a run that is stopped has them too.
            self._fetch_notes(folders)
            on_poll()

        try:
            client_error = super().run({**run_config, **self._share_zoos(run_config)}, on_poll=poll)
        except BaseException:
            run_id = RUN_ID.search(self._logged_since(log_size))
            if run_id:
                # A run on a SuperLink that stays up would go on by itself.
                self._ask("flwr", "stop", run_id[1])
            raise
        self._fetch_notes(folders)
        return client_error

    def _read_lost(self, run_id: str, reason: str, poll: Callable[[], None]) -> tuple[str, str]:
        """Wait for a SuperLink that was stopped: started again with its database, it goes on with the run."""
        deadline = time.monotonic() + LOST_SECONDS
        while time.monotonic() < deadline:
            status, details = self._status(run_id)
            if status.startswith("finished:"):
                return status, details
            # It answers again: the time begins anew with the next loss.
            if status != "lost":
                deadline = time.monotonic() + LOST_SECONDS
            poll()
            time.sleep(POLL_SECONDS)
        return "lost", reason

    def _share_zoos(self, run_config: Mapping[str, Any]) -> dict[str, str]:
        """Copy the zoos to the folder that clients see; returns the changed entries of the run config."""
        zoos = Path(str(run_config.get("zoo", "")))
        if self._shared is None or not zoos.is_absolute() or not zoos.is_dir():
            return {}
        # The absolute path, below the shared folder.
        copy = self._shared / zoos.relative_to(zoos.anchor)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(zoos, copy)
        return {"zoo": str(copy)}

    def _fetch_notes(self, folders: Iterable[Path]) -> None:
        if self._notes is None:
            return
        # Each client has a folder of its own, in which it sees the paths of the run.
        for folder, client in product(folders, sorted(self._notes.resolve().iterdir())):
            for note in (client / folder.relative_to(folder.anchor) / NODES).glob("*.json"):
                # A link of a client must not make us copy a file of our own.
                if note.resolve().is_relative_to(client) and not (folder / NODES / note.name).exists():
                    (folder / NODES).mkdir(parents=True, exist_ok=True)
                    content = read_bytes(note, RunError, "a client wrote it; delete it", limit=_MOST_NOTE)
                    write_atomically(folder / NODES / note.name, content)
