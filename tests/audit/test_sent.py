"""What clients send: witnesses' word first, then the record's; there is a table whatever was witnessed."""

import numpy as np

from fedattack.attacks import reply_kinds
from fedattack.audit.sent import sent_of
from fedattack.record import Exchange, Record, RecordWriter, Reply


def write(folder) -> Record:
    draw = np.random.default_rng(0)
    replies = [{"w": draw.normal(size=4), "at": draw.permutation(8)[:3], "by": draw.normal(size=3)} for _ in "ab"]
    common, after = {"w": draw.normal(size=8)}, {}
    after["w"] = common["w"].copy()
    for reply in replies:
        np.add.at(after["w"], reply["at"], reply["by"] / 2)
    writer = RecordWriter(folder)
    writer.write(Exchange(1, common, [Reply(node, "ok", each, 4) for node, each in zip("ab", replies, strict=True)]))
    writer.write(Exchange(2, after, []))
    writer.close()
    return Record(folder)


def row(name, shape, kind, dtype="float64"):
    return {"array": name, "shape": shape, "dtype": dtype, "kind": kind, "clients": 2}


def test_the_record_says_what_no_witness_does(tmp_path):
    # Values beside another array of the same type: which are meant only their length says.
    record = write(tmp_path / "record")
    shown = [
        row("w", [4], reply_kinds.UNKNOWN),
        row("at", [3], reply_kinds.INDICES, "int64"),
        row("by", [3], reply_kinds.CHANGES),
    ]
    assert sent_of(record) == {"arrays": shown, "unread": ""}


def test_what_a_witness_says_counts_first(tmp_path):
    record = write(tmp_path / "record")
    witnessed = [row("w", [4], "weights"), row("at", [3], "no floats", "int64"), row("head", [2], "not sent")]
    arrays = [witnessed[0], {**witnessed[1], "kind": reply_kinds.INDICES}, witnessed[2]]
    arrays.append(row("by", [3], reply_kinds.CHANGES))
    assert sent_of(record, witnessed, "why") == {"arrays": arrays, "unread": "why"}


def test_an_array_of_one_of_several_records_is_listed_once(tmp_path):
    """Witnesses name it without the key of its record."""
    draw = np.random.default_rng(1)
    arrays = {"net.w": draw.normal(size=4), "extra.c": draw.normal(size=4)}
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, {"w": np.ones(4)}, [Reply("a", "ok", arrays, 4)]))
    writer.close()
    found = sent_of(Record(tmp_path / "record"), [row("w", [4], "weights")])["arrays"]
    assert [each["array"] for each in found] == ["w", "extra.c"]
