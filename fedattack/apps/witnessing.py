"""The stage `witness` of an audit: what clients were seen to train on, and what their server was sent."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedattack.attacks import ModelKnowledge
from fedattack.attacks.registry import find_content
from fedattack.attacks.told_labels import list_told_labels
from fedattack.base.errors import NeedsError, TrustError, in_command, short
from fedattack.record import Record
from fedattack.record.folder import Part
from fedattack.runs.code import read_code
from fedattack.witness import SERVER, Witness, WitnessedModel, read_witnesses

WITNESS = "witness"
"""Folder of a run folder that witnesses write in; no attack reads it."""

NOTHING_TRAINED = "nothing is trained, since the server sent no training message"
"""Why most attacks cannot be made of a run of queries or evaluations alone."""

_BYTES = "bytes, such as XGBoost's trees in a form other than JSON"

# Kinds of messages of which a line says that they are not recorded.
_FEW_GAPS = 2


def witness_of(part: Part) -> Path:
    """Return where a run's witnesses write."""
    return part.folder / WITNESS / part.name


def remove_locks(folder: Path) -> None:
    """Remove the empty files by which witnesses took turns, once none of them is at work any more."""
    for lock in folder.glob(".*.lock"):
        lock.unlink(missing_ok=True)


def witnesses_of(part: Part) -> tuple[Witness, ...]:
    """Read what was witnessed of a run; nothing where no client was."""
    folder = witness_of(part)
    if not folder.exists():
        return ()
    return tuple(read_witnesses(folder))


def check_readable(part: Part, witnesses: Sequence[Witness], *, is_stated: bool = False) -> None:
    """Refuse a run in which clients send nothing that an attack reads.

    Numbers and lists are held against clients' examples where these are known, whatever the kind of message; bytes,
    where the owner states (``is_stated``) the examples.

    Raises
    ------
    NeedsError
        If nothing is trained, or clients send no arrays of numbers, and there is nothing else to compare.
    """
    record = Record(part.record)
    kind = _what_is_sent(record)
    is_known = any(each.node != SERVER and each.trained.total for each in witnesses)
    if is_known and record.has_contents and (is_stated or kind != _BYTES):
        return
    if not len(record):
        raise NeedsError(f"{part.label}: {NOTHING_TRAINED}{describe_besides(record)}")
    if kind:
        besides = describe_besides(record) or "; an attack would need arrays of numbers, such as a model's weights"
        raise NeedsError(f"{part.label}: clients send {kind}, and no attack reads them{besides}")


def check_code(part: Part) -> None:
    """Refuse code that a run's witnesses name, unless they named it when this machine ran it: the folder is data.

    Raises
    ------
    TrustError
        If there is such code.
    """
    for name in sorted(list_code(witness.model for witness in witnesses_of(part)) - read_code(part.folder)):
        raise TrustError(
            f"{witness_of(part)} names {short(name, 80)}, which would be imported; it did not name it when this "
            f"machine ran the app; `fedattack gather {in_command(part.folder)} {in_command(witness_of(part))} "
            "--out DIR` says how to trust it"
        )


def list_code(models: Iterable[WitnessedModel | ModelKnowledge | None]) -> set[str]:
    """Return the import paths of models and of their losses."""
    code: set[str] = set()
    for model in models:
        if model is not None:
            code |= {name for name in map(str, (model.spec, model.loss)) if ":" in name}
    return code


def _what_is_sent(record: Record) -> str:
    """Say what clients send in the place of weights; empty if they send arrays of numbers, or it is not known."""
    # A server behind secure aggregation sees no replies.
    if record.view == "aggregate" or record.silence:
        return ""
    has_metrics = False
    for round_ in record:
        for reply in round_.observations:
            has_metrics = has_metrics or bool(reply.metrics)
            if reply.status == "ok" and reply.arrays:
                # One-dimensional bytes: Flower's XGBoost examples send models so.
                kinds = {(array.dtype, array.ndim) for array in reply.arrays.values()}
                # One reply with arrays is enough to know.
                if kinds != {(np.dtype(np.uint8), 1)} or find_content(record):
                    return ""
                return _BYTES
    if has_metrics:
        return "metrics and settings without arrays"
    return "empty replies to training messages"


def has_arrays_of_queries(record: Record) -> bool:
    """Say whether clients sent arrays in replies to queries, as in vertical or split learning."""
    kept = any(others.way == "reply" and others.arrays for others in record.others)
    return kept or any(entry["way"] == "reply" and entry["arrays"] for entry in record.unrecorded)


def describe_besides(record: Record) -> str:
    """Say what passed beside training, and which questions about it nobody asks; empty if nothing passed."""
    said = []
    if types := dict.fromkeys(others.type for others in record.others):
        said.append(f"the plaintext of {short(', '.join(types), 60)} is recorded")
    for gap in record.gaps[:_FEW_GAPS]:
        said.append(short(gap, 120))
    if has_arrays_of_queries(record):
        told = [*list_told_labels(record)]
        said += told
        what = "columns or labels"
        if told:
            what = "columns"
        said.append(f"nobody asked whether these arrays reveal a party's {what}")
    return "".join(f"; {line}" for line in said)
