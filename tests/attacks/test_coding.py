"""How tables are coded: groups that are found, what is refused, and cells that are read."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedattack.attacks import Knowledge, read_knowledge, write_knowledge
from fedattack.attacks.coding import TableCoding, find_coding
from fedattack.attacks.knowledge import ModelKnowledge
from fedattack.base.errors import DataError
from fedattack.data import load_dataset
from tests.worlds.inversion import TABLE, table


def test_groups_of_inputs_are_those_that_the_table_is_made_of():
    x, _ = table()
    coding = find_coding(x)
    assert coding.columns == ((0,), (1,), (2, 3, 4, 5), (6, 7, 8, 9, 10, 11), (12,))
    assert coding.is_number == (True, True, False, False, False)
    assert not coding.fault()
    # Standardised one-hot inputs are told as well.
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    again = find_coding(scaled.astype(np.float32))
    assert again.columns == coding.columns
    np.testing.assert_array_equal(again.decode(scaled)[:, 2:], coding.decode(x)[:, 2:])


def test_categories_that_no_known_example_has_do_not_break_a_column():
    x, _ = table()
    # Of the second column of categories nobody has the first, one in the middle and the last.
    seen = x[~x[:, [6, 8, 11]].any(axis=1)]
    scaled = (seen - seen.mean(axis=0)) / np.where(seen.std(axis=0) > 0, seen.std(axis=0), 1)
    for rows in (seen, scaled.astype(np.float32)):
        columns = find_coding(rows).columns
        # The first joins the column before it, which changes no cell: no example has it.
        assert columns == ((0,), (1,), (2, 3, 4, 5, 6), (7, 8, 9, 10, 11), (12,))
        np.testing.assert_array_equal(find_coding(rows).decode(rows)[:, 2], seen[:, 2:6].argmax(axis=1))


def test_inputs_that_are_the_same_in_all_examples_stand_alone_among_numbers_and_begin_a_column():
    draw = np.random.default_rng(0)
    number, same = draw.normal(size=(50, 1)), np.zeros((50, 1))
    categories = np.eye(3)[draw.integers(3, size=50)]
    found = find_coding(np.concatenate([same, number, same, number, same, categories], axis=1))
    assert found.columns == ((0,), (1,), (2,), (3,), (4, 5, 6, 7))
    assert find_coding(np.ones((5, 3))).columns == ((0,), (1,), (2,))


def test_groups_are_found_as_a_slow_search_over_all_runs_finds_them():
    draw = np.random.default_rng(1)
    for _ in range(200):
        x = draw.choice(2, size=(4, 7), p=[0.7, 0.3])
        groups, start = [], 0
        while start < 7:
            ends = [end for end in range(start + 2, 8) if (x[:, start:end].sum(axis=1) == 1).all()]
            end = max(ends, default=start + 1)
            groups.append(tuple(range(start, end)))
            start = end
        # The slow search takes inputs that are 1 throughout for high.
        if (x.min(axis=0) == x.max(axis=0)).any():
            continue
        assert find_coding(x).columns == tuple(groups)


def test_declared_columns_are_as_declared_and_found_ones_are_the_same():
    data = load_dataset("diabetes", seed=0)
    coding = find_coding(data.x_train, data.columns)
    assert coding.names == tuple(column.name for column in data.columns)
    assert coding.columns == find_coding(data.x_train).columns


def test_cells_are_indices_of_categories_and_numbers():
    x, _ = table()
    cells = find_coding(x).decode(x)
    np.testing.assert_array_equal(cells[:, 0], x[:, 0])
    np.testing.assert_array_equal(cells[:, 2], x[:, 2:6].argmax(axis=1))
    np.testing.assert_array_equal(cells[:, 4], x[:, 12])


def test_what_is_no_table_has_no_coding():
    assert find_coding(np.zeros((3, 1, 8, 8))) is None
    assert find_coding(np.zeros((0, 8))) is None
    assert find_coding(np.zeros((2, 5000))) is None


def test_knowledge_keeps_a_coding_and_refuses_another_models(tmp_path):
    x, _ = table()
    coding = find_coding(x)
    known = Knowledge(model=TABLE, coding=coding)
    write_knowledge(tmp_path / "known", known)
    assert read_knowledge(tmp_path / "known").coding == coding
    other = ModelKnowledge(spec="mlp", input_shape=(12,), classes=2)
    write_knowledge(tmp_path / "other", replace(known, model=other))
    with pytest.raises(DataError, match="coding is of examples of shape"):
        read_knowledge(tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"columns": ((0, 1), (1, 2))}, "in one column"),
        ({"names": ("a",)}, "a name and a kind"),
        ({"high": (1.0,)}, "high, mean and deviation"),
        ({"high": (-1.0, 1.0, 1.0)}, "no low above its high"),
        ({"is_number": (True, True)}, "one input for each column of numbers"),
    ],
)
def test_a_coding_that_contradicts_itself_is_refused(change, said):
    fine = TableCoding(("a", "b"), ((0, 1), (2,)), (False, True), (0.0,) * 3, (1.0,) * 3, (0.5,) * 3, (0.5,) * 3)
    assert not fine.fault()
    assert said in replace(fine, **change).fault()


def test_a_folder_with_such_a_coding_is_refused_in_one_line(tmp_path):
    x, _ = table()
    write_knowledge(tmp_path, Knowledge(model=TABLE, coding=find_coding(x)))
    file = tmp_path / "knowledge.json"
    text = file.read_text(encoding="utf-8")
    assert json.loads(text)["coding"]["columns"][0] == [0]
