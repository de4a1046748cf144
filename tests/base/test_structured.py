"""Examples of any structure: what is put in comes out again, and padding is no part of an example."""

import numpy as np
import pytest

from fedattack.base.structured import (
    alike,
    arguments,
    contents,
    fault,
    fields,
    finite,
    flat,
    leaves_of,
    pack,
    places,
    stack_examples,
    without,
)


def texts(*rows: list[int], width: int, pad: int = 9) -> np.ndarray:
    ids = np.full((len(rows), width), pad)
    mask = np.zeros((len(rows), width), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return pack({"input_ids": ids, "attention_mask": mask, "score": np.arange(len(rows), dtype=np.float32)})


def test_arguments_of_a_call_come_back():
    args, kwargs = [1, None, {"a": 2, "b": (3, [4, 5])}], {"mask": 6, "pair": (7,), "nothing": None}
    found = places(args, kwargs)
    assert found == {"0": 1, "2/a": 2, "2/b/#0": 3, "2/b/#1/#0": 4, "2/b/#1/#1": 5, "mask": 6, "pair/#0": 7}
    assert arguments(found) == ([1, None, {"a": 2, "b": (3, (4, 5))}], {"mask": 6, "pair": (7,)})
    with pytest.raises(TypeError, match="has the key 3"):
        places([{3: 1}], {})
    with pytest.raises(TypeError, match="has the key 'a/b'"):
        places([], {"x": {"a/b": 1}})


def test_what_is_packed_keeps_types_and_order():
    leaves = {"0": np.arange(6, dtype=np.int32).reshape(3, 2), "late": np.ones(3, np.float64)}
    packed = pack(leaves)
    assert packed.shape == (3,)
    assert fields(packed) == ("0", "late")
    for place, leaf in leaves_of(packed).items():
        assert leaf.dtype == leaves[place].dtype
        assert np.array_equal(leaf, leaves[place])
    assert flat(packed[1:]).tolist() == [[2, 3, 1], [4, 5, 1]]
    with pytest.raises(ValueError, match="of one length"):
        pack({"a": np.zeros(2), "b": np.zeros(3)})


def test_padding_is_no_part_of_an_example():
    short, long = texts([1, 2], [3, 4, 5], width=3), texts([1, 2], [3, 4, 5], [6], width=7)
    assert [*contents(short)] == [*contents(long)][:2]
    assert len({*contents(long)}) == 3
    # The place counts: another text is another example, and so is one without a mask.
    assert [*contents(texts([2, 1], width=3))] != [*contents(short)][:1]
    assert alike(short, long)
    assert not alike(short, without(long, "score"))
    assert not alike(pack({"a": np.zeros((2, 3))}), pack({"a": np.zeros((2, 4))}))


def test_sequences_are_padded_as_in_the_models_batches():
    rows = [*texts([1, 2], [3, 4, 5], width=3)[:, ...], texts([6], width=5)[0]]
    together = stack_examples([np.asarray(row) for row in rows])
    assert together["input_ids"].tolist() == [[1, 2, 9, 9, 9], [3, 4, 5, 9, 9], [6, 9, 9, 9, 9]]
    assert together["attention_mask"].sum(axis=1).tolist() == [2, 3, 1]
    assert together["score"].tolist() == [0, 1, 0]
    full = [pack({"attention_mask": np.ones((1, n), int), "labels": np.full((1, n), 7)})[0, ...] for n in (2, 4)]
    assert stack_examples(full)["labels"].tolist() == [[7, 7, -100, -100], [7, 7, 7, 7]]


def test_one_array_of_numbers_stays_one():
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    assert without(pack({"0": x, "labels": np.arange(4)}), "labels").dtype == np.float32
    assert fields(without(pack({"0": np.arange(8).reshape(4, 2), "y": np.arange(4)}), "y")) == ("0",)
    assert fields(x) == ()
    assert flat(x).shape == (4, 3)


def test_what_others_hand_over_is_looked_at():
    assert not fault(texts([1], width=2))
    assert "one axis" in fault(texts([1], [2], width=2).reshape(1, 2))
    assert "expected numbers by name" in fault(np.zeros(2, [("a", "U3")]))
    assert "expected numbers by name" in fault(np.zeros(2, [("a", [("b", float)])]))
    assert "expected numbers by name" in fault(np.zeros(2, [("99999999", float)]))
    assert "others within it" in fault(np.zeros(2, [("a", float), ("a/b", float)]))
    assert "expected numbers by name" in fault(np.zeros(2, [("a", ">i8")]))
    assert "expected numbers by name" in fault(np.zeros(2, [("a", np.longdouble)]))
    assert "without any number" in fault(np.zeros(2, [("attention_mask", int, (0,)), ("a", int)]))
    # A terabyte of examples in a file of a hundred bytes.
    assert "without any number" in fault(np.zeros((2**40, 0), np.float32))
    assert not fault(np.zeros((0, 3), np.float32))
    assert finite(np.zeros((0, 3), np.float32)).shape == (0,)
    bad = pack({"a": np.array([[1.0, np.nan], [1.0, 2.0]]), "b": np.arange(2)})
    assert finite(bad).tolist() == [False, True]
