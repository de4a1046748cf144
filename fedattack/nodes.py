"""Which client hides behind each node id: Flower's ids are random, so that only the client itself can tell."""

from pathlib import Path

from fedattack.errors import FedAttackError
from fedattack.files import make_private, write_json
from fedattack.untrusted import read_json

NODES = "nodes"


def note_node(folder: Path | str, *, node: str, client: str) -> None:
    """Note that ``client`` runs as ``node``, in a file of its own: clients note it side by side, again and again."""
    path, note = Path(folder) / NODES / f"{node}.json", {"node": node, "client": client}
    if not path.exists() or read_json(path, FedAttackError, "delete it") != note:
        make_private(Path(folder))
        path.parent.mkdir(exist_ok=True)
        write_json(path, note)


def read_nodes(folder: Path, error: type[FedAttackError], hint: str) -> dict[str, str]:
    """Read what :func:`note_node` wrote, or raise ``error`` in one line that ends with ``hint``."""
    notes = {path: read_json(path, error, hint) for path in sorted((folder / NODES).glob("*.json"))}
    try:
        return {str(note["node"]): str(note["client"]) for note in notes.values()}
    except (KeyError, TypeError) as cause:
        raise error(f"{folder}: a file of {NODES}/ lacks or misstates {cause}; {hint}") from None
