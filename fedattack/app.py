"""The Flower app of the reference system, its presets and its settings.

From a checkout these are the checkout's own folders. An installed wheel carries them as data in ``fedattack/_app``, and
they are never imported from there: Flower bundles them, and preparation runs in a process of its own, so that folders
named ``clients`` or ``strategies`` in a user's project cannot collide with them.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import fedattack
from fedattack.errors import ConfigError, FedAttackError, RunError, short
from fedattack.threats.registry import THREATS

Value = str | int | float | bool


def app_folder() -> Path:
    """Find the folder that ``flwr run`` is pointed at.

    Raises
    ------
    ConfigError
        If the installation lacks it.
    """
    package = Path(fedattack.__file__).parent
    for folder in (package.parent, package / "_app"):
        if (folder / "simulations" / "settings.toml").is_file() and (folder / "pyproject.toml").is_file():
            return folder
    raise ConfigError(f"{package} comes without its Flower app; install fedattack from its wheel or a checkout")


@dataclass(frozen=True)
class Setting:
    """One key that a preset or ``--set`` may change; ``alias`` is a second name for it."""

    name: str
    default: Value
    help: str
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    internal: bool = False
    alias: str = ""

    def parse(self, text: str) -> Value:
        """Read a value from the command line.

        Raises
        ------
        ConfigError
            If it is of another type than the default, or out of range.
        """
        kind = type(self.default)
        if kind is bool:
            if text.lower() not in ("true", "false"):
                raise ConfigError(f"--set {self.name}={text}: expected true or false")
            return text.lower() == "true"
        try:
            return self.check(kind(text))
        except ValueError:
            article = {int: "a whole number", float: "a number"}[kind]
            raise ConfigError(f"--set {self.name}={text}: expected {article} ({self.help})") from None

    def check(self, value: Value) -> Value:
        """Return ``value``, in the default's type, if it may be taken.

        Raises
        ------
        ConfigError
            If it is of another type or out of range.
        """
        if isinstance(self.default, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not type(self.default):
            raise ConfigError(f"{self.name} = {value!r}: expected {type(self.default).__name__} ({self.help})")
        if isinstance(value, int | float) and not isinstance(value, bool):
            for bad, bound in (
                (self.minimum is not None and not value >= self.minimum, f"at least {self.minimum}"),
                (self.maximum is not None and not value <= self.maximum, f"at most {self.maximum}"),
                (self.above is not None and not value > self.above, f"more than {self.above}"),
                (self.below is not None and not value < self.below, f"less than {self.below}"),
            ):
                if bad:
                    raise ConfigError(f"{self.name} = {value}: expected {bound} ({self.help})")
        return value


@dataclass(frozen=True)
class Preset:
    """A named study: which attacks, with which options, on which federated run; the first is what it is about.

    ``tradeoff`` has strengths of its own for defences, by name, of a study of their trade-off.
    """

    name: str
    title: str
    help: str
    attacks: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, Value]
    options: Mapping[str, str]
    tradeoff: Mapping[str, Sequence[float]] = field(default_factory=dict)


def load_settings() -> dict[str, Setting]:
    """Read all settings of the app."""
    table = tomllib.loads((app_folder() / "simulations" / "settings.toml").read_text(encoding="utf-8"))
    return {name: Setting(name=name, **entry) for name, entry in table.items()}


def preset_names() -> list[str]:
    """List the presets."""
    return sorted(_preset_files())


def _preset_files() -> dict[str, Path]:
    """Find the presets of the app, and those that lie in the folders of threats."""
    files = [path for threat in THREATS.values() for path in threat.presets]
    files += (app_folder() / "simulations" / "presets").glob("*.toml")
    return {path.stem: path for path in files}


def load_preset(name: str) -> Preset:
    """Read a preset.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    files = _preset_files()
    if name not in files:
        raise ConfigError(f"unknown preset {name!r}: expected one of {', '.join(sorted(files))}")
    value = tomllib.loads(files[name].read_text(encoding="utf-8"))
    known = load_settings()
    settings = {key: known[key].check(item) for key, item in value["settings"].items()}
    return Preset(
        name=name,
        title=value["title"],
        help=value["help"],
        attacks=(value["attack"], *value.get("beside", ())),
        seeds=tuple(value["seeds"]),
        settings=settings,
        options=value.get("options", {}),
        tradeoff=_strengths(name, value.get("tradeoff", {})),
    )


