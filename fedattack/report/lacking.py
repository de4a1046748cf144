"""What a report leaves out: damaged rounds, attacks that could not be judged, and whatever else failed alone."""

from collections.abc import Mapping
from typing import Any

from fedattack.base.failures import Failure
from fedattack.record.folder import LEFT_OUT


def list_lacking(run: Mapping[str, Any], unmade: Mapping[str, Failure] | None = None) -> list[str]:
    """List what `run`, the facts of ``run.json``, says is left out, and parts of the page that are `unmade`."""
    lines = list(run.get(LEFT_OUT, ()))
    for entry in run.get("untried", ()):
        if "failed" in entry:
            lines.append(f"{entry['question']} {entry['why']}")
    return lines + list_failures(unmade or {})


def list_failures(failed: Mapping[str, Failure]) -> list[str]:
    """Say in a line each what failed, and why."""
    return [f"{what}: {failure.why}" for what, failure in failed.items()]
