"""The threats that are installed: a folder here each, and those of other packages; and their attacks.

Another package adds a threat by an entry point of the group ``fedattack.threats`` that leads to its ``THREAT``. Only
the declaration is imported here. Attacks are imported when somebody looks for one, and with them torch.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from functools import cache, cached_property
from typing import TYPE_CHECKING

from fedattack.attacks.options import Options
from fedattack.attacks.threat import Threat
from fedattack.base.failures import Failure, failing_alone
from fedattack.base.imports import importing
from fedattack.base.registry import Registry, stated_in

if TYPE_CHECKING:
    from fedattack.attacks.base import Attack
    from fedattack.attacks.held_examples import HeldByClients
    from fedattack.record import Record
    from fedattack.record.format import Arrays


def _find_fault(threat: Threat, others: Mapping[str, Threat]) -> str:
    attacks = {name for other in others.values() for name in other.attacks}
    if threat.name in others:
        return f"has the name {threat.name!r}, which the threat of {others[threat.name].package} has"
    if again := sorted(attacks & {*threat.attacks}):
        return f"has an attack {again[0]!r}, which another threat has"
    # Lists show this of all threats: one that lacks some of it is left out, and the others are listed.
    _ = threat.question, threat.presets
    for options in threat.options:
        lacking = [name for name in ("title", "paper", "needs") if not hasattr(options, name)]
        if lacking:
            return f"has an attack {options.name!r} that states no {lacking[0]}"
    return ""


THREATS: Registry[Threat] = Registry(
    "fedattack.threats",
    Threat,  # type: ignore[type-abstract]  # what is found is held against it, and nothing is made of it
    lambda: stated_in("fedattack.threats", "THREAT"),
    _find_fault,
)
"""By name."""


class AttackRegistry(Mapping[str, "Attack"]):
    """All attacks by name, with their options as they are by default."""

    def __getitem__(self, name: str) -> "Attack":
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)

    @cached_property
    def _loaded(self) -> "dict[str, Attack]":
        loaded: dict[str, Attack] = {}
        for threat in THREATS.values():
            loaded |= _load_attacks(threat)
        return dict(sorted(loaded.items()))


ATTACKS: Mapping[str, "Attack"] = AttackRegistry()
"""By name. The first look imports them all, and with them torch."""


@cache
def _load_attacks(threat: Threat) -> "dict[str, Attack]":
    """Import the attacks of a threat; those of another package are left out, with the reason, if they fail."""
    try:
        with importing():
            attacks = {attack.options.name: attack() for attack in threat.load_attacks()}
        # `fedattack list` shows what is declared, and imports no attack: the two must agree.
        if {*attacks} != {*threat.attacks}:
            raise ValueError(f"its attacks are {', '.join(attacks)}, and it declares {', '.join(threat.attacks)}")
    # Code of another package runs here: its fault leaves out its own attacks, and no others.
    except Exception as cause:  # another package may fail in any way
        if threat.built_in:
            raise
        THREATS.left_out.update(dict.fromkeys(threat.attacks, f"{threat.package}: {cause}"))
        return {}
    return attacks


def threat_of(attack: str) -> Threat | None:
    """Return the threat that an attack belongs to; ``None`` if it is not installed."""
    for threat in THREATS.values():
        if attack in threat.attacks:
            return threat
    return None


def declarations() -> dict[str, type[Options]]:
    """Return by its name what declares each attack: title, paper, needs and options.

    Torch is not imported for those of this package. One of another package is left out if it cannot be imported.
    """
    declared: dict[str, type[Options]] = {}
    for threat in THREATS.values():
        # Another package's attacks must have been imported once, to be known to work.
        if threat.built_in or _load_attacks(threat):
            declared |= {options.name: options for options in threat.options}
    return dict(sorted(declared.items()))


def options_of_attack(attack: str) -> type[Options]:
    """Return what declares an attack; nothing can be chosen about one that is not installed."""
    threat = threat_of(attack)
    if threat is None:
        return Options
    return next(options for options in threat.options if options.name == attack)


def find_answers(held: "HeldByClients", failed: MutableMapping[str, Failure]) -> "dict[str, Arrays]":
    """Gather what the judges of threats ask for in what clients hold; `failed` is told by the name of the threat."""
    answers = {}
    for threat in THREATS.values():
        with failing_alone(failed, threat.name):
            if found := threat.find_truth(held):
                answers[threat.name] = found
    return answers


def find_content(record: "Record") -> str:
    """Say what replies hold in the place of a model's arrays, such as trees; empty for arrays.

    Raises
    ------
    ConfigError
        If a threat of another package cannot say it.
    """
    for threat in THREATS.values():
        with threat.contained("say what replies hold"):
            content = threat.find_content(record)
        if content:
            return content
    return ""
