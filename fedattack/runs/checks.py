"""Words that a caller chose are checked here before anything else is done.

None of them needs torch, which takes seconds, but gates on attacks of another package that do not state what they find.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING

from fedattack.attacks.registry import THREATS, options_of_attack, threat_of
from fedattack.audit.gate import Condition
from fedattack.base.cluster import chosen, connect
from fedattack.base.errors import ConfigError, DataError, in_command, instead
from fedattack.base.machine import read_size
from fedattack.runs.runtimes import RUNTIMES

if TYPE_CHECKING:
    from fedattack.record.folder import Part, RunFolder

# So many attacks are named in a message.
_FEW = 4

# An active server's own findings, which belong to no attack.
_ISOLATION = "isolation"


def attack_names() -> list[str]:
    """List the attacks of all threats."""
    return sorted(chain.from_iterable(threat.attacks for threat in THREATS.values()))


def scored_attacks(parts: Sequence["Part"]) -> list[str]:
    """List the attacks that have scores for every record of a run folder."""
    return [name for name in attack_names() if all(part.scores(name).exists() for part in parts)]


def check_scores(folder: "RunFolder", found: Collection[str]) -> None:
    """Check that no scores are gone: of an attack that has others, or of one of which ``found`` speaks.

    Raises
    ------
    DataError
        If some are.
    """
    for name in attack_names():
        # Scores of some seeds alone show that some were removed.
        lacking = [part.scores(name) for part in folder.parts if not part.scores(name).exists()]
        if lacking and (name in found or len(lacking) < len(folder.parts)):
            again = f"`fedattack attack {name} {in_command(folder.path)}`"
            raise DataError(
                f"{lacking[0]} is not there, although the attack was made; put it back, or run {again} first; to "
                f"report without it, delete all scores of {name} and findings.json"
            )


def check_attacks(names: Sequence[str], options: Mapping[str, str]) -> None:
    """Check names of attacks, and options that are to be set in those that have them.

    Raises
    ------
    ConfigError
        If an attack is unknown, an option is none of any of them, or its value is refused.
    """
    known = attack_names()
    for name in names:
        if name not in known:
            why = ""
            if name in THREATS.left_out:
                why = f" ({THREATS.left_out[name]})"
            words = instead(name, known, listed="attacks")
            raise ConfigError(f"unknown attack {name!r}{why}: {words}")
    # Attacks differ in their options; one that any of them has is taken.
    allowed = {name: options_of_attack(name).list_settings() for name in names}
    there = sorted(set(chain.from_iterable(allowed.values())))
    for key, text in options.items():
        if key not in there:
            raise ConfigError(f"--option {key}: {_describe_options(key, names, there)}")
        for name in names:
            if key in allowed[name]:
                try:
                    allowed[name][key].read(text)
                except ConfigError as cause:
                    raise ConfigError(f"--option {key}={text}: {cause}") from None


def _describe_options(key: str, names: Sequence[str], there: Sequence[str]) -> str:
    """Say that these attacks have no such option, and which one comes closest."""
    who = " and ".join(names)
    if len(names) > _FEW:
        who = f"all {len(names)} attacks"
    have = "has"
    if len(names) > 1:
        have = "have"
    if not there:
        return f"{who} {have} no options"
    return f"{who} {have} no option {key!r}: {instead(key, there)}"


def options_among(options: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the options that some of these attacks have."""
    known = set(chain.from_iterable(options_of_attack(name).list_settings() for name in names))
    return {key: text for key, text in options.items() if key in known}


def check_data(changes: Sequence[str]) -> None:
    """Check the names and files of data among ``key=value`` changes.

    Raises
    ------
    DataError
        If there is no such dataset, or no such file.
    """
    for change in changes:
        key, _, name = change.partition("=")
        if key in ("dataset", "public") and name:
            from fedattack.data.loading import check_name

            check_name(name)


def check_runtime(name: str) -> None:
    """Check what is to be run on.

    Raises
    ------
    ConfigError
        If it is unknown.
    """
    if name not in RUNTIMES:
        raise ConfigError(f"unknown runtime {name!r}: {instead(name, RUNTIMES)}")


def check_memory(size: str | None) -> None:
    """Check what ``--memory`` says, if it is given.

    Raises
    ------
    ConfigError
        If it is no size, or too small.
    """
    if size is not None:
        try:
            read_size(size)
        except ConfigError as cause:
            raise ConfigError(f"--memory {size}: {cause}") from None


def check_cluster(names: Sequence[str]) -> None:
    """Check the cluster that was chosen, if there is one and some of these attacks share their work.

    Raises
    ------
    ConfigError
        If nobody answers there, or its machines do not fit.
    """
    # Ray is imported and asked only where work could go to it.
    if chosen() and any(options_of_attack(name).shares_work() for name in names):
        connect(chosen())


def check_device(name: str) -> None:
    """Check the name of a device; whether this machine has it is seen later.

    Raises
    ------
    ConfigError
        If there is no device of that name anywhere.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", name):
        raise ConfigError(f"unknown device {name!r}; expected auto, cpu, cuda or cuda:N")


def check_conditions(conditions: Sequence[Condition], attacks: Collection[str], *, isolating: bool) -> None:
    """Check that conditions are about what the attacks can find.

    Parameters
    ----------
    attacks
        Those that are run, or that have scores.
    isolating
        Whether the server isolates clients, about which there are findings then.

    Raises
    ------
    ConfigError
        If the finding that a condition names cannot be there.
    """
    for condition in conditions:
        attack, metric = condition.attack, condition.metric
        # A condition on all findings is about whatever there is.
        if not condition.name or (attack == _ISOLATION and isolating):
            continue
        if attack not in attacks:
            there = ", ".join(attacks) or "none"
            raise ConfigError(f"--fail-if {condition.text}: there are no findings of {attack!r}; attacks here: {there}")
        if not can_find(attack, metric):
            metrics = findings_of(attack)
            words = "others are compared with it"
            if metrics:
                words = instead(metric, metrics)
            raise ConfigError(f"--fail-if {condition.text}: {attack} finds no {metric!r}: {words}")


def can_find(attack: str, metric: str) -> bool:
    """Whether an attack's judge may find something of this name; true where nobody says what it may find."""
    threat = threat_of(attack)
    metrics = findings_of(attack)
    # A judge of another package may not say what it measures: then the finding itself decides later.
    if threat is None or (attack in threat.judged and not metrics):
        return True
    return any(fnmatchcase(metric, pattern) for pattern in metrics)


def findings_of(attack: str) -> Sequence[str]:
    """Return the metrics that an attack's judge measures, perhaps with ``*`` in them; none for a baseline."""
    options = options_of_attack(attack)
    if options.is_baseline:
        return ()
    if options.finds is not None:
        return options.finds
    from fedattack.audit.judge import judge_of

    judge = judge_of(attack)
    if not judge:
        return ()
    return judge.metrics()
