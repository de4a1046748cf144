"""A frozen dataclass is its own form on disk: what is read is of this form, or refused in one line.

A field is of a kind that JSON has, with pydantic's limits, or of NumPy arrays, with :class:`Axes`::

    @dataclass(frozen=True, eq=False)
    class MovedRows:
        clients: Annotated[tuple[Name, ...], Field(min_length=1)]
        rows: Annotated[NDArray[np.int64], Axes("named", low=0)]
        whose: Annotated[NDArray[np.int64], Axes("named", low=0)]
        seen: Annotated[NDArray[np.bool_], Axes("clients")]

Axes of one name have one length, as ``named`` here. An axis with the name of a tuple, such as ``clients``, has the
length of the tuple.

In JSON each field is a key, in the order of the fields. It must be there, whatever the field's default in Python, but
for what is :data:`OPTIONAL`. Tuples are lists, and dataclasses are objects. Arrays go by their field's name; those of a
dataclass within another have the field's name and ``_`` before theirs. A class may have a method ``fault`` that says
what else is wrong with what was read, or nothing.

What writes is :func:`split`. What reads:

- JSON alone: :func:`form_of`, as the adapter of :func:`fedattack.base.untrusted.read_sealed`;
- an ``.npz``: :func:`read_arrays`;
- JSON with files beside it, of which it has the digests: :func:`read_with_files`, after :func:`write_with_files`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, TypeAdapter, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from fedattack.base.axes import ANY_KIND, ArrayKind, Axes, is_mapping
from fedattack.base.errors import short
from fedattack.base.files import write_sealed
from fedattack.base.untrusted import (
    MAX_EXAMPLES_INFLATED,
    UNFIT,
    Error,
    NpzFile,
    Text,
    open_npz,
    parse_json,
    read_sealed,
    validate,
    verify_files,
)

__all__ = [
    "ANY_KIND",
    "APART",
    "OPTIONAL",
    "AsJson",
    "Axes",
    "Count",
    "Finite",
    "OptionalKey",
    "check_arrays",
    "form_of",
    "keys_of",
    "read_arrays",
    "read_with_files",
    "split",
    "typed_dict",
    "write_with_files",
]

T = TypeVar("T")

_STRICT = ConfigDict(extra="forbid", strict=True)
Count = Annotated[int, Field(ge=0, le=2**50)]
"""How many there are of something."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A number."""

Number = Annotated[int, Field(ge=-(2**53), le=2**53)]
"""A whole number that any JSON reader takes."""

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""A part of something."""

Name = Annotated[str, StringConstraints(max_length=1024)]
"""What something is called."""


def _give(value: T) -> T:
    return value


def _is_stored(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


@dataclass(frozen=True)
class OptionalKey:
    """Marks a key that is left out of the JSON where its field has its default.

    Attributes
    ----------
    beside
        A field by which the key is left out in this one's place: where that field has its default.
    """

    beside: str = ""


OPTIONAL = OptionalKey()
"""A key that is left out of the JSON where its field has its default, and that may be missing."""


@dataclass(frozen=True)
class AsJson:
    """How a field of another kind stands in JSON.

    Attributes
    ----------
    form
        What stands there, with its limits.
    write, read
        Make that of the field's value, and the other way round; ``read`` may raise a ValueError.
    """

    form: Any
    write: Callable[[Any], Any] = _give
    read: Callable[[Any], Any] = _give


class _Apart:
    """The kind of :data:`APART`."""


APART = _Apart()
"""Marks a field that lies in a file of its own, which whoever writes and reads the dataclass takes care of."""


@dataclass(frozen=True)
class _StoredField:
    """A field: its type with and without what is annotated, and what is said of it."""

    name: str
    hint: Any
    kind: Any
    default: Callable[[], Any] | None
    axes: Axes | None
    array: ArrayKind
    json: AsJson | None
    optional: OptionalKey | None
    is_apart: bool

    @property
    def inner(self) -> Any:
        """The dataclass with arrays that the field is; ``None`` if it is none."""
        if self.axes is None and _is_stored(self.kind) and _has_arrays(self.kind):
            return self.kind
        return None

    @property
    def array_name(self) -> str:
        """The name of the field's array on disk."""
        return (self.axes and self.axes.called) or self.name

    def has_default(self, value: Any) -> bool:
        """Whether an object's field has its default."""
        return self.default is not None and bool(getattr(value, self.name) == self.default())

    def find(self, names: Collection[str], before: str) -> list[str]:
        """Return which arrays of a file are this field's."""
        if self.axes is not None and self.array.is_mapping:
            return [name for name in names if name.startswith(f"{before}{self.axes.prefix}")]
        return [name for name in (f"{before}{self.array_name}",) if name in names]


