"""Presets: named studies of attacks on federated runs, with the settings that a caller changes."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedattack.attacks.registry import THREATS
from fedattack.base.errors import ConfigError, instead, short
from fedattack.base.settings import Value
from fedattack.runs.app import app_folder
from fedattack.runs.settings import FOLDERS, PATHS, default_settings, load_settings, open_settings

TIMES = ("a minute", "minutes", "an hour", "hours")
"""What a preset may say of the time that its audit takes on two cores."""


@dataclass(frozen=True)
class Preset:
    """A named study: which attacks, with which options, on which federated run; the first is what it is about.

    ``takes`` is one of :data:`TIMES`, or empty if the preset does not say how long it takes. ``tradeoff`` has strengths
    of its own for defences, by name, of a study of their trade-off.
    """

    name: str
    help: str
    attacks: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, Value]
    options: Mapping[str, str]
    takes: str = ""
    tradeoff: Mapping[str, Sequence[float]] = field(default_factory=dict)


def preset_names() -> list[str]:
    """List the presets."""
    return sorted(_preset_files())


def presets_left_out() -> dict[str, str]:
    """Return why a preset is left out, by its file: of two of one name the first counts."""
    taken = _preset_files()
    return {
        str(path): f"the preset {path.stem!r} is that of {taken[path.stem]}"
        for path in _all_files()
        if taken[path.stem] != path
    }


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
        If there is none of that name, or it cannot be read.
    """
    files = _preset_files()
    if name not in files:
        words = instead(name, sorted(files), listed="presets")
        raise ConfigError(f"unknown preset {name!r}: {words}")
    try:
        return _read_preset(name, tomllib.loads(files[name].read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as cause:
        raise ConfigError(f"{files[name]} is not a preset: {type(cause).__name__}: {short(str(cause), 200)}") from None


def _read_preset(name: str, value: Mapping[str, Any]) -> Preset:
    known = load_settings()
    takes = value.get("takes", "")
    if takes not in ("", *TIMES):
        raise ConfigError(f"preset {name}: takes = {takes!r}: expected one of {', '.join(TIMES)}")
    # Each value is checked like one that a user gives.
    settings = {key: known[key].check(item) for key, item in value["settings"].items()}
    return Preset(
        name=name,
        help=value["help"],
        attacks=(value["attack"], *value.get("beside", ())),
        seeds=tuple(value["seeds"]),
        settings=settings,
        options=value.get("options", {}),
        takes=takes,
        tradeoff=_strengths(name, value.get("tradeoff", {})),
    )


def _strengths(preset: str, table: Mapping[str, object]) -> dict[str, Sequence[float]]:
    strengths: dict[str, Sequence[float]] = {}
    for name, values in table.items():
        if not isinstance(values, list) or not {*map(type, values)} <= {int, float} or not values:
            raise ConfigError(f"preset {preset}: [tradeoff] {name} = {values!r}: expected a list of strengths")
        strengths[name] = list(map(float, values))
    return strengths


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
