"""All attacks by name. Importing this imports them all, and with them torch."""

from collections.abc import Mapping

from fedattack.attacks.base import Attack
from fedattack.attacks.registry import THREATS


def _load() -> dict[str, Attack]:
    attacks = {}
    for threat in THREATS.values():
        for name, where in threat.attacks.items():
            try:
                attack: Attack = threat.load(where)()
                if attack.name != name:
                    raise ValueError(f"its name is {attack.name!r}, and the threat says {name!r}")
                attacks[name] = attack
            except Exception as cause:  # another package may fail in any way
                if threat.built_in:
                    raise
                THREATS.left_out[name] = f"{threat.package}: {cause}"
    return dict(sorted(attacks.items()))


ATTACKS: Mapping[str, Attack] = _load()
"""All attacks by name."""
