"""Canaries of a recorded run: gathered from its folder, or from a file, for `fedattack claim`."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedattack.base.errors import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedattack.claims import Claim
    from fedattack.claims.canaries import CanaryResult
    from fedattack.record.folder import Part

_OF_RUN = "expected a file that `fedattack simulate` leaves there"


def canaries_of(
    folder: Path | None, file: Path | None, trusted: Callable[[], Collection[str]] = tuple
) -> "Callable[[Claim], CanaryResult] | None":
    """Find out how the canaries of a run are measured; None if it had none.

    Parameters
    ----------
    folder
        A record, or a run folder with one or several.
    file
        A ``canaries.toml``; without, that of the run's truth is taken.
    trusted
        Returns what the folder may name, and nobody but the user can allow; called where code is imported.

    Raises
    ------
    ConfigError
        If a file is given without a record.
    """
    if folder is None:
        if file is not None:
            raise ConfigError(
                "fedattack claim: --canaries says who the canaries of a run were; give also DIR, the run's record"
            )
        return None
    from fedattack.record.folder import Part, find_parts
    from fedattack.record.format import MANIFEST

    if (folder / MANIFEST).exists():
        # A record by itself, as observers write it.
        return None if file is None else lambda claim: _measure(Part(folder, ""), folder, file, claim, trusted)
    part, *others = find_parts(folder)
    truth = file or part.truth / "canaries.toml"
    if not truth.exists() and file is None:
        return None

    def measured(claim: "Claim") -> "CanaryResult":
        result = _measure(part, part.record, truth, claim, trusted)
        if not others:
            return result
        note = f"only {part.label}, the first of {len(others) + 1} runs, was looked at; this was decided in advance"
        return replace(result, notes=(*result.notes, note))

    return measured


def _measure(
    part: "Part", path: Path, file: Path, claim: "Claim", trusted: Callable[[], Collection[str]]
) -> "CanaryResult":
    from fedattack.claims.canaries import measure_canaries, read_canaries, read_examples
    from fedattack.record import Record

    canaries, record = read_canaries(file), Record(path)
    if canaries.kind == "client":
        return measure_canaries(record, canaries, claim)
    from fedattack.learning.importing import trust_given
    from fedattack.runs.asked import known_to

    known = known_to(part, trusted())
    if known.model is None:
        raise ConfigError(
            f"{part.knowledge} names no model, but canary examples are scored by the model's gradients; write it "
            "there by fedattack.attacks.write_knowledge"
        )
    nodes, public = _truth_of(part)
    return measure_canaries(
        record,
        canaries,
        claim,
        examples=read_examples(file.parent),
        model=known.model.build(),
        loss=trust_given(known.model.loss),
        nodes=nodes,
        public=public,
    )


def _truth_of(part: "Part") -> "tuple[dict[str, str], tuple[NDArray[Any], NDArray[Any]] | None]":
    """Return who is behind each node, and examples that nobody holds, as far as the auditor wrote them down."""
    from fedattack.audit.truth import EVALUATION, read_truth
    from fedattack.record.nodes import read_nodes

    if (part.truth / EVALUATION).exists():
        truth = read_truth(part.truth)
        return truth.nodes, truth.evaluation
    # Nodes alone are known where the auditor wrote no whole truth.
    return (read_nodes(part.truth, DataError, _OF_RUN) if part.truth.exists() else {}), None
