"""Sketches of updates: against a slow obvious version, in records, and what refuses them."""

import json

import numpy as np
import pytest

from fedattack.base.errors import ConfigError, RecordError
from fedattack.base.files import seal
from fedattack.record import (
    Exchange,
    Keep,
    Record,
    RecordWriter,
    Reply,
    check_record,
    project_record,
    shrink_record,
)
from fedattack.record import sketch as module
from fedattack.record.format import Parameter
from fedattack.record.size import Size
from fedattack.record.sketch import SketchPlan
from tests.record.test_keep import CLIENTS, written

KEEP = Keep(sketch=12, seed=5)


def slowly(plan, name, moved, width):
    """One entry at a time."""
    sums = [0.0] * width
    signs = plan.signs(name)
    for index, value in enumerate(moved.reshape(-1).tolist()):
        plus = signs[index // 8] >> (index % 8) & 1
        sums[index % width] += value if plus else -value
    return np.array(sums)


@pytest.mark.parametrize("block", [16, 2**20])
@pytest.mark.parametrize("width", [1, 7, 100, 101])
def test_a_sketch_is_signed_sums_of_entries_that_stand_apart(monkeypatch, block, width):
    monkeypatch.setattr(module, "_BLOCK", block)
    draw = np.random.default_rng(0)
    before, after = draw.normal(size=(2, 20, 50)).astype(np.float32)
    plan = SketchPlan({"w": 1000}, width, seed=3)
    found = plan.moved("w", after, before, width)
    assert found.dtype == np.float32
    expected = slowly(plan, "w", after.astype(np.float64) - before, width)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_signs_are_drawn_by_seed_and_name_and_stay_what_they_are():
    """Whoever reads a record later must draw the same."""
    plan = SketchPlan({"a": 200, "b": 200}, 10, seed=1)
    assert plan.signs("a")[:4].tobytes().hex() == "094e8db5"
    bits = [np.unpackbits(other.signs(name)) for other in (plan, SketchPlan(plan.sizes, 10, 2)) for name in "ab"]
    for index, one in enumerate(bits):
        for other in bits[:index]:
            assert 60 < (one != other).sum() < 140


def test_numbers_are_shared_alike_and_small_arrays_are_whole():
    plan = SketchPlan({"large": 10_000, "bias": 10, "middle": 300}, 1000, seed=0)
    assert plan.widths == {"large": 689, "bias": 10, "middle": 300}
    assert SketchPlan(plan.sizes, 20_000, 0).widths == plan.sizes
    assert SketchPlan(plan.sizes, 1, 0).widths == dict.fromkeys(plan.sizes, 1)


def test_whole_numbers_and_empty_arrays_are_in_no_sketch():
    arrays = {"w": np.zeros((2, 3)), "n": np.array(1), "none": np.zeros(0), "h": np.zeros(4, dtype=np.float16)}
    assert SketchPlan.of([Parameter.of(*item) for item in arrays.items()], 5, 0).sizes == {"w": 6, "h": 4}


def test_a_record_of_sketches_has_exact_models_and_how_far_each_reply_moved_them(tmp_path):
    exchanges, final = written(tmp_path / "r", frozen=False, keep=KEEP)
    report = check_record(tmp_path / "r")
    assert report.whole
    assert report.remarks[0].endswith("it keeps sketches of updates, of 12 numbers each")
    record = Record(tmp_path / "r", thinned=True)
    plan = record.sketch_plan
    assert plan.widths == {"back.w": 5, "head.w": 7}
    for item, whole in zip(record, exchanges, strict=True):
        assert {name: array.tobytes() for name, array in item.common.items()} == {
            name: array.tobytes() for name, array in whole.common.items()
        }
        for seen, reply in zip(item.observations, whole.replies, strict=True):
            assert (seen.status, seen.num_examples, seen.arrays) == ("ok", reply.num_examples, None)
            for name, width in plan.widths.items():
                moved = reply.arrays[name].astype(np.float64) - whole.common[name]
                np.testing.assert_allclose(seen.sketch[name], slowly(plan, name, moved, width), rtol=1e-5, atol=1e-8)
    assert record.final["head.w"].tobytes() == final["head.w"].tobytes()
    with pytest.raises(RecordError, match="node n0: no update, because there is a sketch of it alone"):
        record.rounds[0].observations[0].update()


def test_sums_of_sketches_are_sketches_of_sums(tmp_path):
    """Projected and then sketched is sketched and then projected, but for rounding."""
    written(tmp_path / "whole", frozen=False)
    written(tmp_path / "sketched", frozen=False, keep=KEEP)
    projected = project_record(Record(tmp_path / "sketched", thinned=True), tmp_path / "a")
    sums = project_record(Record(tmp_path / "whole"), tmp_path / "sums")
    sketched = shrink_record(sums, tmp_path / "b", KEEP)
    assert check_record(tmp_path / "a").whole
    assert check_record(tmp_path / "b").whole
    assert projected.view == sketched.view == "aggregate"
    for one, other in zip(projected, sketched, strict=True):
        assert one.aggregate is other.aggregate is None
        assert one.sketch.keys() == other.sketch.keys() == {"back.w", "head.w"}
        assert [seen.sketch for seen in one.observations] == [None] * CLIENTS
        for name, array in one.sketch.items():
            np.testing.assert_allclose(array, other.sketch[name], rtol=1e-4, atol=1e-7)


def test_no_sum_is_taken_of_updates_of_different_models(tmp_path):
    model = {"w": np.ones(4, dtype=np.float32)}
    replies = [Reply("a", "ok", model, 1, received={"w": 2 * model["w"]}), Reply("b", "ok", model, 1)]
    writer = RecordWriter(tmp_path / "r", keep=KEEP)
    writer.write(Exchange(1, model, replies))
    writer.close(final=model)
    record = Record(tmp_path / "r", thinned=True)
    plan = record.sketch_plan
    np.testing.assert_array_equal(
        record.rounds[0].observations[0].sketch["w"], slowly(plan, "w", -model["w"], 4).astype(np.float32)
    )
    with pytest.raises(RecordError, match="node a: it was sent another model"):
        project_record(record, tmp_path / "sums")


def test_a_copy_is_made_smaller_by_rounds_and_clients_alone(tmp_path):
    written(tmp_path / "r", keep=KEEP)
    record = Record(tmp_path / "r", thinned=True)
    copy = shrink_record(record, tmp_path / "a", Keep(every=3, clients=0.5, seed=9))
    assert copy.keep == Keep(every=3, clients=0.5, seed=5, sketch=12)
    assert [item.number for item in copy] == [1, 4, 7]
    for one, other in zip(copy, record.rounds[::3], strict=True):
        kept = [seen for seen in one.observations if seen.sketch is not None]
        assert len(kept) == 2
        for seen in kept:
            (whole,) = [reply for reply in other.observations if reply.node == seen.node]
            assert dict(seen.sketch).keys() == dict(whole.sketch).keys()
            for name, array in seen.sketch.items():
                np.testing.assert_array_equal(array, whole.sketch[name])
    sums = shrink_record(project_record(record, tmp_path / "sums"), tmp_path / "some", Keep(every=3))
    assert [line.sketch is not None for line in sums.lines] == [True, False, True, False, True]
    assert check_record(tmp_path / "some").whole
    for keep in (Keep(sketch=3), Keep(layers=("head.*",))):
        with pytest.raises(ConfigError, match="this record keeps sketches of updates"):
            shrink_record(record, tmp_path / "b", keep)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "arrays",
    [
        {"w": np.ones(5, dtype=np.float32)},
        {"v": np.ones(4, dtype=np.float32)},
        {"w": np.array(["a", "b", "c", "d"])},
        {"w": np.ones(4, dtype=np.complex64)},
    ],
)
def test_a_client_that_sends_other_arrays_has_failed(tmp_path, arrays):
    model = {"w": np.ones(4, dtype=np.float32)}
    writer = RecordWriter(tmp_path / "r", keep=KEEP)
    writer.write(Exchange(1, model, [Reply("a", "ok", arrays, 1), Reply("b", "ok", model, 1)]))
    writer.close(final=model)
    assert check_record(tmp_path / "r").whole
    bad, good = Record(tmp_path / "r", thinned=True).rounds[0].observations
    assert (bad.status, bad.sketch, good.status) == ("failed", None, "ok")
    assert "no sketch of its update" in bad.reason


