"""The threats that are installed: a folder here each, and those of other packages.

Another package adds a threat by an entry point of the group ``fedattack.threats`` that leads to its ``THREAT``. Only
the declaration is imported here, none of the parts.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from fedattack.attacks.options import Option, options_of
from fedattack.attacks.threat import Threat
from fedattack.base.registry import Registry, stated_in


def _find_fault(threat: Threat, others: Mapping[str, Threat]) -> str:
    attacks = {name for other in others.values() for name in other.attacks}
    if threat.name in others:
        return f"has the name {threat.name!r}, which the threat of {others[threat.name].package} has"
    if not {*threat.judges} <= {*threat.attacks}:
        return f"has judges of {', '.join(threat.judges)}, and the attacks {', '.join(threat.attacks)}"
    if again := sorted(attacks & {*threat.attacks}):
        return f"has an attack {again[0]!r}, which another threat has"
    # Everybody looks for presets, so that a threat whose folder has none to look in is left out.
    _ = threat.presets
    return ""


THREATS: Registry[Threat] = Registry(
    "fedattack.threats", Threat, lambda: stated_in("fedattack.threats", "THREAT"), _find_fault
)
"""By name."""


def threat_of(attack: str) -> Threat | None:
    """Return the threat that an attack belongs to; ``None`` if it is not installed."""
    for threat in THREATS.values():
        if attack in threat.attacks:
            return threat
    return None


def declarations() -> dict[str, Any]:
    """Return by its name what declares each attack: title, paper, needs and options.

    Those of this package are declared without torch. Of another package it is the attack itself, if it can be imported.
    """
    found: dict[str, Any] = {}
    for threat in THREATS.values():
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
