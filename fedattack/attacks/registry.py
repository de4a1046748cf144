"""The threats that are installed: a folder here each, and those of other packages.

Another package adds a threat by an entry point of the group ``fedattack.threats`` that leads to its ``THREAT``. Only
the declaration is imported here, none of the parts. Nothing is searched for before somebody asks.
"""

import importlib
import os
import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

from fedattack.attacks.options import Option, options_of
from fedattack.attacks.threat import Threat

GROUP = "fedattack.threats"
"""Package of the threats that are built in, and group of the entry points by which other packages add theirs."""


def _load_built_in() -> dict[str, Threat]:
    threats = {}
    for module in pkgutil.iter_modules(importlib.import_module(GROUP).__path__):
        if module.ispkg:
            threat: Threat = importlib.import_module(f"{GROUP}.{module.name}").THREAT
            threats[threat.name] = threat
    return threats


def threats() -> Mapping[str, Threat]:
    """Return all threats by name."""
    return _find_threats()[0]


def left_out() -> dict[str, str]:
    """Return why a threat is left out, by the name of its entry point."""
    return _find_threats()[1]


def threat_of(attack: str) -> Threat | None:
    """Return the threat that an attack belongs to; ``None`` if it is not installed."""
    for threat in threats().values():
        if attack in threat.attacks:
            return threat
    return None


def declarations() -> dict[str, Any]:
    """Return by its name what declares each attack: title, paper, needs and options.

    Those of this package are declared without torch. Of another package it is the attack itself, if it can be imported.
    """
    found: dict[str, Any] = {}
    for threat in threats().values():
        if threat.built_in:
            found |= {attack: threat.load(_find_declaration(threat, attack)) for attack in threat.attacks}
        else:
            attacks = importlib.import_module("fedattack.attacks.all_attacks").ATTACKS
            found |= {attack: attacks[attack] for attack in threat.attacks if attack in attacks}
    return dict(sorted(found.items()))


def options_of_attack(attack: str) -> Mapping[str, Option]:
    """Return what can be chosen about an attack, by name; torch is not imported for those of this package.

    Raises
    ------
    ConfigError
        If it is an attack of another package that cannot be imported.
    """
    threat = threat_of(attack)
    if threat is None:
        return {}
    return options_of(threat.load(_find_declaration(threat, attack)))


def _find_declaration(threat: Threat, attack: str) -> str:
    """Return where the declaration of an attack is: a part of its own, or the attack."""
    return threat.options.get(attack, threat.attacks[attack])


@cache
def _find_threats() -> tuple[dict[str, Threat], dict[str, str]]:
    return _with_installed(_load_built_in())


def _with_installed(own: Mapping[str, Threat]) -> tuple[dict[str, Threat], dict[str, str]]:
    """Add the threats of other packages; returns all threats, and by its name why one could not be added."""
    added, broken = dict(own), {}
    for name, entry in _entry_points().items():
        try:
            threat = entry.load()
            # Everybody looks for presets, so that a threat whose folder has none to look in is left out.
            _ = threat.presets if isinstance(threat, Threat) else None
        except Exception as cause:  # another package may fail in any way
            broken[name] = f"{entry.value} cannot be imported: {cause}"
            continue
        if fault := _fault(threat, added):
            broken[name] = f"{entry.value} {fault}"
        else:
            added[threat.name] = threat
    return added, broken


def _entry_points() -> dict[str, EntryPoint]:
    """Find the entry points of installed packages, by name; a second one of a name has what it leads to behind it.

    A notebook and ``python -m`` look for packages in the working directory first. It may be a folder that somebody
    handed over, so that what calls itself a package there is none.
    """
    paths = [path for path in sys.path if path and not _is_here(path)]
    entries: set[EntryPoint] = set()  # a package that is installed twice counts once
    for distribution in distributions(path=paths):
        entries.update(distribution.entry_points.select(group=GROUP))
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entries, key=lambda entry: (entry.name, entry.value)):
        name = f"{entry.name} ({entry.value})" if entry.name in found else entry.name
        found[name] = entry
    return found


def _is_here(path: str) -> bool:
    try:
        return Path(path).samefile(os.curdir)
    except OSError:  # one of the two is gone
        return False


def _fault(threat: object, taken: Mapping[str, Threat]) -> str:
    if not isinstance(threat, Threat):
        return "is no fedattack.attacks.threat.Threat"
    attacks = {name for other in taken.values() for name in other.attacks}
    if threat.name in taken:
        return f"has the name {threat.name!r}, which the threat of {taken[threat.name].package} has"
    if not {*threat.judges} <= {*threat.attacks}:
        return f"has judges of {', '.join(threat.judges)}, and the attacks {', '.join(threat.attacks)}"
    if again := sorted(attacks & {*threat.attacks}):
        return f"has an attack {again[0]!r}, which another threat has"
    return ""
