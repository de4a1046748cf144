"""An app on a SuperLink that is up: its record and its witnesses must come to lie on this machine."""

import os
import socket
import tempfile
from pathlib import Path

from fedattack.apps.app import App
from fedattack.base.errors import ConfigError, RunError, in_command
from fedattack.record import Record
from fedattack.runs.private import guarded_folder
from fedattack.runs.remote import NOTES, SHARED, Remote
from fedattack.runs.watch import Watch
from fedattack.witness import WITNESS_FOLDER
from fedattack.witness.store import witness_file

_BY_HAND = (
    "put a WitnessMod into the app, call `fedattack observe --out RECORD -- flwr run APP --stream` where the ServerApp "
    "runs, and then `fedattack gather RECORD WITNESS… --out DIR`"
)


def remote(app: Path, clients: int, log: Path) -> Remote:
    """Return the SuperLink that the environment names, to run somebody's app on."""
    return Remote.of_environment(app, supernodes=clients, log=log, shares=False)


def check_reach(app: App, out: Path) -> None:
    """Refuse a SuperLink whose ServerApp or clients would write on other machines that do not share ``out``."""
    address = remote(app.folder, 1, out / "flower.log").superlink
    if os.environ.get(NOTES):
        raise ConfigError(f"--on superlink: each client writes into its own folder, as {NOTES} says; {_BY_HAND}")
    shared = os.environ.get(SHARED)
    if shared and out.resolve().is_relative_to(Path(shared).resolve()):
        return
    if not _is_here(address.rpartition(":")[0]):
        raise ConfigError(
            f"--on superlink: {address} is another machine, and the record would lie there; set {SHARED} to a "
            f"folder that all machines have at the same path, with --out in it, or {_BY_HAND}"
        )


def _is_here(host: str) -> bool:
    """Say whether a name or an address is this machine's: it is, if one can listen there."""
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in addresses:
        # Port 0: only whether the address belongs to this machine is tried.
        with socket.socket(family, kind, protocol) as probe:
            try:
                # An address that is not this machine's cannot be bound to.
                probe.bind(address)
            except OSError:
                continue
            return True
    return False


def count_online(app: App) -> int:
    """Count the SuperNodes that are online, of which there must be one."""
    temporary = Path(tempfile.gettempdir())
    with guarded_folder(temporary, "fa-") as folder, remote(app.folder, 1, folder / "log") as runner:
        online = runner.count_online()
    if not online:
        raise RunError(
            f"SuperLink {runner.superlink}: no SuperNode is online, or the SuperLink does not answer; see its own "
            "log, or use --supernodes to say for how many to wait"
        )
    return online


def check_witnessed(record: Record, folder: Path, watch: Watch) -> None:
    """Look whether clients wrote down on this machine what they train on; all must not have failed to."""
    others = [node for node in record.nodes if not witness_file(folder, node).exists()]
    if not others:
        return
    advice = (
        f"such clients need a WitnessMod and {WITNESS_FOLDER}; then call `fedattack gather "
        f"{in_command(record.path)} WITNESS… --out DIR`"
    )
    if len(others) == len(record.nodes):
        raise RunError(f"no client wrote into {folder}: all run elsewhere, or cannot write there; {advice}")
    watch.say("warning", f"{len(others)} of {len(record.nodes)} clients run elsewhere and are not witnessed; {advice}")
