"""A dataclass is written and read as it is declared, and nothing else is read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, with_config

from fedattack.base.errors import DataError
from fedattack.base.files import write_npz, write_sealed
from fedattack.base.stored import (
    OPTIONAL,
    AsJson,
    Axes,
    OptionalKey,
    check_arrays,
    form_of,
    keys_of,
    read_arrays,
    split,
)
from fedattack.base.untrusted import parse_json, read_sealed, validate

HINT = "write it again"
Name = Annotated[str, StringConstraints(max_length=8)]
Count = Annotated[int, Field(ge=0, le=100)]


@dataclass(frozen=True)
class Table:
    name: Name
    shape: Annotated[tuple[Count, ...], Field(max_length=3)]
    range: tuple[float, float] = (0.0, 1.0)

    def fault(self) -> str:
        return "the least is above the largest" if self.range[0] > self.range[1] else ""


@dataclass(frozen=True)
class Model:
    name: Name
    tables: Annotated[tuple[Table, ...], Field(min_length=1)]
    of: Mapping[Name, tuple[Name, ...]]
    counts: Annotated[
        Mapping[int, int],
        AsJson(
            dict[Name, Count],
            lambda counts: {str(key): count for key, count in counts.items()},
            lambda read: {int(key): count for key, count in read.items()},
        ),
    ]
    best: Table | None = None
    lr: Annotated[float | None, OPTIONAL] = None
    weight: Annotated[float, OptionalKey(beside="lr")] = 0.5


MODEL = Model("net", (Table("a", (2, 3)), Table("b", ())), {"a": ("x", "y")}, {3: 4}, lr=0.1)


def altered(**changes: Any) -> dict[str, Any]:
    entry = parse_json(json.dumps(split(MODEL)[0]))
    return entry | changes


def test_json_is_read_as_it_is_written(tmp_path):
    entry, arrays = split(MODEL)
    assert not arrays
    assert [*entry] == ["name", "tables", "of", "counts", "best", "lr", "weight"]
    assert entry["tables"][0] == {"name": "a", "shape": [2, 3], "range": [0.0, 1.0]}
    write_sealed(tmp_path / "model.json", entry)
    assert read_sealed(tmp_path / "model.json", form_of(Model), DataError, HINT) == MODEL


def test_what_is_optional_is_left_out_where_it_has_its_default():
    plain = Model("net", MODEL.tables, {}, {})
    entry, _ = split(plain)
    assert [*entry] == ["name", "tables", "of", "counts", "best"]
    assert validate(form_of(Model), entry, "it", DataError, HINT) == plain


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "a" * 9}, "name: string should have at most 8 characters"),
        ({"tables": []}, "tables: list should have at least 1 item"),
        ({"tables": "a"}, "tables: input should be a valid list"),
        (
            {"tables": [{"name": "a", "shape": [1, 1, 1, 1], "range": [0, 1]}]},
            r"tables.0.shape: list should have at most 3",
        ),
        ({"tables": [{"name": "a", "shape": [101], "range": [0, 1]}]}, r"tables.0.shape.0: input should be less than"),
        ({"tables": [{"name": "a", "shape": [], "range": [0, 1, 2]}]}, r"tables.0.range: list should have at most 2"),
        ({"tables": [{"name": "a", "shape": []}]}, r"tables.0.range is missing"),
        ({"best": {"name": "a", "shape": [], "range": [2, 1]}}, "best: the least is above the largest; write"),
        ({"of": {"a": ["x", 1]}}, r"of.a.1: input should be a valid string"),
        ({"counts": {"a": 1}}, "counts: invalid literal for int.*; write"),
        ({"counts": {"1": 101}}, "counts.1: input should be less than or equal to 100"),
        ({"lr": "0.1"}, "lr: input should be a valid number"),
        ({"lr": None}, "lr: input should be a valid number, got None"),
        ({"more": 1}, "more: extra inputs are not permitted"),
        ({str(index): 0 for index in range(1000)}, "dictionary should have at most 23 items"),
    ],
)
def test_other_json_is_refused_in_a_line(changes, says):
    with pytest.raises(DataError, match=says) as raised:
        validate(form_of(Model), altered(**changes), "it", DataError, HINT)
    assert str(raised.value).startswith("it: ")
    assert str(raised.value).endswith(HINT)


def test_reading_stops_at_the_first_fault():
    """Of a million faults each would take memory."""
    with pytest.raises(DataError, match=r"tables.0: input should be a valid dictionary"):
        validate(form_of(Model), altered(tables=[1] * 10**6), "it", DataError, HINT)


def test_the_schema_is_of_the_form():
    schema = TypeAdapter(keys_of(Model)).json_schema()
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name", "tables", "of", "counts", "best"]
    assert schema["properties"]["tables"]["minItems"] == 1


@dataclass(frozen=True, eq=False)
class Seen:
    x: Annotated[NDArray[Any], Axes("examples", rest=True)]
    y: Annotated[NDArray[np.int64], Axes("examples", low=0)]
    total: Count

    def fault(self) -> str:
        return f"x: {len(self.x)} examples of {self.total}" if len(self.x) > self.total else ""


@dataclass(frozen=True, eq=False)
class Found:
    clients: tuple[Name, ...]
    trained: Seen
    rows: Annotated[NDArray[np.integer[Any]], Axes("named", low=0, high=9)]
    scores: Annotated[Mapping[str, NDArray[np.float32]], Axes("named", "clients", nan=True, prefix="score/")]
    owners: Annotated[tuple[str, ...], Axes("named")]
    column: Annotated[str, Axes()]
    columns: Annotated[tuple[int, ...] | None, Axes("columns")] = None
    seen: Annotated[NDArray[np.bool_] | None, Axes("clients")] = None
    further: Annotated[Mapping[str, NDArray[np.float64]] | None, Axes("clients", prefix="more.")] = None
    exact: Annotated[NDArray[np.float64] | None, Axes("clients", kinds="f")] = None
    notes: tuple[Name, ...] = ()


FOUND = Found(
    ("a", "b"),
    Seen(np.ones((4, 2, 2), np.float32), np.arange(4), 7),
    np.array([1, 2, 9]),
    {"sia": np.full((3, 2), np.nan, np.float32), "other": np.zeros((3, 2), np.float32)},
    ("a", "", "b"),
    "age",
    (0, 4),
)


def write(path: Path, found: Any, **changes: Any) -> Path:
    entry, arrays = split(found)
    entry |= changes.pop("entry", {})
    text = np.frombuffer(json.dumps(entry).encode(), np.uint8)
    arrays = {name: array for name, array in {**arrays, "about": text, **changes}.items() if array is not None}
    write_npz(path, arrays)
    return path


def read(path: Path) -> Found:
    return read_arrays(Found, path, DataError, HINT, text="about")


def test_arrays_are_read_as_they_are_written(tmp_path):
    entry, arrays = split(FOUND)
    assert entry == {"clients": ["a", "b"], "trained": {"total": 7}, "notes": []}
    assert [*arrays] == ["trained_x", "trained_y", "rows", "score/sia", "score/other", "owners", "column", "columns"]
    found = read(write(tmp_path / "it.npz", FOUND, unknown=np.zeros(3)))
    assert split(found)[0] == entry
    again = split(found)[1]
    assert [*again] == [*arrays]
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype
        assert np.array_equal(again[name], array, equal_nan=array.dtype.kind == "f")
    assert (found.owners, found.column, found.columns) == (FOUND.owners, "age", (0, 4))
    assert (found.seen, found.further) == (None, None)


def test_numbers_are_cast_to_the_type_of_their_field(tmp_path):
    found = read(write(tmp_path / "it.npz", FOUND, trained_y=np.ones(4, np.uint8), rows=np.ones(3, np.uint8)))
    assert found.trained.y.dtype == np.int64
    assert found.rows.dtype == np.uint8
    ones = {"more.a": np.ones(2, np.int8)}
    further = read(write(tmp_path / "it.npz", FOUND, **ones)).further
    assert further is not None
    assert further["a"].dtype == np.float64


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": None}, "expected the arrays about and trained_x and .*, but there is no 'rows'"),
        ({"about": None}, "but there is no 'about'"),
        ({"score/sia": None, "score/other": None}, "there is no array score/"),
        ({"rows": np.zeros(3)}, r"rows: expected whole numbers \(named,\), got float64 \(3,\)"),
        ({"rows": np.zeros((3, 1), int)}, r"rows: expected whole numbers \(named,\), got int64 \(3, 1\)"),
        ({"score/sia": np.zeros((2, 2))}, r"score/sia: expected numbers \(3, 2\), got float64 \(2, 2\)"),
        ({"score/sia": np.zeros((3, 3))}, r"score/sia: expected numbers \(3, 2\), got float64 \(3, 3\)"),
        ({"owners": np.array(["a"])}, r"owners: expected texts \(3,\), got <U1 \(1,\)"),
        ({"owners": np.zeros(3)}, r"owners: expected texts \(3,\), got float64 \(3,\)"),
        ({"column": np.array(["a"])}, r"column: expected texts \(\), got <U1 \(1,\)"),
        ({"columns": np.zeros(2, bool)}, r"columns: expected whole numbers \(columns,\), got bool \(2,\)"),
        ({"seen": np.zeros(3, bool)}, r"seen: expected yes or no \(2,\), got bool \(3,\)"),
        ({"rows": np.array([1, 2, 10])}, "rows: expected values in 0 … 9, got 1 … 10"),
        ({"trained_y": np.full(4, 2**64 - 1, np.uint64)}, "trained_y: expected values in 0 … 9.2"),
        ({"trained_y": np.zeros(3, int)}, r"trained_y: expected whole numbers \(4,\), got int64 \(3,\)"),
        ({"more.a": np.array([0, np.nan])}, "more.a: expected numbers, got NaN"),
        ({"exact": np.zeros(2, int)}, r"exact: expected numbers \(2,\), got int64 \(2,\)"),
        ({"trained_x": np.zeros(4, "U3")}, r"trained_x: expected numbers \(examples, …\), got <U3 \(4,\)"),
        ({"entry": {"trained": {"total": 3}}}, "trained_x: 4 examples of 3"),
        ({"entry": {"clients": ["a", "b", "c"]}}, r"score/sia: expected numbers \(3, 3\), got float32 \(3, 2\)"),
        ({"entry": {"clients": [1]}}, "about: clients.0: input should be a valid string"),
        ({"about": np.zeros(3, np.uint8)}, "about is not valid JSON"),
        ({"about": np.zeros(3)}, "about: expected bytes or a text, got float64"),
    ],
)
def test_other_arrays_are_refused_in_a_line(tmp_path, changes, says):
    path = write(tmp_path / "it.npz", FOUND, **changes)
    with pytest.raises(DataError, match=says) as raised:
        read(path)
    assert str(raised.value).startswith(str(path))
    assert str(raised.value).endswith(HINT)


def test_shapes_are_looked_at_before_memory_is_taken(tmp_path, monkeypatch):
    path = write(tmp_path / "it.npz", FOUND, seen=np.zeros(3, bool))
    taken: list[str] = []
    monkeypatch.setattr("fedattack.base.untrusted._read_member", lambda archive, entry, name, most: taken.append(name))
    monkeypatch.setattr("fedattack.base.stored._parse_array", lambda *_: split(FOUND)[0])
    with pytest.raises(DataError, match="seen: expected yes or no"):
        read(path)
    assert taken == ["about"]


@with_config(ConfigDict(extra="ignore", strict=True))
@dataclass(frozen=True, eq=False)
class Scored:
    clients: tuple[Name, ...]
    losses: Annotated[NDArray[np.floating[Any]], Axes("rounds", "clients", nan=True)]
    rounds: tuple[int, ...] = field(default=())


def test_scores_in_an_envelope(tmp_path):
    """As attacks save theirs: a JSON text that has more than the dataclass."""
    scored = Scored(("a", "b"), np.zeros((2, 2), np.float32), (1, 2))
    facts, arrays = split(scored)
    text = json.dumps({"attack": "it", "facts": facts | {"more": 1}, "seconds": 0.5})
    write_npz(tmp_path / "it.npz", {"facts": np.array(text), **arrays}, compress=True)

    def inside(value: Any) -> Any:
        assert value["attack"] == "it"
        return value["facts"]

    again = read_arrays(Scored, tmp_path / "it.npz", DataError, HINT, text="facts", inside=inside, most=8)
    assert (again.clients, again.rounds, again.losses.dtype) == (("a", "b"), (1, 2), np.float32)
    assert not again.losses.flags.owndata


def test_arrays_in_memory_are_held_against_the_form():
    entry, arrays = split(FOUND)
    found = check_arrays(Found, arrays, "it", DataError, HINT, entry=entry, sizes={"columns": 2})
    assert (found.clients, found.columns, found.trained.total) == (("a", "b"), (0, 4), 7)
    with pytest.raises(DataError, match=r"it: columns: expected whole numbers \(3,\), got int64 \(2,\)"):
        check_arrays(Found, arrays, "it", DataError, HINT, entry=entry, sizes={"columns": 3})
    with pytest.raises(DataError, match=r"it: trained\.total is missing"):
        check_arrays(Found, arrays, "it", DataError, HINT, entry=entry | {"trained": {}})
