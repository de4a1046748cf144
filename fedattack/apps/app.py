"""Somebody's Flower app: where it is, how many clients it has, what can be set, whether it can be audited at all."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from fedattack.apps.outside import FlwrRun, read_app
from fedattack.base.errors import ConfigError, instead, short
from fedattack.runs.bundle import hash_code
from fedattack.runs.presets import preset_names

SUPERNODES = 10
"""Clients of an app that does not say how many it is simulated with; of flwr's own 2 nothing can be told."""

MOST_HELD_OUT = 0.5
"""Share of its examples that a client may be kept from training on; with more its training is hardly its own."""

# Examples of each role that are kept of all clients, and of one: all of them are read at once.
_KEPT, _KEPT_LEAST, _KEPT_MOST = 10_000, 50, 1000

# A study holds whole numbers up to 2⁵³; NaN and infinity are not below it.
_LARGEST = 2**53

SERVERS = ("imprint", "fishing")
"""Active servers that an app can be run with."""


@dataclass(frozen=True)
class App:
    """A Flower app, and how it is to be run.

    ``config`` is what of its run config is set to another value; with ``seeded`` it has a key ``seed``, which then is
    the seed of each run. ``supernodes`` clients are simulated; ``counted`` says whether the caller, the app or the
    connection ``counted_by`` in Flower's own configuration says so. ``command`` is the ``flwr run`` that the caller
    gave, if any, and ``hold_out`` the share of each client's examples that it is kept from training on. ``server`` is
    one of :data:`SERVERS` that departs from the protocol, or empty. ``device`` is ``cpu`` to keep simulated clients off
    the GPUs. ``numbers`` are those of its whole run config, for the report; texts may be secrets.
    """

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    supernodes: int = SUPERNODES
    counted: bool = True
    counted_by: str = ""
    seeded: bool = False
    command: FlwrRun | None = None
    hold_out: float = 0.0
    server: str = ""
    device: str = "auto"
    numbers: Mapping[str, bool | int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.server not in ("", *SERVERS):
            raise ConfigError(f"--server {self.server}: expected {' or '.join(SERVERS)}")
        if not 0 <= self.hold_out <= MOST_HELD_OUT:
            raise ConfigError(
                f"--hold-out {self.hold_out:g}: expected a share of each client's examples from 0 to {MOST_HELD_OUT}, "
                "such as 0.1"
            )

    @property
    def keep(self) -> int:
        """How many examples of each role are kept of a client."""
        # Memory for all clients' examples together is bounded: many clients keep fewer each.
        return min(max(_KEPT // self.supernodes, _KEPT_LEAST), _KEPT_MOST)

    @cached_property
    def code(self) -> str:
        """The SHA-256 of the app's code, as it is when this is asked first."""
        return hash_code(self.folder)


def is_app(word: str) -> bool:
    """Say whether a word of the command line names an app's folder, and not a preset; one that is both is refused."""
    word = word.removesuffix("/pyproject.toml")
    # A path by its looks is taken for a folder, also where none is there, so that the message is about a folder.
    is_path = "/" in word or "\\" in word or word in (".", "..") or word.startswith("~")
    there = (Path(word) / "pyproject.toml").is_file()
    if not is_path and there and word in preset_names():
        raise ConfigError(f"{word} is both a preset and the folder of an app: write ./{word} for the folder")
    return is_path or (Path(word).is_dir() and word not in preset_names())


def app_of(folder: Path, changes: Sequence[str] = (), supernodes: int | None = None) -> App:
    """Read an app, with what is set of its run config, and how many clients the caller wants."""
    # Whoever names a preset that there is not is told so before Flower is imported.
    from flwr.common.config import flatten_dict

    folder = folder.expanduser().resolve()
    if folder.name == "pyproject.toml":
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; {_suggest_folder(folder)}give the folder of a Flower app")
    project = read_app(folder)
    flower = project["tool"]["flwr"]
    known: dict[str, Any] = {}
    if isinstance(config := flower["app"].get("config"), dict):
        # Flower flattens nested tables of a run config to keys with dots: so does --set.
        known = flatten_dict(config)
    # In this order: the caller, the app, Flower's own configuration of this machine.
    declared, counted_by = supernodes or _read_declared_supernodes(flower.get("federations")), ""
    if declared is None:
        declared, counted_by = _read_configured_supernodes()
    count, counted = declared or SUPERNODES, declared is not None
    changed = _read_changes(known, changes, folder)
    numbers = _list_numbers({**known, **changed})
    return App(folder, changed, count, counted, counted_by, "seed" in known, numbers=numbers)


def _list_numbers(config: Mapping[str, Any]) -> dict[str, bool | int | float]:
    """List the numbers of a run config; the seed is that of each run."""
    numbers: dict[str, bool | int | float] = {}
    for key, value in config.items():
        if key != "seed" and isinstance(value, bool | int | float) and abs(value) < _LARGEST:
            numbers[key] = value
    return numbers


def _suggest_folder(folder: Path) -> str:
    """Name the app whose folder is spelt much like one that is not there; empty if there is none."""
    if not folder.parent.is_dir():
        return ""
    apps = [path.parent.name for path in folder.parent.glob("*/pyproject.toml")]
    near = get_close_matches(folder.name, apps, n=1)
    return f"did you mean {near[0]}? " if near else ""


def app_of_command(words: Sequence[str]) -> App:
    """Read the app that a ``flwr run`` runs, which must last as long as its run."""
    command = FlwrRun.parse(words)
    if not command.streams:
        raise ConfigError(f"{' '.join(words)} does not wait for the end of its run; add --stream")
    return App(app_of(command.app).folder, command=command)


def _read_declared_supernodes(federations: Any) -> int | None:
    """Return the number of SuperNodes of the app's default federation, or of its only one that says so."""
    if not isinstance(federations, dict):
        return None
    counts = {}
    for name, federation in federations.items():
        try:
            count = federation["options"]["num-supernodes"]
        except (TypeError, KeyError):
            continue
        # `type` and not isinstance: true is no number of SuperNodes.
        if type(count) is int and count > 0:
            counts[name] = count
    if len(counts) == 1:
        return next(iter(counts.values()))
    # The default of several federations counts, if the file names one.
    return counts.get(str(federations.get("default")))


def _read_configured_supernodes() -> tuple[int | None, str]:
    """Return how many SuperNodes Flower's default connection has, and where that is said.

    Since version 1.26 ``flwr run`` moves an app's federations into a file of the user's, and comments them out.
    """
    path = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "config.toml"
    try:
        connections = tomllib.loads(path.read_text(encoding="utf-8")).get("superlink", {})
        name = connections.get("default")
        # A connection of a simulation has the same form as a federation of an app.
        count = _read_declared_supernodes({"default": name, name: connections.get(name)})
    except (OSError, ValueError, AttributeError, TypeError):
        # Flower itself says what is wrong with it.
        return None, ""
    if count is None:
        return None, ""
    return count, f"{path}: superlink.{name}"


def _read_changes(known: Mapping[str, Any], changes: Sequence[str], folder: Path) -> dict[str, Any]:
    changed = {}
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator:
            raise ConfigError(f"--set {change}: expected key=value")
        if key not in known:
            there = "it has no keys"
            if known:
                there = instead(key, sorted(known))
            raise ConfigError(f"--set {change}: {folder.name} has no {key!r} in its run config: {there}")
        changed[key] = _value(known[key], text, change)
    return changed


def _value(default: Any, text: str, change: str) -> Any:
    """Read a value as one of the default's type."""
    if isinstance(default, str):
        return text
    try:
        # TOML has the types of a run config; what it does not read stays a text.
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    # 1 is given where 1.0 is the default.
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if type(value) is not type(default):
        raise ConfigError(f"--set {short(change, 80)}: expected a value like {default!r}")
    return value