@cache
def _fields_of(cls: Any) -> tuple[_StoredField, ...]:
    hints = get_type_hints(cls, include_extras=True)
    stored = []
    for field in fields(cls):
        hint = hints[field.name]
        kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        default: Callable[[], Any] | None = None
        if field.default_factory is not MISSING:
            default = field.default_factory
        elif field.default is not MISSING:
            default = partial(_give, field.default)
        axes, json, optional = (_find_mark(marks, sort) for sort in (Axes, AsJson, OptionalKey))
        array = ArrayKind() if axes is None else ArrayKind.of(kind, axes)
        is_apart = _find_mark(marks, _Apart) is not None
        stored.append(_StoredField(field.name, hint, kind, default, axes, array, json, optional, is_apart))
    return tuple(stored)


def _find_mark(marks: Iterable[Any], sort: type[Any]) -> Any:
    return next((mark for mark in marks if isinstance(mark, sort)), None)


@cache
def _has_arrays(cls: Any) -> bool:
    return any(field.axes is not None or field.inner is not None for field in _fields_of(cls) if not field.is_apart)


def form_of(cls: type[T]) -> TypeAdapter[T]:
    """Return the form of a dataclass without arrays as JSON; what is validated by it is an object of it."""
    dataclass_: Any = cls
    return _adapter_of(dataclass_)


@cache
def _adapter_of(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_form(cls))


