"""Kinds of values in a finding's series: what JSON may hold there, and how people read it.

A ``findings.json`` may come from somebody else. What is drawn of it is checked against these kinds before. Their bounds
are what such a file may hold.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedattack.audit.numbers import shown


@dataclass(frozen=True)
class Kind:
    """A kind of values.

    Attributes
    ----------
    schema
        The JSON schema of such a value.
    write
        Writes it for people. A list or object is never written whole.
    """

    schema: Mapping[str, Any]
    write: Callable[[Any], str] = str


def _bounds(low: str, least: float | None, high: str = "", most: float | None = None) -> dict[str, float]:
    bounds = {low: least, high: most}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def whole(least: int | None = None, most: int | None = None) -> Kind:
    """Return the kind of whole numbers within bounds, such as counts: ``1,234``."""
    return Kind({"type": "integer", **_bounds("minimum", least, "maximum", most)}, "{:,}".format)


def index(least: int | None = None) -> Kind:
    """Return the kind of whole numbers that are names, such as those of examples; written without separators."""
    return replace(whole(least), write=str)


def number(least: float | None = None, most: float | None = None, *, form: str = ".3g") -> Kind:
    """Return the kind of numbers within bounds; ``form`` is how Python formats them."""
    return Kind({"type": "number", **_bounds("minimum", least, "maximum", most)}, f"{{:{form}}}".format)


def choice(*names: str, words: Mapping[str, str] | None = None) -> Kind:
    """Return the kind of a few texts; ``words`` is what people read in place of each."""
    if words is None:
        return Kind({"enum": [*names]})
    return Kind({"enum": [*words]}, words.__getitem__)


def _say_yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


TEXT = Kind({"type": "string"})
YES_OR_NO = Kind({"type": "boolean"}, _say_yes_or_no)
SHARE = replace(number(0, 1), write=shown)
COUNT = whole(0)
NUMBER = number()
INDEX = index()


def optional(kind: Kind) -> Kind:
    """Return the kind that may also be null, which people read as a dash."""

    def write(value: Any) -> str:
        return shown(None) if value is None else kind.write(value)

    # JSON Schema takes a list of types: "integer" or "null".
    return Kind({**kind.schema, "type": [kind.schema["type"], "null"]}, write)


def either(*kinds: Kind) -> Kind:
    """Return the kind of values that are of exactly one of some kinds."""
    return Kind({"oneOf": [kind.schema for kind in kinds]})


def list_of(kind: Kind, least: int | None = None, most: int | None = None) -> Kind:
    """Return the kind of lists of so many values of a kind."""
    return Kind({"type": "array", "items": kind.schema, **_bounds("minItems", least, "maxItems", most)})


def by_name(kind: Kind, least: int | None = None) -> Kind:
    """Return the kind of objects whose values, under any names, are all of a kind."""
    return Kind({"type": "object", "additionalProperties": kind.schema, **_bounds("minProperties", least)})


def fields(
    needed: Mapping[str, Kind],
    further: Mapping[str, Kind] | None = None,
    *,
    closed: bool = False,
    about: Mapping[str, str] | None = None,
) -> Kind:
    """Return the kind of objects with fields of their own.

    Parameters
    ----------
    needed, further
        Fields that must be there, and fields that may be there.
    closed
        Whether there may be no others.
    about
        By field what it is, for readers of the schema.
    """
    properties: dict[str, Mapping[str, Any]] = {}
    for name, kind in {**needed, **(further or {})}.items():
        properties[name] = kind.schema
    for name, words in (about or {}).items():
        properties[name] = {**properties[name], "description": words}
    schema: dict[str, Any] = {"type": "object", "required": [*needed], "properties": properties}
    # A series that a later version extends would be refused: only few kinds are closed.
    if closed:
        schema["additionalProperties"] = False
    return Kind(schema)


def describe(kind: Kind, words: str) -> Kind:
    """Return a kind whose schema says what it is."""
    return replace(kind, schema={**kind.schema, "description": words})
