"""Settings: fields of a model that say their type, bounds, default and help once.

``rounds: int = setting(20, "rounds of training", ge=1)`` is the key ``rounds`` of a run config, and ``--set rounds=5``
sets it. A ``_`` in a field's name is a ``-`` in its key.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, Self, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fedattack.base.errors import ConfigError, instead, short

Value = str | int | float | bool
"""Value of a setting in the run config."""

_BOUNDS = {
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "greater_than": "more than {gt}",
    "less_than": "less than {lt}",
}
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "texts with commas between",
}

_LIMITS = {"ge": ", {} or more", "gt": " above {}", "le": ", {} or less", "lt": ", below {}"}
"""How a bound is said behind the kind of a number."""


@dataclass(frozen=True)
class Words:
    """Which words a text may be; one of several with commas between, if there may be ``several``.

    A word that ends with a colon is the beginning of a text; a colon alone stands for any import path.
    """

    values: tuple[str, ...]
    several: bool = False

    def check(self, text: str) -> None:
        """Check a text.

        Raises
        ------
        ConfigError
            If it is another; says which it may be.
        """
        begins = tuple(value for value in self.values if len(value) > 1 and value.endswith(":"))
        words = list(filter(None, map(str.strip, text.split(",")))) if self.several else [text]
        for word in words:
            # A word with a colon may be an import path, where ":" is among the values.
            is_import = ":" in self.values and ":" in word
            if word not in self.values and not word.startswith(begins) and not is_import:
                raise ConfigError(f"{short(word, 60)!r}: {instead(word, self.values)}")


def setting(
    default: Value | tuple[str, ...] | None,
    help: str,  # noqa: A002 the word that users read
    *,
    key: str | None = None,
    alias: str = "",
    internal: bool = False,
    words: Words | None = None,
    read: Callable[[str], Any] | None = None,
    **bounds: float,
) -> Any:
    """Declare a setting.

    Parameters
    ----------
    default
        ``None`` where it is chosen later, by what it is about; the field's annotation then says its type.
    key, alias
        Its key where that is not its field's name, and a second name for it.
    internal
        Whether no user may choose it.
    words
        Which words it may be besides its default; a field whose type is a ``Literal`` says them by that.
    read
        Reads it from a text that is no plain number or word; raises a ConfigError that says what was expected.
    bounds
        ``ge``, ``le``, ``gt``, ``lt``.
    """
    extra: dict[str, Any] = {"alias": alias, "internal": internal, "words": words, "reader": read, "bounds": bounds}
    return Field(default, alias=key, description=help, json_schema_extra=extra, **bounds)  # type: ignore[call-overload]


@dataclass(frozen=True)
class SettingField:
    """One key of a run config, as its field declares it; see :func:`setting`."""

    name: str
    kind: type
    default: Any
    help: str
    alias: str
    internal: bool
    words: Words | None
    reader: Callable[[str], Any] | None
    bounds: Mapping[str, float]
    adapter: TypeAdapter[Any]

    @property
    def values(self) -> tuple[str, ...]:
        """The words that it may be; none where it is no word."""
        return self.words.values if self.words else ()

    @property
    def expected(self) -> str:
        """What it may be, in words."""
        if self.values:
            number = "some" if self.kind is tuple else "one"
            return f"{number} of {', '.join(self.values)}"
        return _KINDS[self.kind] + "".join(_LIMITS[name].format(bound) for name, bound in self.bounds.items())

    def read(self, text: str) -> Any:
        """Read a value for a caller that says itself of what it is; a ConfigError says what was expected."""
        if self.reader is not None:
            return self.reader(text)
        try:
            value = self.adapter.validate_python(self._convert(text))
            self._check_words(value)
        except (ConfigError, ValueError):
            raise ConfigError(f"expected {self.expected}") from None
        return value

    def parse(self, text: str) -> Value:
        """Read a value from the command line; a ConfigError if it is of another type, or out of range."""
        # Texts need no conversion, and "true" may be one.
        if self.kind is str:
            return self.check(text)
        try:
            return self.check(self._convert(text))
        except ValueError:
            what = _KINDS[self.kind]
            if self.kind is not bool:
                what += f" ({self.help})"
            raise ConfigError(f"--set {self.name}={text}: expected {what}") from None

    def _convert(self, text: str) -> Any:
        """Return a text as the field's type; a ValueError if it is none."""
        if self.kind is tuple:
            return tuple(map(str.strip, text.split(",")))
        if self.kind is not bool:
            return self.kind(text)
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"

    def check(self, value: object) -> Value:
        """Return ``value``, in the field's type, if it may be taken.

        Raises
        ------
        ConfigError
            If it is of another type or out of range.
        """
        try:
            checked: Value = self.adapter.validate_python(value)
        except ValidationError as cause:
            # Pydantic's first error alone: there is one value.
            error = cause.errors(include_url=False)[0]
            expected = _BOUNDS.get(error["type"], _KINDS[self.kind]).format(**error.get("ctx", {}))
            raise ConfigError(f"{self.name} = {short(repr(value), 60)}: expected {expected} ({self.help})") from None
        # A default need not be one of the words, such as an empty text.
        if checked != self.default:
            try:
                self._check_words(checked)
            except ConfigError as cause:
                raise ConfigError(f"{self.name} = {cause}") from None
        return checked

    def _check_words(self, value: object) -> None:
        if self.words is not None:
            for word in value if isinstance(value, tuple) else (str(value),):
                self.words.check(word)


