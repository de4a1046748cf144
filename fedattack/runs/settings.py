"""The settings of the app: their types and ranges, and which of them name something outside of a run."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedattack.base.errors import ConfigError, instead, short
from fedattack.runs.app import Value, app_folder

LISTS = ("models",)
"""Settings with ``values`` that may be several words, with commas between."""


@dataclass(frozen=True)
class Setting:
    """One key that a preset or ``--set`` may change; ``alias`` is a second name for it.

    Where there are ``values``, a text is one of these words, or the default; in :data:`LISTS` it may be several. A word
    that ends with a colon is the beginning of a text; a colon alone stands for any import path.
    """

    name: str
    default: Value
    help: str
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    internal: bool = False
    alias: str = ""
    values: Sequence[str] = ()

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
        if self.values and value != self.default:
            for word in self._words(str(value)):
                if not self._takes(word):
                    raise ConfigError(f"{self.name} = {word!r}: {instead(word, self.values, listed=False)}")
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

    def _words(self, text: str) -> list[str]:
        if self.name not in LISTS:
            return [text]
        return list(filter(None, map(str.strip, text.split(","))))

    def _takes(self, word: str) -> bool:
        begins = tuple(value for value in self.values if len(value) > 1 and value.endswith(":"))
        return word in self.values or word.startswith(begins) or (":" in self.values and ":" in word)


def load_settings() -> dict[str, Setting]:
    """Read all settings of the app."""
    table = tomllib.loads((app_folder() / "simulations" / "settings.toml").read_text(encoding="utf-8"))
    return {name: Setting(name=name, **entry) for name, entry in table.items()}


def open_settings() -> dict[str, Setting]:
    """Read those that a user may choose."""
    return {name: setting for name, setting in load_settings().items() if not setting.internal}


def default_settings() -> dict[str, Value]:
    """Return what these are where nobody chooses."""
    return {name: setting.default for name, setting in open_settings().items()}


IMPORTS = ("model", "models", "student")
"""Settings that may be import paths; ``models`` is a list, separated by commas."""

FOLDERS = ("data-root", "recup-zoo")
"""Settings that are folders."""

PATHS = ("dataset", "public", *FOLDERS)
"""Settings that may be paths."""


def nodes_of(settings: Mapping[str, Value]) -> int:
    """Return how many nodes a run has: its clients, and canaries beside them."""
    return int(settings["clients"]) + int(settings["canaries"])


def leads_out(settings: Mapping[str, Value]) -> dict[str, str]:
    """List what settings name beyond themselves: code to import, files to read; by what is named, the setting."""
    found: dict[str, str] = {}
    for key in IMPORTS:
        words = str(settings.get(key, "")).split(",")
        found |= {word.strip(): key for word in words if ":" in word}
    for key in PATHS:
        text = str(settings.get(key, ""))
        is_name = key not in FOLDERS and "/" not in text and not text.endswith((".npz", ".toml"))
        if text and not is_name:
            found[text] = key
    return found


def check_settings(values: Mapping[str, Value], where: str) -> dict[str, Value]:
    """Check settings that were read from a file, which has all of them.

    Raises
    ------
    ConfigError
        If a setting is unknown, internal or not there, or its value is of another type or out of range.
    """
    known = open_settings()
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}: unknown setting {short(key, 60)!r}; the file was changed")
    for key in known:
        if key not in values:
            raise ConfigError(f"{where}: the setting {key!r} is not there; the file was changed")
    try:
        return {name: setting.check(values[name]) for name, setting in known.items()}
    except ConfigError as cause:
        raise ConfigError(f"{where}: {cause}") from None
