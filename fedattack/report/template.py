"""The templates of pages, and how these write what they are given."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fedattack.audit.finding import p_in_words
from fedattack.report.sent import reached_kind, sent_kind
from fedattack.report.words import (
    NOTHING,
    end_sentence,
    interval,
    level,
    say_remedy,
    shown,
    verdict_in_words,
    with_interval,
    write_spread,
)


def template(name: str) -> Template:
    """Load a page's template, which escapes all that it is given and fails on what it was not given."""
    environment = Environment(
        loader=PackageLoader("fedattack.report", "."),
        # Names from clients are text, and no HTML.
        autoescape=True,
        # A missing name is an error, and not an empty place on the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shown": shown,
        "level": level,
        "stopped": end_sentence,
        "to_ask": say_remedy,
        "words": _words,
        "scalar": scalar,
        "spread": write_spread,
        "chance_of": p_in_words,
        "verdict": verdict_in_words,
        "options": options_of,
        "command": as_command,
        "sent_kind": sent_kind,
        "reached_kind": reached_kind,
    }
    environment.globals |= {"interval": interval, "with_interval": with_interval}
    return environment.get_template(name)


def _words(key: str) -> str:
    return key.replace("-", " ").replace("_", " ")


def options_of(command: str) -> list[str]:
    """Split a command before each option, so that no line breaks within one."""
    # Options begin with two hyphens, and values never contain " --".
    first, *rest = command.split(" --")
    return [first, *(f"--{option}" for option in rest)]


def as_command(text: str) -> str:
    """Quote anew what a folder says was run: people copy commands, and whoever wrote it may have meant harm.

    Words stay as they are. What a shell would do beyond passing them on, such as a second command, becomes a word. What
    is no command of fedattack becomes one word as a whole.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if words[:1] == ["fedattack"]:
        return shlex.join(words)
    return shlex.quote(text)


def scalar(value: Any) -> str:
    """Scalar, or list of them, as people write it."""
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        return ", ".join(map(scalar, value)) or NOTHING
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
