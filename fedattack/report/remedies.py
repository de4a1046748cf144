"""What to do about a leak: defences that apply, what they were measured to buy, and the command that tests each."""

import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[a-z0-9-]+")
# Options of a run that its repetition under a defence has, too; others, such as --fail-if, are left out.
_KEPT = ("--set", "--seed", "--seeds", "--option", "--on", "--device")


@dataclass(frozen=True)
class Remedy:
    """One thing to do.

    Attributes
    ----------
    what
        What to do, in a few words.
    buys
        What was measured of it, with its cost in model quality, or why it helps; and where that stands.
    settings
        The settings of a preset that try it; empty if none do.
    audit
        A preset that tries it in place of the run's own; empty for the run's own.
    """

    what: str
    buys: str
    settings: Mapping[str, str] = field(default_factory=dict)
    audit: str = ""


def remedies_beside(module: str) -> tuple[Remedy, ...]:
    """Read ``remedies.toml`` beside the section whose ``__file__`` is given."""
    value = tomllib.loads(Path(module).with_name("remedies.toml").read_text(encoding="utf-8"))
    return tuple(Remedy(**entry) for entry in value["remedy"])


def command_for(remedy: Remedy, run: Mapping[str, Any]) -> str:
    """Return the command that tries a remedy on a run like this one; empty if there is none.

    The run's own command is repeated with the remedy's settings. What a folder says is data: of its command a preset's
    name and known options are taken, and every word is quoted.
    """
    if remedy.audit:
        return f"fedattack audit {remedy.audit} --out {remedy.audit}"
    if not remedy.settings:
        return ""
    for command in run["provenance"].get("commands", ()):
        words = _words_of(command)
        if (
            len(words) > 2
            and words[0] == "fedattack"
            and words[1] in ("audit", "simulate")
            and _NAME.fullmatch(words[2])
        ):
            changes = []
            for key, value in remedy.settings.items():
                changes += ["--set", f"{key}={value}"]
            out = "-".join([words[2], *chain.from_iterable(remedy.settings.items())])
            kept = _kept(words[3:], remedy.settings)
            return shlex.join(["fedattack", "audit", words[2], "--out", out, *kept, *changes])
    return ""


def _words_of(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _kept(words: Sequence[str], replaced: Mapping[str, str]) -> list[str]:
    """Return the options of a command that its repetition has, too, without the settings that are replaced."""
    kept = []
    flat: list[str] = []
    for word in words:
        name, separator, value = word.partition("=")
        flat += [name, value] if separator and name in _KEPT else [word]
    for option, value in pairwise(flat):
        if option in _KEPT and not (option == "--set" and value.partition("=")[0] in replaced):
            kept += [option, value]
    return kept
