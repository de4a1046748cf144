"""The sample is uniform and bounded, and numbers beyond what is counted one by one are close."""

import numpy as np
import pytest

from fedattack.witness import sample
from fedattack.witness.sample import Examples, hash_rows
from tests.witness.apps import hashes_of


def rows_of(numbers) -> np.ndarray:
    return np.asarray(numbers, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)


def test_each_row_is_hashed_by_its_bytes_and_the_seed():
    rows = np.random.default_rng(0).normal(size=(50, 2, 3)).astype(np.float32)
    found = hash_rows(rows, 7)
    assert set(found) == hashes_of(rows, 7)
    assert not set(found) & set(hash_rows(rows, 8))
    # A transposed batch has other strides, and the same rows.
    assert hash_rows(np.asfortranarray(rows), 7) == found


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint8])
def test_an_example_is_the_same_in_every_type(dtype):
    rows = np.random.default_rng(0).integers(0, 200, size=(50, 3))
    assert hash_rows(rows.astype(dtype), 7) == hash_rows(rows.astype(np.float32), 7)


def test_a_long_stream_takes_bounded_memory_and_keeps_a_uniform_sample():
    examples = Examples(keep=100, counted=1_000)
    for start in range(0, 50_000, 500):
        rows = rows_of(np.arange(start, start + 500))
        hashes = hash_rows(rows, 0)
        examples.keep_rows(hashes, rows)
        examples.add(hashes, [int(number % 4) for number in range(start, start + 500)])
        assert len(examples.rows) <= 200
        assert len(examples.labels) <= 2_000
    found = examples.seen()
    assert len(found) == 100
    every = rows_of(np.arange(50_000))
    assert [bytes(row) for row in found.hashes] == sorted(hash_rows(every, 0))[:100]
    assert found.total == pytest.approx(50_000, rel=0.15)
    assert sum(found.counts.values()) == pytest.approx(found.total, rel=0.01)
    # The first and the last half of the stream are drawn alike.
    assert 30 <= (found.x[:, 0] < 25_000).sum() <= 70
    assert (found.x[:, 0] % 4 == found.y).all()


def test_another_process_goes_on_from_what_was_written():
    whole, first = Examples(50, 200), Examples(50, 200)
    numbers = np.arange(900)
    for part, examples in ((numbers, whole), (numbers[:500], first)):
        hashes = hash_rows(rows_of(part), 0)
        examples.keep_rows(hashes, rows_of(part))
        examples.add(hashes, [int(number) if number % 3 else None for number in part])
    seen = first.seen()
    second = Examples(50, 200)
    second.remember(first.memory(), seen)
    hashes = hash_rows(rows_of(numbers[400:]), 0)
    second.keep_rows(hashes, rows_of(numbers[400:]))
    second.add(hashes, [int(number) if number % 3 else None for number in numbers[400:]])
    one, other = whole.seen(), second.seen()
    assert np.array_equal(one.x, other.x)
    assert np.array_equal(one.y, other.y)
    assert (one.total, one.counts) == (other.total, other.counts)


def test_large_examples_and_other_shapes(monkeypatch):
    monkeypatch.setattr(sample, "ROW_BYTES", 10 * 12 / 100)
    examples = Examples(keep=100)
    rows = rows_of(np.arange(40))
    examples.keep_rows(hash_rows(rows, 0), rows)
    examples.add(hash_rows(rows, 0), None)
    assert examples.too_large
    assert len(examples.seen()) == 10
    examples.keep_rows([b"0" * 16], np.zeros((1, 4), np.float32))
    assert examples.other_shapes
    assert len(examples.seen()) == 10


def test_what_is_trained_on_is_not_evaluated_only():
    trained, evaluated = Examples(10, counted=50), Examples(10)
    all_hashes = sorted(hash_rows(rows_of(np.arange(200)), 0))
    trained.add(all_hashes[:150], None)
    evaluated.add(all_hashes[100:], None)
    trained.labels.prune()
    # Of what lies beyond the sample of trained examples nobody knows whether it was trained on.
    assert evaluated.without(trained.labels)
    assert evaluated.total == 0
    evaluated.add(all_hashes[40:60:2], None)
    trained.labels.put(all_hashes[:40], [0] * 40)
    small = Examples(10)
    small.add(all_hashes[:3], None)
    other = Examples(10)
    other.add(all_hashes[1:2], None)
    assert not small.without(other.labels)
    assert set(small.labels) == {all_hashes[0], all_hashes[2]}


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("batch", [1, 7, 29])
def test_how_often_each_example_is_there_is_told_by_passes_over_all(passes, batch):
    """Held against a plain count of the copies; a number of examples that does not fit tells nothing."""
    draw = np.random.default_rng(passes)
    rows = [*range(20), 3, 3, 5, 7, 7, 7, 11, 13, 13]
    x, labels = draw.normal(size=(20, 4)).astype(np.float32)[rows], [row % 3 for row in rows]
    labels[20], labels[-1] = 2, 0
    examples, hashes = Examples(100), hash_rows(x, 0)
    for _ in range(passes):
        order = draw.permutation(len(rows))
        for start in range(0, len(rows), batch):
            taken = order[start : start + batch]
            examples.add([hashes[row] for row in taken], [labels[row] for row in taken])
    examples.keep_rows(hashes, x)
    for size in (None, 30, 20 * passes - 1):
        assert not examples.find_repeats([size])
    examples.repeats = examples.find_repeats([30, len(rows)])
    seen = examples.seen()
    own = sorted((bytes(seen.hashes[row]), label) for row, label in enumerate(seen.y.tolist()))
    own += [(bytes(seen.hashes[row]), label) for row, label in zip(seen.again, seen.again_y.tolist(), strict=True)]
    assert sorted(own) == sorted(zip(hashes, labels, strict=True))
    assert seen.total == 20


def test_of_batches_that_leave_examples_out_no_copies_are_told():
    examples = Examples(100)
    hashes = hash_rows(np.random.default_rng(0).normal(size=(10, 3)), 0)
    # Two passes over ten examples, each of which drops the last one or two.
    examples.add([*hashes[:9], *hashes[1:10]], [0] * 18)
    assert not examples.find_repeats([10, 9])