def _strengths(preset: str, table: Mapping[str, object]) -> dict[str, Sequence[float]]:
    found: dict[str, Sequence[float]] = {}
    for name, values in table.items():
        if not isinstance(values, list) or not all(type(value) in (int, float) for value in values) or not values:
            raise ConfigError(f"preset {preset}: [tradeoff] {name} = {values!r}: expected a list of strengths")
        found[name] = [float(value) for value in values]
    return found


def resolve_settings(preset: Preset, changes: Sequence[str]) -> dict[str, Value]:
    """Apply ``key=value`` changes to a preset; returns all settings but the internal ones.

    Raises
    ------
    ConfigError
        If a key is unknown, or a value is of the wrong type or out of range.
    """
    known = {name: setting for name, setting in load_settings().items() if not setting.internal}
    values = {name: setting.default for name, setting in known.items()} | dict(preset.settings)
    aliases = {setting.alias: name for name, setting in known.items() if setting.alias}
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator:
            raise ConfigError(f"--set {change}: expected key=value")
        key = aliases.get(key, key)
        if key not in known:
            raise ConfigError(f"--set {change}: unknown key {key!r}; expected one of {', '.join(known)}")
        values[key] = known[key].parse(text)
    for key in PATHS:
        # The app runs in a folder of its own, where a relative path would mean something else.
        text = str(values[key])
        if text.endswith((".npz", ".toml")) or (key in ("data-root", "recup-zoo") and text):
            values[key] = str(Path(text).expanduser().absolute())
    return values


IMPORTS = ("model", "models", "student")
"""Settings that may be import paths; ``models`` is a list, separated by commas."""

PATHS = ("dataset", "public", "data-root", "recup-zoo")
"""Settings that may be paths."""


def leads_out(settings: Mapping[str, Value]) -> dict[str, str]:
    """List what settings name beyond themselves: code to import, files to read; by what is named, the setting."""
    found: dict[str, str] = {}
    for key in IMPORTS:
        words = str(settings.get(key, "")).split(",")
        found |= {word.strip(): key for word in words if ":" in word}
    for key in PATHS:
        text = str(settings.get(key, ""))
        named = key in ("dataset", "public") and "/" not in text and not text.endswith((".npz", ".toml"))
        found |= {text: key} if text and not named else {}
    return found


def check_settings(values: Mapping[str, Value], where: str) -> dict[str, Value]:
    """Check settings that were read from a file; what did not exist when it was written is at its default.

    Raises
    ------
    ConfigError
        If a setting is unknown or internal, or its value is of another type or out of range.
    """
    known = {name: setting for name, setting in load_settings().items() if not setting.internal}
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}: unknown setting {short(key, 60)!r}; the file was changed")
    try:
        return {name: setting.check(values.get(name, setting.default)) for name, setting in known.items()}
    except ConfigError as cause:
        raise ConfigError(f"{where}: {cause}") from None


def prepare(configs: Sequence[Mapping[str, Value]]) -> None:
    """Write knowledge and truth of each run, in a process that sees the app's own modules.

    Raises
    ------
    FedAttackError
        If the settings do not fit the data.
    RunError
        If the process crashed.
    """
    run_module("simulations.prepare", [dict(config) for config in configs])


def run_module(module: str, job: object) -> str:
    """Run a module of the app on a job that JSON can hold, in a process that sees the app's modules.

    Returns
    -------
    str
        What it printed.

    Raises
    ------
    FedAttackError
        If it refused the job: the one line that the process printed.
    RunError
        If it crashed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        paths = [str(app_folder()), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, "-P", "-m", module, str(file)],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
        )
    message = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if done.returncode == 2:
        raise FedAttackError(message)
    if done.returncode:
        raise RunError(f"{module} crashed: {message}")
    return done.stdout
