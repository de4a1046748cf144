"""Reads and checks the files that a report is made of."""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from pydantic import TypeAdapter

from fedattack.audit.finding import Finding, not_finite
from fedattack.base.errors import RecordError, ReportError, short
from fedattack.base.untrusted import check_folder, parse_json, read_bytes, read_sealed, shown
from fedattack.claims.finding import verdict_of
from fedattack.record.folder import RunFolder
from fedattack.report.section import Lists, Section, section_of

_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
LARGEST = 1e100
"""No measure is as large: a model's outputs are in single precision, and their squares are below 1e77."""

_COMMON_LISTS = {
    "per_round": ("rounds", "value", "low", "high", "null", "chance"),
    "reliability": ("confidence", "accuracy", "count"),
    "roc": ("fpr", "value", "low", "high"),
}
_NEXT = "make it with `fedattack attack` or `fedattack audit`"
_ANEW = "put that record back, or run `fedattack attack` and `fedattack report` again"
CLAIM = "claim.json"
_CLAIM_NEXT = "make it with `fedattack claim`"


def read_findings(folder: Path) -> list[Finding]:
    """Read the findings of a run folder from its ``findings.json``.

    Raises
    ------
    ReportError
        If the file is missing, is not JSON, or does not fit ``schema.json``; or if it was made of other records than
        lie in the folder now.
    """
    check_folder(Path(folder), ReportError)
    path = Path(folder) / "findings.json"
    content = read_bytes(path, ReportError, _NEXT)
    if (Path(folder) / "run.json").exists():
        run = read_run(folder)
        # Reports of earlier versions have no hash.
        if run.get("findings_sha256") not in (None, hashlib.sha256(content).hexdigest()):
            raise ReportError(f"{path} is not the file that belongs to run.json; {_NEXT}")
        _check_records(Path(folder), run.get("records", {}))
    try:
        return validate_findings(parse_json(content), str(path))
    except ValueError as cause:
        raise ReportError(f"{path} cannot be read as JSON ({short(str(cause), 100)}); {_NEXT}") from None


def list_found(folder: Path) -> set[str]:
    """List the attacks that an earlier report speaks of; none where there is no report, or it cannot be read."""
    path = folder / "findings.json"
    try:
        found = parse_json(read_bytes(path, ReportError, _NEXT))
    except (ReportError, ValueError):
        return set()
    if not isinstance(found, list):
        return set()
    return {finding["attack"] for finding in found if isinstance(finding, dict) and "attack" in finding}