def test_a_client_that_sends_no_numbers_has_a_sketch_without(tmp_path):
    model = {"w": np.ones(4, dtype=np.float32)}
    writer = RecordWriter(tmp_path / "r", keep=KEEP)
    writer.write(Exchange(1, model, [Reply("a", "ok", {"w": np.full(4, np.nan, dtype=np.float32)}, 1)]))
    writer.close(final=model)
    assert check_record(tmp_path / "r").whole
    assert np.isnan(Record(tmp_path / "r", thinned=True).rounds[0].observations[0].sketch["w"]).all()


def test_the_size_is_told_before(tmp_path):
    exchanges, _ = written(tmp_path / "r", keep=KEEP)
    size = Size.of(exchanges[0].common, CLIENTS, KEEP, view="individual", protocol="fedavg")
    assert size.message == 4 * 12
    files = [line.file.size for line in Record(tmp_path / "r", thinned=True).lines]
    # beside the arrays there is the table of their names
    assert size.round < min(files) < size.round + 1500


@pytest.mark.parametrize(
    ("size", "numbers", "words"),
    [
        (22_000, 11_000, ""),
        (22_000, 8_799, "take 8,800 numbers or more"),
        (10**7, 20_000, ""),
        (10**7, 100, "take 20,000"),
    ],
)
def test_a_short_sketch_is_warned_of(size, numbers, words):
    remark = SketchPlan({"w": size}, numbers, 0).remark
    assert words in remark
    assert bool(words) == bool(remark)


