"""Options of attacks: fields of an attack's class that say what they mean, and what text they are read from.

``restarts: int = whole(1, "searches from different starts", least=1)`` is an option that ``--option restarts=5`` sets.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedattack.attacks.replies import choose_rounds
from fedattack.base.errors import ConfigError
from fedattack.base.machine import MEMORY, read_size

_KEY = "option"


@dataclass(frozen=True)
class Option:
    """What a user may choose about an attack.

    Attributes
    ----------
    help
        What it means, for people.
    read
        Reads it from a text; raises a ConfigError that says what was expected.
    """

    help: str
    read: Callable[[str], Any]


def options_of(attack: object) -> Mapping[str, Option]:
    """Return the options of an attack, or of its class, by name."""
    declared = getattr(attack, "__dataclass_fields__", {})
    return {name: option.metadata[_KEY] for name, option in declared.items() if _KEY in option.metadata}


def choice(default: str | None, help: str, known: Collection[str]) -> Any:  # noqa: A002 the word that users read
    """One of some words."""

    def read(text: str) -> str:
        if text not in known:
            raise ConfigError(f"expected one of {', '.join(known)}")
        return text

    return _field(default, help, read)


def whole(default: int | None, help: str, *, least: int) -> Any:  # noqa: A002 likewise
    """Declare a whole number, ``least`` or more."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ConfigError(f"expected a whole number, {least} or more")
        return int(text)

    return _field(default, help, read)


def number(default: float | None, help: str, *, zero: bool = False) -> Any:  # noqa: A002 likewise
    """Declare a number above 0, or with ``zero`` also 0."""
    expected = "expected a number, 0 or more" if zero else "expected a number above 0"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (0 < value < math.inf or (zero and value == 0)):
            raise ConfigError(expected)
        return value

    return _field(default, help, read)


def size(default: int, help: str) -> Any:  # noqa: A002 likewise
    """Declare an amount of memory, such as 2GiB."""
    return _field(default, help, read_size)


def interval(default: str, help: str, known: Collection[str]) -> Any:  # noqa: A002 likewise
    """Declare two numbers, the first below the second, or one of some words."""
    expected = f"expected {', '.join(known)}, or two numbers, the lower one first, such as 0,1"

    def read(text: str) -> str | tuple[float, float]:
        if text in known:
            return text
        try:
            low, high = map(float, text.split(","))
        except ValueError:
            raise ConfigError(expected) from None
        if not -math.inf < low < high < math.inf:
            raise ConfigError(expected)
        return low, high

    return _field(default, help, read)


def words(default: tuple[str, ...], help: str, known: Collection[str] = ()) -> Any:  # noqa: A002 likewise
    """Declare words separated by commas, of those that are ``known`` if any are."""

    def read(text: str) -> tuple[str, ...]:
        values = tuple(map(str.strip, text.split(",")))
        if known and not {*values} <= {*known}:
            raise ConfigError(f"expected some of {', '.join(known)}")
        return values

    return _field(default, help, read)


def rounds(default: str, help: str) -> Any:  # noqa: A002 likewise
    """Declare which rounds are used; see :func:`fedattack.attacks.replies.choose_rounds`."""

    def read(text: str) -> str:
        choose_rounds(text, [])
        return text

    return _field(default, help, read)


def _field(default: Any, what: str, read: Callable[[str], Any]) -> Any:
    return field(default=default, metadata={_KEY: Option(what, read)})


@dataclass(frozen=True)
class MemoryOptions:
    """How much memory an attack takes."""

    memory: int = size(
        MEMORY, "what the work of a process may hold, beside the examples and the 0.4 GiB of Python and torch (2GiB)"
    )


@dataclass(frozen=True)
class WorkersOptions:
    """How many processes share an attack's work on this machine."""

    workers: int = whole(0, "processes; 0 for as many as there are cores and memory for", least=0)


def shares_work(names: Collection[str]) -> bool:
    """Whether an attack with options of these names shares its work among processes, and on a cluster."""
    return "workers" in names
