"""Prepare a deployment of N clients in this folder: keys, ``clients.yaml`` and ``.env``.

Keys that are there are kept, so that this can be run again to change the clients' number or what is audited. Everything
secret lies in ``deployment/keys``, for its owner alone; containers run as this user and are given the files as secrets.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from fedattack.base.errors import FedAttackError
from fedattack.runs.credentials import make_certificates, make_node_key, make_secret

PROFILES = {
    "honest-but-curious": "quickstart",
    "secure-aggregation": "prolin-inversion --set rounds=20 --set fraction=0.75 --set positives=0.25",
    "defended": "quickstart --set defence=dp-gaussian --set defence-strength=0.003",
}
"""What ``fedattack audit`` runs: a preset, and the settings of the run in which the deployments differ."""

# The image's own user. Root prepares for it: nothing in a container runs as root.
IMAGE_USER = 10001

# What the containers write in addition to runs: the SuperLink's state, clients' notes, what the audit shares with them.
FOLDERS = ("database", "notes", "shared")

# Whether the traffic has TLS, and SuperNodes keys: what each program is told.
SECURE = {
    "SCHEME": "https",
    "SUPERLINK_SECURITY": "--ssl-ca-certfile /run/secrets/authority --ssl-certfile /run/secrets/certificate "
    "--ssl-keyfile /run/secrets/certificate-key --enable-supernode-auth",
    "CONNECTION_SECURITY": "--root-certificates /run/secrets/authority",
    "SUPERNODE_SECURITY": "--root-certificates /run/secrets/authority --auth-supernode-private-key /run/secrets/key",
}
INSECURE = {
    "SCHEME": "http",
    "SUPERLINK_SECURITY": "--insecure",
    "CONNECTION_SECURITY": "--insecure",
    "SUPERNODE_SECURITY": "--insecure",
}


def make_keys(folder: Path, clients: int) -> None:
    """Make what is not there yet: certificates, the SuperExec's secret, and a key for each SuperNode."""
    keys = folder / "keys"
    if not (keys / "server.key").exists():
        make_certificates(keys, ["superlink", "localhost"])
    if not (keys / "superexec").exists():
        make_secret(keys / "superexec")
    (folder / "public").mkdir(exist_ok=True)
    for index in range(clients):
        if not (keys / f"client-{index}").exists():
            public = make_node_key(keys, f"client-{index}").public
            public.rename(folder / "public" / public.name)


def clients_side(clients: int) -> dict[str, Any]:
    """Return the part of the compose file that has the clients: each on a network of its own with the SuperLink."""
    names = [f"client-{index}" for index in range(clients)]
    services: dict[str, Any] = {
        "superlink": {"networks": names},
        # Compose starts it again where there are more keys than it registered.
        "register": {"environment": {"CLIENTS": str(clients)}},
        "audit": {
            "depends_on": {
                "superexec": {"condition": "service_healthy"},
                **{name: {"condition": "service_healthy"} for name in names},
            }
        },
    }
    for index, name in enumerate(names):
        services[name] = {
            "extends": {"file": "common.yaml", "service": "supernode"},
            "command": "flower-supernode --superlink superlink:8000 "
            f"--node-config 'partition-id={index} num-partitions={clients}' ${{SUPERNODE_SECURITY}}",
            "depends_on": {"register": {"condition": "service_healthy"}},
            "networks": [name],
            "secrets": ["authority", {"source": name, "target": "key"}],
            # What the client notes of itself, for the audit alone; it sees no other client's.
            "volumes": [f"./deployment/notes/{name}/runs:/runs"],
        }
    return {
        "services": services,
        "networks": {name: {"internal": True} for name in names},
        "secrets": {name: {"file": f"./deployment/keys/{name}"} for name in names},
    }


def prepare(folder: Path, *, clients: int, audit: str, secure: bool, out: str, words: list[str]) -> None:
    """Write all that ``docker compose up`` needs into the folder of ``compose.yaml``."""
    deployment = folder / "deployment"
    for path in (folder / "runs", folder / "data", deployment, *(deployment / name for name in FOLDERS)):
        path.mkdir(mode=0o700, exist_ok=True)
    for index in range(clients):
        (deployment / "notes" / f"client-{index}" / "runs").mkdir(mode=0o700, parents=True, exist_ok=True)
    make_keys(deployment, clients)
    text = json.dumps(clients_side(clients), indent=2)
    (folder / "clients.yaml").write_text(f"# Written by prepare.py.\n{text}\n", encoding="utf-8")
    settings = {
        "COMPOSE_FILE": "compose.yaml:clients.yaml",
        "RUN_AS": f"{os.getuid() or IMAGE_USER}:{os.getgid() or IMAGE_USER}",
        "AUDIT": " ".join([audit, "--seeds 1", f"--set clients={clients}", *words]),
        "OUT": out,
        **(SECURE if secure else INSECURE),
    }
    if not os.getuid():
        for path in (folder / "runs", folder / "data", deployment, *deployment.rglob("*")):
            os.chown(path, IMAGE_USER, IMAGE_USER)
    lines = "".join(f"{key}={value}\n" for key, value in settings.items())
    (folder / ".env").write_text(f"# Written by prepare.py.\n{lines}", encoding="utf-8")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=4, help="number of SuperNodes (default: %(default)s)")
    parser.add_argument("--profile", choices=PROFILES, default="honest-but-curious", help="what is audited")
    parser.add_argument("--insecure", action="store_true", help="use neither TLS nor SuperNode keys")
    parser.add_argument("--out", default="audit", help="name of the run folder, in runs/ (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="folder of compose.yaml")
    parser.add_argument("words", nargs="*", metavar="-- WORD", help="further options of `fedattack audit`")
    options = parser.parse_args()
    if options.clients < 1:
        parser.error(f"--clients {options.clients}: expected at least 1")
    try:
        prepare(
            options.folder,
            clients=options.clients,
            audit=PROFILES[options.profile],
            secure=not options.insecure,
            out=options.out,
            words=options.words,
        )
    except (FedAttackError, OSError) as problem:
        sys.exit(f"error: {problem}")


if __name__ == "__main__":
    main()
