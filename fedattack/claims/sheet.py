"""All that ``claim.json`` holds: the answer, what to do next, and the facts that an auditor signs."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from fedattack.base.errors import ConfigError
from fedattack.base.untrusted import MAX_JSON, read_bytes
from fedattack.base.version import __version__
from fedattack.claims.advice import Given, open_of, steps_of
from fedattack.claims.check import ClaimAnswer
from fedattack.claims.claim import Claim
from fedattack.claims.finding import scope_of
from fedattack.claims.measured import Trial
from fedattack.record import records_in
from fedattack.record.format import MANIFEST

# Whose arithmetic the numbers rest on.
_PACKAGES = ("numpy", "scipy", "dp-accounting", "flwr")


def sheet_of(
    answer: ClaimAnswer,
    given: Given,
    *,
    trial: Trial | None = None,
    command: str = "",
    now: datetime | None = None,
) -> dict[str, Any]:
    """Put an answer together with what it was made of.

    Parameters
    ----------
    answer
        What was found.
    given
        What the command was given. The claim, the module of the mechanism and the manifests of records are read for
        their SHA-256.
    trial
        How the mechanism was tested, if it was.
    command
        As it was written.
    now
        The time of the check; by default that of the clock.

    Returns
    -------
    dict
        What ``fedattack/report/claim.schema.json`` describes.

    Raises
    ------
    ConfigError, RecordError
        If a file that was read a moment ago is gone.
    """
    facts = {
        "checked": f"{now or datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": command,
        "claim_file": given.claim,
        "claim_sha256": _hash_file(Path(given.claim)) if given.claim else "",
        "mechanism": given.mechanism,
        "mechanism_sha256": _hash_module(given.mechanism),
        "records": _hash_manifests(given.folder),
        "draws": trial.draws if trial else None,
        "seed": trial.seed if trial else None,
        "sigma": answer.claim.deviation,
        "versions": _list_versions(),
    }
    return {
        **answer.to_dict(),
        "scope": scope_of(answer.claim),
        "stated": _list_stated(answer.claim),
        "next": [asdict(step) for step in steps_of(answer, given)],
        "open": [asdict(each) for each in open_of(answer)],
        "facts": facts,
    }


def _list_stated(claim: Claim) -> dict[str, Any]:
    """Give what the claim says, and what holds where it says nothing."""
    said = claim.model_dump(by_alias=True, exclude_unset=True)
    # What is unset is not what is claimed, but what follows.
    return {**said, "epsilon-of": claim.epsilon_of, "unit": claim.protects, "neighbours": claim.relation}


def _list_versions() -> dict[str, str]:
    python = ".".join(map(str, sys.version_info[:3]))
    return {"fedattack": __version__, "Python": python, **{name: metadata.version(name) for name in _PACKAGES}}


def _hash_file(path: Path) -> str:
    content = read_bytes(path, ConfigError, "it must stay while it is checked", limit=MAX_JSON)
    return hashlib.sha256(content).hexdigest()


def _hash_manifests(folder: str) -> dict[str, str]:
    """Return the SHA-256 of the manifest of each record in a folder, by where it lies."""
    records = records_in(Path(folder)) if folder else {}
    return {name or folder: _hash_file(path / MANIFEST) for name, path in records.items()}


def _hash_module(mechanism: str) -> str:
    """Return the SHA-256 of the file of an imported mechanism; empty if it has none."""
    module = sys.modules.get(mechanism.partition(":")[0])
    file = getattr(module, "__file__", None)
    return _hash_file(Path(file)) if file else ""
