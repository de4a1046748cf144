"""Whatever one client sends, the record stays readable, and the other clients' replies stay in it."""

import json

import numpy as np
import pytest

from fedattack.observe._arrays import view_bytes
from fedattack.record import Exchange, Record, RecordWriter, Reply, check_record
from fedattack.record.project import without_misfits

GOOD = {"w": np.ones(3, dtype=np.float32)}
HOSTILE = {
    "a long name": {"w" * 2_000: np.ones(1, dtype=np.float32)},
    "not Unicode": {"w\udc80": np.ones(1, dtype=np.float32)},
    "a side that no array has": {"w": np.zeros((2**51, 0), dtype=np.float32)},
    "fields": {"w": np.zeros(2, dtype=[("f" * 2_000, "<f4")])},
    "text": {"w": np.array(["x"])},
    "Python objects": {"w": np.array([{}, None], dtype=object)},
    "extended precision": {"w": np.ones(1, dtype=np.longdouble)},
    "a million arrays": dict.fromkeys(map(str, range(10**6)), np.zeros(1, dtype=np.uint8)),
    "many arrays": {f"{number:x}": np.zeros((1,) * 32, dtype=np.uint8) for number in range(20_000)},
}


def write(path, exchange, **options) -> Record:
    writer = RecordWriter(path, **options)
    writer.write(exchange)
    writer.write(Exchange(2, exchange.common, [Reply("good", "ok", GOOD, 5)]))
    writer.close()
    assert check_record(path).problems == []
    return Record(path)


@pytest.mark.parametrize("arrays", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("common", [None, GOOD], ids=["no model", "a model"])
def test_arrays_that_cannot_be_kept_cost_their_client_alone(tmp_path, arrays, common):
    replies = [Reply("bad", "ok", arrays, 5), Reply("good", "ok", GOOD, 5)]
    record = write(tmp_path / "record", Exchange(1, common, replies))
    bad, good = record.rounds[0].observations
    assert (bad.status, bad.arrays, good.status) == ("failed", None, "ok")
    assert bad.reason
    assert good.arrays["w"].tolist() == [1, 1, 1]
    assert [item.name for item in record.parameters] == ["w"]


def test_what_comes_late_says_nothing_of_the_model(tmp_path):
    record = write(tmp_path / "record", Exchange(1, None, [Reply("late", "late", {"odd": np.ones(2)}, 5, of_round=0)]))
    assert [item.name for item in record.parameters] == ["w"]


@pytest.mark.parametrize("count", [[1, 2], "5", b"5", 2**70, {"a": 1}, True])
def test_a_count_that_is_no_number_is_none(tmp_path, count):
    record = write(tmp_path / "record", Exchange(1, GOOD, [Reply("bad", "ok", GOOD, count)]))
    (seen,) = record.rounds[0].observations
    assert (seen.status, seen.num_examples, seen.count) == ("ok", None, None)


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(64)


@pytest.mark.parametrize(
    "header",
    [
        "{",
        "{[]: 1}",
        "(" * 5_000,
        "-" * 6_000,
        "{'descr': ('<f4',), 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2**70,), }",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**70},), }}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [], 'fortran_order': False, 'shape': (1000000000000,), }",
    ],
)
def test_bytes_that_are_no_array_are_one_error(header):
    with pytest.raises(ValueError, match=r"array|Python objects|shape"):
        view_bytes(npy(header))


def test_misfits_have_no_part_in_a_mean():
    misfits = {
        "no arrays": Reply("n", "ok", None, 5),
        "a count of 0": Reply("n", "ok", GOOD, 0),
        "no count": Reply("n", "ok", GOOD, None),
        "a count that is no number": Reply("n", "ok", GOOD, float("nan")),
        "an infinite count": Reply("n", "ok", GOOD, float("inf")),
        "another shape": Reply("n", "ok", {"w": np.ones(4, dtype=np.float32)}, 5),
        "one array more": Reply("n", "ok", {**GOOD, "v": np.ones(1)}, 5),
        "text": Reply("n", "ok", {"w": np.array(["x", "y", "z"])}, 5),
        **{name: Reply("n", "ok", arrays, 5) for name, arrays in HOSTILE.items()},
    }
    replies = [*misfits.values(), Reply("a", "ok", GOOD, 5), Reply("b", "ok", GOOD, 7), Reply("c", "failed")]
    found = without_misfits(replies)
    assert [reply.status for reply in found] == ["failed"] * len(misfits) + ["ok", "ok", "failed"]
    assert all(reply.reason.endswith("no part in the mean") for reply in found[: len(misfits)])
    assert found[len(misfits) :] == replies[len(misfits) :]


def test_one_misfit_leaves_the_mean_of_the_others(tmp_path):
    """Through the recorder of an observer, in the aggregate view."""
    from fedattack.observe._recorder import Recorder

    recorder = Recorder(tmp_path / "record", view="aggregate")
    recorder.open()
    replies = [
        Reply("bad", "ok", {"w" * 2_000: np.array(["x"])}, 5),
        Reply("a", "ok", {"w": np.zeros(3, dtype=np.float32)}, 1),
        Reply("b", "ok", {"w": np.full(3, 4, dtype=np.float32)}, 3),
    ]
    recorder.put(Exchange(1, GOOD, replies))
    recorder.close()
    record = Record(tmp_path / "record")
    assert record.status == "complete"
    assert record.rounds[0].aggregate["w"].tolist() == [3, 3, 3]
    assert record.rounds[0].participants == ("a", "b")
    assert json.loads((tmp_path / "record" / "manifest.json").read_text())["error"] is None