@cache
def _keys_adapter_of(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(keys_of(cls))


typed_dict: Any = TypedDict
"""A TypedDict of keys that are known when the program runs, which mypy would not take."""


@cache
def keys_of(cls: Any, **further: Any) -> Any:
    """Describe the keys of a dataclass's JSON to pydantic, and ``further`` ones, which may be missing.

    What is validated by that is a dict of the fields.
    """
    keys: dict[str, Any] = {}
    for field in _fields_of(cls):
        if field.axes is not None or field.is_apart:
            continue
        # A default of Python's is none of the file's: a file that lacks the key is damaged.
        if field.optional is None:
            keys[field.name] = _form(field.hint)
        else:
            keys[field.name] = NotRequired[_form(_without_none(field.hint))]
    keys |= {name: NotRequired[form] for name, form in further.items()}
    config = getattr(cls, "__pydantic_config__", _STRICT)
    return with_config(config)(typed_dict(cls.__name__, keys))


def _without_none(hint: Any) -> Any:
    """Return a type without ``None``, in whose place the key is left out."""
    kind, *marks = get_args(hint)
    if get_origin(kind) in (Union, UnionType):
        kind = Union[tuple(part for part in get_args(kind) if part is not NoneType)]  # noqa: UP007 - as below
    return Annotated[kind, *marks]


def _form(kind: Any, *limits: Any) -> Any:
    """Describe to pydantic how a type stands in JSON; ``limits`` hold of that, before Python's kind is made of it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        marks = inner[1:]
        if by_hand := _find_mark(marks, AsJson):
            return Annotated[by_hand.form, AfterValidator(partial(_read_by, by_hand.read))]
        return _form(inner[0], *(mark for mark in marks if not isinstance(mark, OptionalKey | _Apart)))
    making: tuple[Any, ...] = ()
    # Strict pydantic takes no list for a tuple, and no dict for a dataclass. So it is told of lists and dicts, as JSON
    # has them, and what is made of these comes after: its limits, and its stop at the first fault, hold before.
    if origin is tuple:
        making = (AfterValidator(tuple),)
        if inner[-1] is not Ellipsis:
            limits = (*limits, Field(min_length=len(inner), max_length=len(inner)))
        kind = list[_form(inner[0])]  # type: ignore[misc]  # all entries are of one type
    elif origin in (Union, UnionType):
        kind = Union[tuple(map(_form, inner))]  # noqa: UP007 - of types that are known here alone
    elif is_mapping(kind):
        kind = dict[_form(inner[0]), _form(inner[1])]  # type: ignore[misc]
    elif _is_stored(kind):
        if not _has_arrays(kind):
            making = (AfterValidator(partial(_make, kind)),)
        kind = keys_of(kind)
    return Annotated[kind, *limits, *making] if limits or making else kind


def _read_by(read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except ValueError as cause:
        raise _unfit(str(cause)) from None


def _unfit(wrong: str) -> PydanticCustomError:
    # The text goes in as a value: pydantic would look for names in braces in a template.
    return PydanticCustomError(UNFIT, "{wrong}", {"wrong": wrong})


@cache
def _with_files(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(keys_of(cls, files=dict[Text, Text]))


def write_with_files(path: Path, value: Any, files: Mapping[str, str]) -> None:
    """Write a dataclass as JSON, with the SHA-256 of the ``files`` beside it."""
    write_sealed(path, {**split(value)[0], "files": dict(files)})


def read_with_files(cls: Any, path: Path, error: Error, hint: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read what :func:`write_with_files` wrote, or raise ``error`` in one line that ends with ``hint``.

    Returned are the dataclass's fields that lie in the JSON, and the files with their digests, which they match.
    """
    values = read_sealed(path, _with_files(cls), error, hint)
    files = values.pop("files", {})
    verify_files(path.parent, files, error, path)
    return values, files


def _make(cls: Callable[..., T], values: Mapping[str, Any], before: str = "") -> T:
    """Make an object of the values of its fields; a ValueError says, after ``before``, what is wrong with it."""
    made = cls(**values)
    explain = getattr(made, "fault", None)
    if explain is not None and (wrong := explain()):
        raise _unfit(f"{before}{wrong}")
    return made


def split(value: Any, before: str = "") -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what of a dataclass is JSON, and its arrays by name, which begin with ``before``."""
    entry: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    cls: Any = type(value)
    known = {field.name: field for field in _fields_of(cls) if not field.is_apart}
    for field in known.values():
        content = getattr(value, field.name)
        if field.axes is not None:
            arrays |= _arrays_of(field, content, before)
        elif field.inner is not None:
            entry[field.name], further = split(content, f"{before}{field.name}_")
            arrays |= further
        elif field.optional is None or not known[field.optional.beside or field.name].has_default(value):
            entry[field.name] = field.json.write(content) if field.json else _plain(content)
    return entry, arrays


def _plain(value: Any) -> Any:
    """Write a value in kinds that JSON has."""
    if is_dataclass(value):
        return split(value)[0]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return value


def _arrays_of(field: _StoredField, content: Any, before: str) -> dict[str, NDArray[Any]]:
    if content is None:
        return {}
    if field.axes is not None and field.array.is_mapping:
        return {f"{before}{field.axes.prefix}{name}": array for name, array in content.items()}
    if not isinstance(content, np.ndarray):
        content = np.array(content, dtype=field.array.dtype or np.str_)
    return {f"{before}{field.array_name}": content}


class _GivenArrays:
    """Arrays that are in memory, in the place of a file."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self.names = tuple(arrays)

    def look(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        return self._arrays[name].dtype, self._arrays[name].shape

    def read(self, name: str, most: float) -> NDArray[Any]:
        return self._arrays[name]


class _ArraysRead:
    """The arrays of a file, but for its ``text``, that are a dataclass's; ``refuse`` makes the error of a fault."""

    def __init__(
        self, file: NpzFile | _GivenArrays, text: str, most: float, refuse: Callable[[str], Exception]
    ) -> None:
        self._file = file
        self._names = tuple(name for name in file.names if name != text)
        self._most = most
        self._refuse = refuse
        self._seen: dict[str, tuple[_StoredField, tuple[Any, ...]]] = {}
        self._arrays: dict[str, NDArray[Any]] = {}
        # By array how long the list is that its numbers are indices into.
        self._lengths: dict[str, int] = {}

    def look(self, cls: Any, values: Mapping[str, Any], known: Mapping[str, int], before: str = "") -> None:
        """Hold types and shapes against the form, and take no memory; ``known`` are lengths of axes."""
        # A tuple in the JSON lists what lies along the axis of its name.
        sizes = {**known, **{name: len(value) for name, value in values.items() if isinstance(value, tuple)}}
        for field in _fields_of(cls):
            if field.inner is not None:
                self.look(field.inner, values[field.name], known, f"{before}{field.name}_")
            if field.axes is None:
                continue
            names = field.find(self._names, before)
            if not names and not field.array.may_lack:
                raise self._refuse(f"there is no array {before}{field.axes.prefix}…")
            for name in names:
                seen = self._file.look(name)
                if wrong := field.axes.explain_misfit(*seen, field.array.kinds, sizes):
                    raise self._refuse(f"{short(name, 60)}: {wrong}")
                self._seen[name] = field, seen
                if field.axes.into:
                    self._lengths[name] = len(values[field.axes.into])

    def read(self) -> None:
        """Read what was looked at, and hold values against the form."""
        for name, (field, seen) in self._seen.items():
            # Memory is taken here, and nowhere before.
            array, dtype = self._file.read(name, self._most), field.array.dtype
            if (array.dtype, array.shape) != seen:
                raise self._refuse(f"{short(name, 60)} changed while it was read")
            if field.axes is not None and (wrong := field.axes.explain_values(array, dtype)):
                raise self._refuse(f"{short(name, 60)}: {wrong}")
            length = self._lengths.get(name)
            if length is not None and array.max(initial=-1) >= length:
                raise self._refuse(f"{short(name, 60)}: expected indices below {length}, got {array.max()}")
            self._arrays[name] = array if dtype is None else array.astype(dtype, copy=False)

    def join(self, cls: Any, values: Mapping[str, Any], before: str = "") -> Any:
        """Make an object of its JSON and its arrays."""
        joined = dict(values)
        for field in _fields_of(cls):
            if field.inner is not None:
                joined[field.name] = self.join(field.inner, values[field.name], f"{before}{field.name}_")
            elif field.axes is not None:
                made = {name: field.array.make(self._arrays[name]) for name in field.find(self._arrays, before)}
                if made and field.array.is_mapping:
                    begins = len(f"{before}{field.axes.prefix}")
                    joined[field.name] = {name[begins:]: array for name, array in made.items()}
                elif made:
                    (joined[field.name],) = made.values()
        try:
            return _make(cls, joined, before)
        except PydanticCustomError as cause:
            raise self._refuse(cause.message()) from None


def read_arrays(
    cls: Callable[..., T],
    path: Path,
    error: Error,
    hint: str,
    *,
    text: str = "",
    inside: Callable[[Any], Any] = _give,
    sizes: Mapping[str, int] | None = None,
    most: float = np.inf,
    inflated: int = MAX_EXAMPLES_INFLATED,
) -> T:
    """Read a dataclass with arrays from an ``.npz``, or raise ``error`` in one line that ends with ``hint``.

    Types and shapes of all its arrays are looked at before memory is taken for any. Others in the file are not read.

    Parameters
    ----------
    text
        The array that holds the JSON of all else, as a text or as bytes; none where all fields are arrays.
    inside
        Returns the dataclass's own part of that JSON, where it is not all.
    sizes
        Lengths of axes that are known otherwise.
    most, inflated
        As for :func:`fedattack.base.untrusted.read_npz`.
    """
    with open_npz(path, error, hint, inflated=inflated) as file:
        _check_there(file, [*filter(None, [text]), *_list_needed(cls)], path, error, hint)
        values: dict[str, Any] = {}
        if text:
            where = f"{path}: {text}"
            part = inside(_parse_array(file.read(text), where, error, hint))
            values = validate(_keys_adapter_of(cls), part, where, error, hint)
        arrays = _ArraysRead(file, text, most, lambda wrong: error(f"{path}: {wrong}; {hint}"))
        arrays.look(cls, values, sizes or {})
        arrays.read()
    made: T = arrays.join(cls, values)
    return made


def check_arrays(
    cls: Callable[..., T],
    arrays: Mapping[str, NDArray[Any]],
    where: object,
    error: Error,
    hint: str,
    *,
    entry: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> T:
    """Make a dataclass of arrays that are in memory, and of an ``entry``, the JSON of all else, as it was parsed.

    Refuses the same as :func:`read_arrays`.
    """
    given = _GivenArrays(arrays)
    _check_there(given, _list_needed(cls), where, error, hint)
    values: dict[str, Any] = validate(_keys_adapter_of(cls), entry or {}, str(where), error, hint)
    checked = _ArraysRead(given, "", np.inf, lambda wrong: error(f"{where}: {wrong}; {hint}"))
    checked.look(cls, values, sizes or {})
    checked.read()
    made: T = checked.join(cls, values)
    return made


def _check_there(file: NpzFile | _GivenArrays, needed: Collection[str], where: object, error: Error, hint: str) -> None:
    lacking = [name for name in needed if name not in file.names]
    if lacking:
        raise error(f"{where}: expected the arrays {' and '.join(needed)}, but there is no {lacking[0]!r}; {hint}")


def _parse_array(array: NDArray[Any], where: str, error: Error, hint: str) -> Any:
    if array.dtype == np.uint8 and array.ndim == 1:
        content: bytes | str = array.tobytes()
    elif array.dtype.kind == "U" and array.ndim == 0:
        content = str(array)
    else:
        raise error(f"{where}: expected bytes or a text, got {short(str(array.dtype), 60)} {array.shape}; {hint}")
    try:
        return parse_json(content)
    except ValueError as cause:
        raise error(f"{where} is not valid JSON ({short(str(cause), 100)}); {hint}") from None


def _list_needed(cls: Any, before: str = "") -> list[str]:
    """Name the arrays that must be there."""
    needed = []
    for field in _fields_of(cls):
        if field.inner is not None:
            needed += _list_needed(field.inner, f"{before}{field.name}_")
        elif field.axes is not None and not field.array.may_lack and not field.array.is_mapping:
            needed.append(f"{before}{field.array_name}")
    return needed
