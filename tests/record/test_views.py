"""Views of a record: each shows it otherwise, in whatever order they are made, and what is on disk stays as it is."""

import numpy as np
import pytest

from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.means import mean_of
from fedattack.record.views import ChangedEntries, FlatVector

CONTROL = "control"
FROZEN = {"back.w": np.linspace(-1, 1, 3, dtype=np.float32)}


@pytest.fixture
def record(tmp_path):
    """Two clients send a model and a control variate; the server averages both."""
    draw = np.random.default_rng(0)
    common = {"0": draw.normal(size=4).astype(np.float32), CONTROL: np.zeros(2, dtype=np.float32)}
    writer = RecordWriter(tmp_path / "r")
    for number in (1, 2, 3):
        replies = []
        for client in range(2):
            sent = {name: array + draw.normal(size=array.shape).astype(np.float32) for name, array in common.items()}
            replies.append(Reply(f"n{client}", "ok", sent, 10 + client))
        writer.write(Exchange(number, common, replies, mean="message"))
        common = mean_of([reply.arrays for reply in replies], [10, 11], "message")
    writer.close(final=common)
    found = Record(tmp_path / "r")
    assert found.rounds[1].source["source"] == "mean"
    return found


VIEWS = {
    "rename": lambda record: record.rename({"0": "head.w"}),
    "read_as": lambda record: record.read_as(["0"], None),
    "complete": lambda record: record.complete(FROZEN, ["back.w", "head.w"]),
    "without": lambda record: record.without(["n0"]),
}


@pytest.mark.parametrize("order", [[*VIEWS], [*VIEWS][::-1], ["complete", "rename", "without", "read_as"]])
def test_views_of_views_are_the_same_in_any_order(record, order):
    seen = record
    for name in order:
        seen = VIEWS[name](seen)
    assert [parameter.name for parameter in seen.parameters] == ["back.w", "head.w"]
    assert seen.nodes == ("n1",)
    for item, whole in zip(seen, record, strict=True):
        assert list(item.common) == list(item.after) == ["back.w", "head.w"]
        np.testing.assert_array_equal(item.common["head.w"], whole.common["0"])
        np.testing.assert_array_equal(item.common["back.w"], FROZEN["back.w"])
        (reply,) = item.observations
        np.testing.assert_array_equal(reply.arrays["head.w"], whole.observations[1].arrays["0"])
    assert record.nodes == ("n0", "n1")
    assert list(record.final) == ["0", CONTROL]


def test_a_mean_is_found_where_some_of_its_arrays_are_read_alone(record):
    chosen = record.read_as(["0"], None)
    for item, whole in zip(chosen, record, strict=True):
        assert list(item.common) == ["0"]
        np.testing.assert_array_equal(item.common["0"], whole.common["0"])


def test_frozen_weights_stay_where_they_are_where_clients_send_differences(record):
    seen = record.read_as(["0"], {"n0": 2.0}).rename({"0": "head.w"}).complete(FROZEN, ["back.w", "head.w"])
    for item, whole in zip(seen, record, strict=True):
        first, other = item.observations
        np.testing.assert_array_equal(first.arrays["back.w"], FROZEN["back.w"])
        moved = whole.common["0"].astype(np.float64) + whole.observations[0].arrays["0"].astype(np.float64) / 2
        np.testing.assert_array_equal(first.arrays["head.w"], moved.astype(np.float32))
        assert other.arrays is None


@pytest.mark.parametrize("step", [None, -0.5])
def test_indices_and_values_are_put_into_what_was_sent(tmp_path, step):
    """Entry by entry; what does not fit tells no model."""
    draw = np.random.default_rng(0)
    common = {"w": draw.normal(size=(2, 3)).astype(np.float32), "b": draw.normal(size=2).astype(np.float32)}
    sent = {"at": np.array([7, 0, 4]), "by": draw.normal(size=3).astype(np.float32)}
    unfit = [sent | {"at": np.array([7, 0, 8])}, sent | {"by": sent["by"][:2]}, {"at": sent["at"]}]
    writer = RecordWriter(tmp_path / "r")
    writer.write(Exchange(1, common, [Reply(f"n{at}", "ok", each, 4) for at, each in enumerate([sent, *unfit])]))
    writer.close()
    entries = ChangedEntries("at", "by", ("w", "b"), step)
    seen = Record(tmp_path / "r").read_as((), None, entries=entries).rename({"w": "head.w"})
    first, *others = seen.rounds[0].observations
    flat = [*common["w"].reshape(-1), *common["b"]]
    for index, value in zip(sent["at"], sent["by"], strict=True):
        flat[index] = value if step is None else flat[index] + step * value
    assert list(first.arrays) == ["head.w", "b"]
    np.testing.assert_array_equal(first.arrays["head.w"], np.float32(flat[:6]).reshape(2, 3))
    np.testing.assert_array_equal(first.arrays["b"], np.float32(flat[6:]))
    assert [other.arrays for other in others] == [None, None, None]


