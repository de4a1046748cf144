"""No limit of what is read from the disk gets lost: ``limits.txt`` has a line for each.

``python -m tests.base.test_limits`` writes the file anew. Look at what changes: a limit that is loosened, or gone, may
let a hostile file take what memory there is.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

from fedattack.attacks import Scores
from fedattack.attacks.answers import Answers, ShadowLosses
from fedattack.attacks.knowledge import Knowledge
from fedattack.audit import truth
from fedattack.base.stored import Axes, keys_of
from fedattack.claims.canaries import CanaryExamples
from fedattack.witness.seen import Witness

LIMITS = Path(__file__).parent / "limits.txt"
STORED = (
    *(Scores, Witness, Answers, ShadowLosses, CanaryExamples, Knowledge, truth.Truth, truth.Privacy, truth.Attributes),
    *(truth.HeldRecords, truth._PrivateFile, truth._AccuracyNote),
)
_PARTS = ("schema", "items_schema", "keys_schema", "values_schema")
_UNTOLD = {"type", "metadata", "ref", "serialization", "config", "fields", "choices", "schema_ref", "computed_fields"}
_UNTOLD |= {*_PARTS, "cls", "cls_name", "function", "custom_error_type"}


def list_limits() -> list[str]:
    """Write all limits, by class, key and type."""
    lines: list[str] = []
    for cls in STORED:
        schema: Any = TypeAdapter(keys_of(cls)).core_schema
        named = {each["ref"]: each for each in schema.get("definitions", ())}
        lines += _list_json(schema, cls.__name__, named)
        lines += _list_arrays(cls, cls.__name__)
    return lines


def _list_json(schema: Mapping[str, Any], place: str, named: Mapping[str, Any]) -> Iterator[str]:
    kind = schema["type"]
    if kind == "definition-ref":
        ref = schema["schema_ref"]
        # JSON of any kind refers to itself.
        yield from [f"{place}: any JSON"] if "JsonValue" in ref else _list_json(named[ref], place, named)
        return
    limits = [f"{key}={value}" for key, value in sorted(schema.items()) if key not in _UNTOLD]
    if kind == "typed-dict":
        limits += [f"strict={schema['config']['strict']}"]
    if not kind.startswith(("function", "definitions", "nullable", "union")):
        yield f"{place}: {' '.join([kind, *limits])}"
    for name, field in schema.get("fields", {}).items():
        need = "" if field.get("required", True) else "?"
        yield from _list_json(field["schema"], f"{place}.{name}{need}", named)
    for part in _PARTS:
        if isinstance(inner := schema.get(part), dict):
            yield from _list_json(inner, place if part == "schema" else f"{place}.{part.split('_')[0]}", named)
    for choice in schema.get("choices", ()):
        yield from _list_json(choice, f"{place}|", named)


def _list_arrays(cls: Any, place: str) -> Iterator[str]:
    hints = get_type_hints(cls, include_extras=True)
    for field in fields(cls):
        kind, *marks = (
            get_args(hints[field.name]) if get_origin(hints[field.name]) is Annotated else (hints[field.name],)
        )
        for mark in marks:
            if isinstance(mark, Axes):
                said = " ".join(f"{name}={value}" for name, value in vars(mark).items())
                yield f"{place}.{field.name}: array {said}"
        if not marks and is_dataclass(kind):
            yield from _list_arrays(kind, f"{place}.{field.name}")


def test_no_limit_is_lost():
    assert list_limits() == LIMITS.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    LIMITS.write_text("\n".join(list_limits()) + "\n", encoding="utf-8")
    sys.stdout.write(f"{LIMITS}\n")
