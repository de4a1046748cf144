"""Presets: named studies of attacks on federated runs, with the settings that a caller changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedattack.attacks.registry import THREATS, threat_of
from fedattack.base.errors import ConfigError, instead
from fedattack.base.failures import Failure, failing_alone
from fedattack.base.settings import Value
from fedattack.base.stored import OPTIONAL, Finite, form_of
from fedattack.base.untrusted import read_toml, validate
from fedattack.runs.app import app_folder
from fedattack.runs.settings import FOLDERS, PATHS, default_settings, load_settings, open_settings

Time = Literal["", "a minute", "minutes", "an hour", "hours"]
"""What a preset may say of the time that its audit takes on two cores; empty if it does not say it."""

_HINT = "compare it with the presets of fedattack"


@dataclass(frozen=True)
class Preset:
    """A named study: which attacks, with which options, on which federated run; the first is what it is about.

    ``takes`` is a :data:`Time`. ``tradeoff`` has strengths of its own for defences, by name, of a study of their
    trade-off.
    """

    name: str
    help: str
    attacks: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, Value]
    options: Mapping[str, str]
    takes: Time = ""
    tradeoff: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class _PresetFile:
    """The form of a preset's file."""

    help: str
    attack: str
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    settings: Mapping[str, Value]
    beside: Annotated[tuple[str, ...], OPTIONAL] = ()
    options: Annotated[Mapping[str, str], OPTIONAL] = field(default_factory=dict)
    takes: Annotated[Time, OPTIONAL] = ""
    tradeoff: Annotated[Mapping[str, Annotated[tuple[Finite, ...], Field(min_length=1)]], OPTIONAL] = field(
        default_factory=dict
    )


def preset_names() -> list[str]:
    """List the presets."""
    return sorted(_preset_files())


def load_presets() -> tuple[dict[str, Preset], dict[str, str]]:
    """Read all presets.

    Returns
    -------
    tuple
        The presets by name; and by its file why another is left out: it cannot be read, or is the second of its name.
    """
    presets, failed = {}, dict[str, Failure]()
    taken = _preset_files()
    for name, path in sorted(taken.items()):
        with failing_alone(failed, str(path)):
            presets[name] = _read_preset(name, path)
    left_out = {path: failure.why for path, failure in failed.items()}
    for path in _all_files():
        if taken[path.stem] != path:
            left_out[str(path)] = f"the preset {path.stem!r} is that of {taken[path.stem]}"
    return presets, left_out


def _preset_files() -> dict[str, Path]:
    files: dict[str, Path] = {}
    for path in _all_files():
        # The first of a name wins: those of the app stand before those of threats.
        files.setdefault(path.stem, path)
    return files


def _all_files() -> list[Path]:
    """Find the presets of the app, and then those that lie in the folders of threats."""
    files = sorted((app_folder() / "simulations" / "presets").glob("*.toml"))
    for threat in THREATS.values():
        files += threat.presets
    return files


def load_preset(name: str) -> Preset:
    """Read a preset.

    Raises
    ------
    ConfigError
        If there is none of that name, it cannot be read, or an attack or a setting of it is unknown.
    """
    files = _preset_files()
    if name not in files:
        words = instead(name, sorted(files), listed="presets")
        raise ConfigError(f"unknown preset {name!r}: {words}")
    return _read_preset(name, files[name])


def _read_preset(name: str, path: Path) -> Preset:
    stated = validate(form_of(_PresetFile), read_toml(path, ConfigError, _HINT), str(path), ConfigError, _HINT)
    attacks = (stated.attack, *stated.beside)
    for attack in attacks:
        if threat_of(attack) is None:
            raise ConfigError(f"{path}: the attack {attack!r} is not installed; `fedattack list attacks` lists them")
    known = load_settings()
    for key in stated.settings:
        if key not in known:
            raise ConfigError(f"{path}: unknown setting {key!r}: {instead(key, known, listed='settings')}")
    # Each value is checked like one that a user gives.
    settings = {key: known[key].check(value) for key, value in stated.settings.items()}
    return Preset(
        name, stated.help, attacks, stated.seeds, settings, stated.options, stated.takes, tradeoff=stated.tradeoff
    )


def read_changes(changes: Sequence[str]) -> dict[str, Value]:
    """Read ``key=value`` changes of settings; of those of one key the last one counts.

    Raises
    ------
    ConfigError
        If a key is unknown, or a value is of the wrong type or out of range.
    """
    known, values = open_settings(), dict[str, Value]()
    aliases = {setting.alias: name for name, setting in known.items() if setting.alias}
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator:
            raise ConfigError(f"--set {change}: expected key=value")
        key = aliases.get(key, key)
        if key not in known:
            words = instead(key, known, listed="settings")
            raise ConfigError(f"--set {change}: unknown key {key!r}: {words}")
        values[key] = known[key].parse(text)
    return values


def resolve_settings(preset: Preset, changes: Sequence[str]) -> dict[str, Value]:
    """Apply ``key=value`` changes to a preset; returns all settings but the internal ones.

    Raises
    ------
    ConfigError
        If a key is unknown, or a value is of the wrong type or out of range.
    """
    values = default_settings() | dict(preset.settings) | read_changes(changes)
    for key in PATHS:
        # The app runs in a folder of its own, where a relative path would mean something else.
        text = str(values[key])
        if text.endswith((".npz", ".toml")) or (key in FOLDERS and text):
            values[key] = str(Path(text).expanduser().absolute())
    return values