class SettingsModel(BaseModel):
    """Some settings together, such as a defence's; what has several kinds of settings is a model of them all."""

    model_config = ConfigDict(frozen=True, alias_generator=lambda name: name.replace("_", "-"))

    @classmethod
    def list_settings(cls) -> dict[str, SettingField]:
        """Return what each key may be."""
        return dict(_settings_of(cls))

    @classmethod
    def of(cls, run_config: Mapping[str, Any]) -> Self:
        """Read a run config, which may leave out what has a default.

        Raises
        ------
        ConfigError
            If a key is unknown, or a value of another type or out of range.
        """
        known = _settings_of(cls)
        for key in run_config:
            if key not in known:
                words = instead(key, known, listed="settings")
                raise ConfigError(f"unknown setting {short(key, 60)!r}: {words}")
        return cls(**{key: known[key].check(value) for key, value in run_config.items()})

    def replace(self, **changes: Any) -> Self:
        """Return these settings with some changed."""
        return self.model_copy(update=changes)

    def by_key(self, keys: Iterable[str]) -> dict[str, Value]:
        """Return the settings of some keys of the run config, by key."""
        values = self.model_dump(by_alias=True)
        return {key: values[key] for key in keys}


@cache
def _settings_of(model: type[SettingsModel]) -> Mapping[str, SettingField]:
    settings = {}
    for info in model.model_fields.values():
        extra, name, kind = dict(cast(dict[str, Any], info.json_schema_extra)), str(info.alias), _find_kind(info)
        if listed := _list_words(info.annotation):
            extra["words"] = Words(listed)
        # Field() in front: pydantic then reads the bounds from the metadata.
        bounded: Any = Annotated[kind, Field(), *info.metadata]
        adapter: TypeAdapter[Any] = TypeAdapter(bounded, config=_STRICT)
        settings[name] = SettingField(name, kind, info.default, info.description or "", **extra, adapter=adapter)
    return settings


def _list_words(annotation: Any) -> tuple[str, ...]:
    """List the words of a type such as ``Literal["cos", "l2"]``, which may stand within another."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return inner
    return tuple(word for each in inner for word in _list_words(each))


def _find_kind(info: FieldInfo) -> type:
    """Return the type of a field's values: of its default, or, where that is ``None``, what else it may be."""
    if info.default is not None:
        return type(info.default)
    # One type beside None.
    (kind,) = [each for each in get_args(info.annotation) if each is not NoneType]
    if get_origin(kind) is Literal:
        return str
    return cast(type, kind)
