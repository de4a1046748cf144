"""Which client hides behind each node id: Flower's ids are random, so that only the client itself can tell."""

import hashlib
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from fedattack.base.errors import DataError, FedAttackError
from fedattack.base.files import make_private, write_sealed
from fedattack.base.untrusted import PLAIN, Text, read_sealed

NODES = "nodes"


@with_config(ConfigDict(extra="forbid", strict=True))
class _Note(TypedDict):
    node: Text
    client: Text


_NOTE: TypeAdapter[_Note] = TypeAdapter(_Note)


def note_node(folder: Path | str, *, node: str, client: str) -> None:
    """Note that ``client`` runs as ``node``, in a file of its own: clients note it side by side, again and again.

    Raises
    ------
    DataError
        If the file is there and damaged.
    """
    # A node's name may come from a record that somebody hands over, and is then no name of a file.
    stem = node if PLAIN.fullmatch(node) else hashlib.sha256(node.encode()).hexdigest()
    path, note = Path(folder) / NODES / f"{stem}.json", {"node": node, "client": client}
    if not path.exists() or read_sealed(path, _NOTE, DataError, "delete it") != note:
        make_private(path.parent)
        write_sealed(path, note)


def read_nodes(folder: Path, error: type[FedAttackError], hint: str) -> dict[str, str]:
    """Read what :func:`note_node` wrote.

    Raises
    ------
    FedAttackError
        ``error``, in one line that ends with ``hint``, if a file is damaged or two clients have the same node.
    """
    clients: dict[str, str] = {}
    for path in sorted((folder / NODES).glob("*.json")):
        note = read_sealed(path, _NOTE, error, hint)
        # Two nodes of one client are fine, two clients of one node are not.
        if clients.setdefault(note["node"], note["client"]) != note["client"]:
            raise error(f"{path}: another file says that its node is the client {clients[note['node']]}; {hint}")
    return clients
