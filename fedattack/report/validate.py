"""Reads and checks the two files that a report is made of."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from pydantic import TypeAdapter

from fedattack.audit.finding import Finding, not_finite
from fedattack.errors import ReportError, short
from fedattack.untrusted import check_folder, parse_json, read_bytes, read_sealed

_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
LARGEST = 1e100
"""No measure is as large: a model's outputs are in single precision, and their squares are below 1e77."""

_NEXT = "make it with `fedattack attack` or `fedattack audit`"


def read_findings(folder: Path) -> list[Finding]:
    """Read the findings of a run folder from its ``findings.json``.

    Raises
    ------
    ReportError
        If the file is missing, is not JSON, or does not fit ``schema.json``.
    """
    check_folder(Path(folder), ReportError)
    path = Path(folder) / "findings.json"
    content = read_bytes(path, ReportError, _NEXT)
    if (Path(folder) / "run.json").exists():
        told = read_run(folder).get("findings_sha256")
        if told not in (None, hashlib.sha256(content).hexdigest()):
            raise ReportError(f"{path} is not the file that run.json was written with; {_NEXT}")
    try:
        return validate_findings(parse_json(content), str(path))
    except ValueError as cause:
        raise ReportError(f"{path} cannot be read as JSON ({short(str(cause), 100)}); {_NEXT}") from None


def read_run(folder: Path) -> dict[str, Any]:
    """Read the facts of a run from the ``run.json`` of its folder.

    Raises
    ------
    ReportError
        If the file is missing, is not JSON, or does not fit ``run.schema.json``.
    """
    check_folder(Path(folder), ReportError)
    path = Path(folder) / "run.json"
    return validate_run(read_sealed(path, _OBJECT, ReportError, _NEXT), str(path))


def validate_findings(obj: Any, where: str = "findings") -> list[Finding]:
    """Check what a ``findings.json`` holds, and give it as findings.

    Parameters
    ----------
    obj
        Parsed JSON: a list of objects as :meth:`fedattack.audit.finding.Finding.to_dict` gives them.
    where
        Name of the file, for messages.

    Raises
    ------
    ReportError
        If it does not fit ``schema.json``, lists that belong together differ in length, a number is not finite, or the
        parts of a finding contradict each other. The message names the JSON path.
    """
    _check(obj, "schema.json", where)
    for i, finding in enumerate(obj):
        for name, lists in _together(finding["series"]):
            _check_lengths(lists, f"{where}: $[{i}].series.{name}")
    return [Finding.from_dict(finding) for finding in obj]


def validate_run(obj: Any, where: str = "run") -> dict[str, Any]:
    """Check what a ``run.json`` holds, and give it back.

    Raises
    ------
    ReportError
        If it does not fit ``run.schema.json``, lists that belong together differ in length, or a number is not finite.
        The message names the JSON path.
    """
    _check(obj, "run.schema.json", where)
    for name in ("accuracy", "loss", "train_accuracy", "overfitting"):
        if name in obj:
            _check_lengths({"rounds": obj[name]["rounds"], **obj[name]["seeds"]}, f"{where}: $.{name}")
    if "holdings" in obj:
        holdings = obj["holdings"]
        _check_lengths({key: holdings[key] for key in ("clients", "counts")}, f"{where}: $.holdings")
        for i, row in enumerate(holdings["counts"]):
            _check_lengths(
                {"classes": holdings["classes"], f"counts[{i}]": row},
                f"{where}: $.holdings",
            )
    return dict(obj)


def _together(series: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give lists of one length, by series."""
    for name, keys in (
        ("per_round", ("rounds", "value", "low", "high", "null", "chance")),
        ("reliability", ("confidence", "accuracy", "count")),
        ("overlap", ("rounds", "overlap", "low", "high", "accuracy")),
        ("overlap", ("checked_rounds", "checked_accuracy")),
    ):
        yield name, {key: series.get(name, {}).get(key) for key in keys}
    if "methods" in series:
        for method, measures in series["methods"]["methods"].items():
            rounds = series["methods"]["rounds"]
            yield "methods", {"rounds": rounds} | {f"{method} {key}": values for key, values in measures.items()}
    for number, picture in enumerate(series.get("pictures", ())):
        for key in ("truth", "image"):
            yield f"pictures[{number}].{key}", {f"row {row}": values for row, values in enumerate(picture[key])}
    if "stability" in series:
        yield "stability", {"rounds": series["stability"]["rounds"], **series["stability"]["methods"]}


@cache
def _validator(schema: str) -> Draft202012Validator:
    text = resources.files("fedattack.report").joinpath(schema).read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))


def _check(obj: Any, schema: str, where: str) -> None:
    error = best_match(_validator(schema).iter_errors(obj))
    if error is not None:
        message = " ".join(error.message.split())
        if len(message) > 300:
            message = f"{message[:200]} … {message[-80:]}"
        raise ReportError(f"{where}: {error.json_path}: {message}; it does not fit fedattack/report/{schema}; {_NEXT}")
    # The schema's numbers include NaN and infinity, and such as no axis can be drawn for.
    number = not_finite(obj, LARGEST)
    if number is not None:
        raise ReportError(
            f"{where}: {short(number, 80)} is not a finite number; expected one up to {LARGEST:g}, or null; {_NEXT}"
        )


def _check_lengths(lists: Mapping[str, Sequence[Any] | None], where: str) -> None:
    lengths = {name: len(values) for name, values in lists.items() if values is not None}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ReportError(f"{where}: its lists differ in length ({found}); expected the same for all; {_NEXT}")