def _check_records(folder: Path, marks: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse findings of other records than lie in the run folder; records may be gone."""
    opened = RunFolder(folder)
    try:
        parts = opened.parts_there
    except RecordError:
        return
    for line in opened.misplaced.values():
        raise ReportError(line)
    for part in parts:
        manifest, mark = opened.manifests.get(part.record), marks.get(part.place)
        if manifest is None or mark is None:
            # Whoever reads the record tells what is wrong with it.
            continue
        if manifest["id"] != mark["id"]:
            raise ReportError(f"{folder / 'findings.json'} belongs to another record than {part.record}; {_ANEW}")
        # An open record has no head yet.
        if manifest["head"] not in (None, mark["head"]):
            raise ReportError(f"{part.record} has grown since {folder / 'findings.json'} was written; {_ANEW}")


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
    """Check what a ``findings.json`` holds, and give it as findings; `where` names the file.

    Raises
    ------
    ReportError
        If it does not fit ``schema.json``, lists that belong together differ in length, a number is not finite, or the
        parts of a finding contradict each other. The message names the JSON path.
    """
    _check(obj, "schema.json", where)
    for i, finding in enumerate(obj):
        section = section_of(finding["attack"])
        series = {"series": finding["series"]}
        _check_form(_validator_of(section), series, f"{where}: $[{i}]", "the series of its threat")
        for name, lists in (*_common_lists(finding["series"]), *section.lists(finding["series"])):
            _check_lengths(lists, f"{where}: $[{i}].series.{name}")
    return list(map(Finding.from_dict, obj))


def check_findings(findings: Sequence[Finding]) -> None:
    """Refuse findings that could not be read again once they are written; a ReportError says why."""
    validate_findings(list(map(Finding.to_dict, findings)))


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
        clients, classes, counts = holdings["clients"], holdings["classes"], holdings["counts"]
        # Lists that are drawn against each other must be of one length.
        _check_lengths({"clients": clients, "counts": counts}, f"{where}: $.holdings")
        for i, row in enumerate(counts):
            _check_lengths({"classes": classes, f"counts[{i}]": row}, f"{where}: $.holdings")
    return dict(obj)


def read_claim(folder: Path) -> dict[str, Any] | None:
    """Read what a run folder's ``claim.json`` says about its privacy claim; None if nobody checked one.

    Raises
    ------
    ReportError
        If the file is no JSON, was changed, or does not fit ``claim.schema.json``.
    """
    check_folder(Path(folder), ReportError)
    path = Path(folder) / CLAIM
    if not path.exists():
        return None
    return validate_claim(read_sealed(path, _OBJECT, ReportError, _CLAIM_NEXT), str(path))


def validate_claim(obj: Any, where: str = "claim") -> dict[str, Any]:
    """Check what a ``claim.json`` holds, and give it back.

    Raises
    ------
    ReportError
        If it does not fit ``claim.schema.json``, a number is not finite, or the parts contradict each other. The
        message names the JSON path.
    """
    # An ε may be larger than any measure, and infinity is written as a text.
    _check(obj, "claim.schema.json", where, largest=sys.float_info.max, hint=_CLAIM_NEXT)
    for i, finding in enumerate(obj["findings"]):
        for scope in ("message", "run"):
            _check_order(finding[scope], f"{where}: $.findings[{i}].{scope}")
    verdicts = list(map(itemgetter("verdict"), obj["findings"]))
    expected = verdict_of(verdicts)
    if obj["verdict"] != expected:
        raise ReportError(f"{where}: $.verdict: {obj['verdict']}; by its findings it is {expected}; {_CLAIM_NEXT}")
    return dict(obj)


def _check_order(bounds: Mapping[str, Any] | None, where: str) -> None:
    if bounds is not None and float(bounds["low"]) > float(bounds["high"]):
        raise ReportError(f"{where}: low is {bounds['low']}, which is above high, {bounds['high']}; {_CLAIM_NEXT}")


def _common_lists(series: Mapping[str, Any]) -> Iterator[Lists]:
    for name, keys in _COMMON_LISTS.items():
        yield name, {key: series.get(name, {}).get(key) for key in keys}
    if "scores" in series:
        scores = series["scores"]
        bins = {"spaces between edges": scores["edges"][1:]}
        yield "scores", bins | {key: scores[key] for key in ("positive", "negative")}


@cache
def _schema(name: str) -> dict[str, Any]:
    text = resources.files("fedattack.report").joinpath(name).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _any_of(
    validator: Draft202012Validator, choices: Sequence[Any], instance: Any, _: object
) -> Iterator[ValidationError]:
    """Look for a choice that fits; jsonschema's own would gather all errors of all of them."""
    errors = []
    for index, choice in enumerate(choices):
        error = next(validator.descend(instance, choice, schema_path=index), None)
        if error is None:
            return
        errors.append(error)
    yield ValidationError(f"{shown(instance)} is not allowed here", context=errors)


# No choice in these schemas fits what another one fits.
_Validator: type[Draft202012Validator] = extend(Draft202012Validator, {"anyOf": _any_of, "oneOf": _any_of})


@cache
def _validator(name: str) -> Draft202012Validator:
    return _Validator(_schema(name))


def _validator_of(section: Section) -> Draft202012Validator:
    """Return what checks the series of a threat's own."""
    return _Validator({"properties": {"series": {"type": "object", "properties": section.schemas}}})


def _check(obj: Any, schema: str, where: str, *, largest: float = LARGEST, hint: str = _NEXT) -> None:
    _check_form(_validator(schema), obj, f"{where}: $", f"fedattack/report/{schema}", hint)
    # The schema's numbers include NaN and infinity, and such as no axis can be drawn for.
    number = not_finite(obj, largest)
    if number is not None:
        raise ReportError(
            f"{where}: {short(number, 80)} is not a finite number; expected one up to {largest:g}, or null; {hint}"
        )


def _check_form(validator: Draft202012Validator, obj: Any, where: str, schema: str, hint: str = _NEXT) -> None:
    # Each error takes up to a millisecond: of a file that is all wrong, the first one is enough.
    error = best_match(islice(validator.iter_errors(obj), 1))
    if error is None:
        return
    message = " ".join(error.message.split())
    if len(message) > 300:
        message = f"{message[:200]} … {message[-80:]}"
    path = error.json_path.removeprefix("$")
    raise ReportError(f"{where}{path}: {message}; it does not fit {schema}; {hint}")


def _check_lengths(lists: Mapping[str, Sequence[Any] | None], where: str) -> None:
    lengths = {name: len(values) for name, values in lists.items() if values is not None}
    if len(set(lengths.values())) > 1:
        lists_found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ReportError(f"{where}: its lists differ in length ({lists_found}); expected the same for all; {_NEXT}")
