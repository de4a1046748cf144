"""What witnesses saw of differentially private training, as the file of a privacy claim."""

from collections.abc import Sequence
from pathlib import Path

import tomli_w

from fedattack.witness import Witness

CLAIM = "claim.toml"

_HEAD = """# How clients were seen to train{others}.
# Write down what is claimed of all rounds together, and take away the two signs:
# epsilon =
# delta =
"""


def write_claim(folder: Path, witnesses: Sequence[Witness], rounds: int) -> Path | None:
    """Write down how clients train privately, all but the ε and δ that only their owner can claim.

    Of clients that train differently, the one counts that draws each example most often. ``rounds`` is in how many a
    client took part. Returned is the file; None where no client was seen to train so.
    """
    private = [dict(witness.private) for witness in witnesses if witness.private]
    if not private:
        return None
    most = max(private, key=lambda one: (one.get("sampling", 1.0), one.get("steps", 0)))
    others = ""
    if any(one != most for one in private):
        others = "; this is the client that draws each example most often"
    keys = {name.replace("_", "-"): value for name, value in most.items()}
    path = folder / CLAIM
    if path.exists():
        # Its owner may have written down what is claimed since.
        return path
    path.write_text(_HEAD.format(others=others) + tomli_w.dumps(keys | {"rounds": rounds}), encoding="utf-8")
    return path