def test_indices_and_values_are_put_into_a_vector_that_is_seen_as_arrays(tmp_path):
    draw = np.random.default_rng(0)
    common = draw.normal(size=9).astype(np.float32)
    sent = {"at": np.array([8, 0, 5]), "by": draw.normal(size=3).astype(np.float32)}
    writer = RecordWriter(tmp_path / "r")
    writer.write(Exchange(1, {"v": common}, [Reply("n0", "ok", sent, 4)]))
    writer.close()
    flat = FlatVector("v", ("w", "b", "s"), ((2, 3), (2,), (1,)))
    seen = Record(tmp_path / "r").read_as((), None, entries=ChangedEntries("at", "by", ("v",), 1.0), flat=flat)
    (reply,) = seen.rename({"w": "head.w"}).rounds[0].observations
    expected = common.copy()
    expected[sent["at"]] += sent["by"]
    assert [*reply.arrays] == [*reply.received] == ["head.w", "b", "s"]
    np.testing.assert_allclose(np.concatenate([array.reshape(-1) for array in reply.arrays.values()]), expected)
    np.testing.assert_array_equal(reply.received["b"], common[6:8])


def test_a_record_may_be_read_as_one_of_another_protocol(record):
    seen = record.read_as((), None, protocol="fedmd")
    assert (seen.protocol, record.protocol) == ("fedmd", "fedavg")
    np.testing.assert_array_equal(
        seen.rounds[0].observations[0].arrays["0"], record.rounds[0].observations[0].arrays["0"]
    )


def test_the_arrays_of_a_vector_are_joined_as_they_were():
    flat = FlatVector("v", ("w", "b"), ((2, 3), (2,)))
    sent = {"v": np.arange(8, dtype=np.float32), "n": np.array([3])}
    joined = flat.join(flat.split(sent))
    assert [*joined] == ["v", "n"]
    for name, array in joined.items():
        np.testing.assert_array_equal(array, sent[name])
        assert array.dtype == sent[name].dtype


def test_a_vector_is_seen_as_the_arrays_that_stand_in_it(tmp_path):
    """In models and replies, also where a reply is a difference; a vector of another length stays as it is."""
    draw = np.random.default_rng(0)
    common, replied, short = (draw.normal(size=size).astype(np.float32) for size in (9, 9, 8))
    steps = np.array([3], np.int64)
    writer = RecordWriter(tmp_path / "r")
    replies = [Reply("n0", "ok", {"v": replied, "n": steps}, 4), Reply("n1", "ok", {"v": short, "n": steps}, 4)]
    writer.write(Exchange(1, {"v": common, "n": steps}, replies))
    writer.close(final={"v": replied, "n": steps})
    flat = FlatVector("v", ("w", "b", "s"), ((2, 3), (2,), (1,)))
    seen = Record(tmp_path / "r").read_as(flat.names, None, flat=flat).rename({"w": "head.w"})
    assert [(each.name, each.shape) for each in seen.parameters] == [("head.w", (2, 3)), ("b", (2,)), ("s", (1,))]
    (round_,) = seen
    for vector, arrays in ((common, round_.common), (replied, round_.observations[0].arrays), (replied, seen.final)):
        assert [*arrays] == ["head.w", "b", "s"]
        np.testing.assert_array_equal(np.concatenate([array.reshape(-1) for array in arrays.values()]), vector)
    update = round_.observations[0].update()
    np.testing.assert_allclose(update["b"], (replied - common)[6:8], rtol=1e-6)
    assert not {"head.w", "b"} & {*round_.observations[1].arrays}
    moved = Record(tmp_path / "r").read_as(flat.names, {"n0": 2.0}, flat=flat).rounds[0].observations[0].arrays
    np.testing.assert_allclose(moved["s"], common[8:] + replied[8:] / 2, rtol=1e-6)
    assert FlatVector("v", ("w",), ()).fault()