def test_only_updates_of_models_are_sketched(tmp_path):
    for protocol in ("fedsgd", "fedmd"):
        with pytest.raises(RecordError, match=f"sketch: in {protocol} clients send no models"):
            RecordWriter(tmp_path / "r", protocol=protocol, keep=KEEP)


def resealed(path, change):
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["check"]
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(seal(manifest)))


@pytest.mark.parametrize("numbers", [3, 1000, 2**50])
def test_sketches_of_another_length_than_the_manifest_says_are_refused(tmp_path, numbers):
    written(tmp_path / "r", keep=KEEP)
    resealed(tmp_path / "r", lambda manifest: manifest["kept"].update(sketch=numbers))
    report = check_record(tmp_path / "r")
    assert not report.whole
    assert "the sketch of back.w is float32 of shape" in report.problems[0]


@pytest.mark.parametrize("numbers", [0, -1, 2**60, 1.5, "12", None])
def test_a_manifest_that_names_no_length_is_refused(tmp_path, numbers):
    written(tmp_path / "r", keep=KEEP)
    resealed(tmp_path / "r", lambda manifest: manifest["kept"].update(sketch=numbers))
    with pytest.raises(RecordError, match=r"manifest\.json: .*sketch"):
        Record(tmp_path / "r", thinned=True)


def test_sketches_of_other_arrays_than_the_model_has_are_refused(tmp_path):
    written(tmp_path / "r", keep=KEEP)
    resealed(tmp_path / "r", lambda manifest: manifest["parameters"].pop())
    resealed(tmp_path / "r", lambda manifest: manifest["parameters"].pop())
    assert "a sketch has other arrays than the model" in check_record(tmp_path / "r").problems[0]
