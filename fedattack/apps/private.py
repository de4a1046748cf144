"""What witnesses saw of differentially private training, as the file of a privacy claim."""

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedattack.record import Record
from fedattack.witness import Witness
from fedattack.witness.private import REMARKS, remarks_of

CLAIM = "claim.toml"

_HEAD = """# How clients were seen to train{others}.
# State the epsilon and delta that are claimed for all rounds together, and remove the # before each:
# epsilon =
# delta =
"""
_WIDTH = 118


def write_claim(folder: Path, witnesses: Sequence[Witness], rounds: int) -> Path | None:
    """Write down how clients train privately, all but the ε and δ that only their owner can claim.

    If clients train differently, the one that spends most counts. ``rounds`` is in how many a client took part.
    Returned is the file; None where no client was seen to train so.
    """
    private = [dict(witness.private) for witness in witnesses if witness.private]
    if not private:
        return None
    # One client with the most to lose: a claim is about all, so that the worst counts.
    most = max(private, key=_rank)
    others = ""
    if any(other != most for other in private):
        others = "; this is the client that spends most"
    keys = {name.replace("_", "-"): value for name, value in most.items() if name != REMARKS}
    path = folder / CLAIM
    if path.exists():
        # Its owner may have written down what is claimed since.
        return path
    text = _HEAD.format(others=others) + "".join(map(_comment, remarks_of(most)))
    path.write_text(text + tomli_w.dumps(keys | {"rounds": rounds}), encoding="utf-8")
    return path


def count_rounds(record: Record) -> int:
    """Return in how many rounds of a record a client took part, at most."""
    # Late replies count as well: what was sent was spent.
    taken = Counter(observation.node for round_ in record for observation in round_.all_observations)
    return max(taken.values(), default=len(record))


def _rank(private: Mapping[str, Any]) -> tuple[bool, float]:
    """Return by what clients are put in order: whether nothing bounds ε, then how far neighbours are apart.

    By the central limit, T steps of Poisson batches are μ = q·√(T(e^(1/z²) − 1)) deviations apart (Bu et al. 2020).
    """
    noise = float(private.get("noise_multiplier", 0.0))
    method = private.get("sampling_method")
    if not noise or private.get("skipped") or method not in ("poisson", "shuffled", "in-order"):
        return True, float(private.get("steps", 0))
    if method != "poisson":
        # Without Poisson sampling nothing amplifies: steps over the same example compose like √(epochs)/σ.
        return False, math.sqrt(private["epochs"]) / noise
    # One step's contribution by Gaussian DP's central limit: Bu et al. 2020, "Deep learning with Gaussian differential
    # privacy", q √(T (exp(1/σ²) − 1)).
    single = math.sqrt(math.expm1(min(noise**-2, 500.0)))
    # min(…, 500) keeps expm1 from overflowing for a tiny σ.
    return False, float(private.get("sampling", 1.0)) * math.sqrt(private.get("steps", 1)) * single


def _comment(text: str) -> str:
    return textwrap.fill(f"Note: {text}.", _WIDTH, initial_indent="# ", subsequent_indent="# ") + "\n"
