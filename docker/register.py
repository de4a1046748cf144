"""Register the public keys of SuperNodes: ``register.py KEY.pub…``; the SuperLink is the one of FEDATTACK_SUPERLINK.

Without TLS there is nothing to register. A key that the SuperLink knows from an earlier start stays as it is.
"""

import os
import subprocess
import sys
from pathlib import Path

import tomli_w

KNOWN = "already in use"


def main(keys: list[str]) -> None:
    """Register the keys, or say which one was refused."""
    scheme, _, address = os.environ["FEDATTACK_SUPERLINK"].partition("://")
    if scheme == "http":
        print("no TLS, so that there are no keys to register")
        return
    home = Path(os.environ["FLWR_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    profile = {"address": address, "root-certificates": os.environ["FEDATTACK_AUTHORITY"]}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "ours", "ours": profile}}))
    for key in keys:
        done = subprocess.run(
            ["flwr", "supernode", "register", key], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode and KNOWN not in " ".join(done.stdout.split()):
            sys.exit(f"{key} was not registered: {done.stdout.strip()}")
    print(f"{len(keys)} keys of SuperNodes are registered")


if __name__ == "__main__":
    main(sys.argv[1:])
