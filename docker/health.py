"""Is a Flower service well? ``health.py URL`` asks it; ``health.py HOST:PORT`` looks whether it is connected to there.

Exits with 1 if not. The second is for a SuperExec, which serves nothing: it polls the SuperLink over a connection.
"""

import socket
import ssl
import sys
import urllib.request
from pathlib import Path

import psutil

AUTHORITY = Path("/run/secrets/authority")


def ask(url: str) -> None:
    """Ask a service for its health."""
    trusted = ssl.create_default_context(cafile=AUTHORITY) if url.startswith("https:") else None
    urllib.request.urlopen(f"{url}/health", timeout=5, context=trusted).close()  # noqa: S310 - our own address


def look(address: str) -> None:
    """Look for an open connection of this container to ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    wanted = (socket.gethostbyname(host), int(port))
    if not any(
        tuple(entry.raddr) == wanted and entry.status == psutil.CONN_ESTABLISHED
        for entry in psutil.net_connections("tcp4")
    ):
        raise ConnectionError("not connected")


if __name__ == "__main__":
    address = sys.argv[1]
    try:
        (ask if "://" in address else look)(address)
    except OSError as cause:
        sys.exit(f"{address}: {cause}")
