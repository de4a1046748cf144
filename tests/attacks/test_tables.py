"""Tables of a model, and the rows of them that examples use, are found."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.attacks import Knowledge, ModelKnowledge, Targets
from fedattack.attacks.lookups import used_rows
from fedattack.attacks.replies import spread_replies
from fedattack.attacks.tables import find_moving_tables, find_tables, find_tables_by_ids, tables_of
from fedattack.base.structured import pack
from fedattack.record import Exchange, Record, RecordWriter, Reply, project_record
from tests.worlds.federation import write_run


def knowing(x, **others):
    shape = np.asarray(x).shape[1:]
    return Knowledge(ModelKnowledge("mlp", shape, 2), Targets(np.float32(x), np.zeros(len(x), np.int64)), **others)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(12, 2, padding_idx=0)
        self.kinds = nn.Embedding(2, 2)
        self.items = nn.EmbeddingBag(20, 2)
        self.out = nn.Linear(2, 20, bias=False)
        self.out.weight = self.items.weight


def test_embeddings_are_tables_once_each_and_the_largest_is_the_first():
    tables = find_tables(Recommender(), knowing([[0.5]]))
    assert [(table.name, table.rows.tolist()) for table in tables] == [
        ("items.weight", list(range(20))),
        ("users.weight", list(range(1, 12))),
    ]
    frozen = knowing([[0.5]], frozen={"items.weight": np.zeros((20, 2), np.float32)})
    assert [table.name for table in find_tables(Recommender(), frozen)] == ["users.weight"]


def test_inputs_of_a_first_layer_that_are_0_or_1_are_words():
    x = np.eye(14)
    x[:, 2], x[:, 3] = 0.5, 1
    (table,) = find_tables(nn.Sequential(nn.Flatten(), nn.Linear(14, 3), nn.Linear(3, 2)), knowing(x))
    # The third is a number, and the fourth is always 1.
    assert (table.name, table.by_column, table.rows.tolist()) == ("1.weight", True, [0, 1, *range(4, 14)])
    assert table.orient(np.zeros((3, 14))).shape == (14, 3)
    assert find_tables(nn.Linear(7, 2), knowing(x)) == []
    assert find_tables(nn.Linear(9, 2), knowing(x[:, 5:])) == []
    rim = np.column_stack([np.eye(12)[:, :5], np.zeros((12, 30))])
    assert find_tables(nn.Linear(35, 2), knowing(rim)) == []
    assert find_tables(nn.Linear(1, 2), knowing([[0.5]])) == []


class Bare(nn.Module):
    """A table of items that is no layer, and a layer that is no table."""

    def __init__(self):
        super().__init__()
        self.items = nn.Parameter(torch.zeros(30, 4))
        self.out = nn.Linear(4, 11)


def items(most):
    x = pack({"0": np.array([[0, most], [3, 2]]), "met0": np.array([1, 10])})
    return Knowledge(targets=Targets(x, np.zeros(2, np.int64)))


@pytest.mark.parametrize(
    ("shapes", "most", "found"),
    [
        # The whole model is one embedding, whatever its name.
        ({"weight": (30, 4)}, 29, ["weight"]),
        ({"0": (30, 4)}, 20, ["0"]),
        ({"net.item_factors": (30, 4), "net.bias": (30,)}, 29, ["net.item_factors"]),
        # No row for some id; labels alone; two that would do.
        ({"weight": (30, 4)}, 30, []),
        ({"weight": (11, 4)}, 40, []),
        ({"a": (30, 4), "b": (35, 4)}, 29, []),
        ({"weight": (300, 4)}, 29, []),
    ],
)
def test_a_table_without_a_name_is_told_by_the_ids_that_examples_hold(shapes, most, found):
    known = items(most)
    assert [table.name for table in find_tables_by_ids([*shapes.items()], known)] == found
    assert find_tables_by_ids([*shapes.items()], Knowledge()) == []


def test_a_bare_parameter_is_a_table_and_its_rows_are_those_of_the_ids():
    known = replace(items(29), model=ModelKnowledge(f"{__name__}:Bare", (), 11, arguments={}))
    (table,) = tables_of(Bare(), known, None)
    assert (table.name, table.module, table.by_ids) == ("items", "", True)
    used = used_rows(known, [("a", known.targets.x[:1]), ("b", known.targets.x)])
    assert used["rows"].tolist() == [0, 29, 0, 2, 3, 29]
    assert [each.name for each in tables_of(nn.Embedding(30, 4), known, None)] == ["weight"]


def test_replies_are_spread_over_the_run(tmp_path):
    record = Record(write_run(tmp_path, rounds=5, epochs=0, skip=((2, 0), (5, 0))) / "record")
    chosen = spread_replies(record, 2)
    assert [seq for seq, nodes in sorted(chosen.items()) if "node0" in nodes] == [0, 3]
    assert [seq for seq, nodes in sorted(chosen.items()) if "node1" in nodes] == [0, 4]
    assert all(len(nodes) == 4 for nodes in spread_replies(record, 9).values() if "node0" in nodes)
    sums = project_record(record, tmp_path / "sums")
    assert [len(nodes) for _, nodes in sorted(spread_replies(sums, 1).items())] == [4, 3, 4, 4, 3]


def write_moving(folder, clients: int, *, bias: bool, own: bool = True) -> Record:
    """Write a record of which each client moves its own rows of two arrays; the second one may have a bias."""
    rng = np.random.default_rng(0)
    common = {"0": rng.normal(size=(40, 4)), "1": rng.normal(size=(20, 4)), "2": rng.normal(size=20)}
    common = {name: array.astype(np.float32) for name, array in common.items()}
    writer = RecordWriter(folder)
    replies = []
    for client in range(clients):
        sent = {name: array.copy() for name, array in common.items()}
        draw = np.random.default_rng(client if own else 0)
        sent["0"][draw.choice(40, 12, replace=False)] += 1
        neurons = np.random.default_rng(90 + client).choice(20, 9, replace=False)
        sent["1"][neurons] += 1
        sent["2"][neurons if bias else slice(None)] += 1
        replies.append(Reply(str(client), "ok", sent, 10))
    writer.write(Exchange(1, common, replies))
    writer.close()
    return Record(folder)


def test_a_record_alone_shows_a_table_by_the_rows_that_each_client_moves(tmp_path):
    (table,) = tables_of(None, Knowledge(), write_moving(tmp_path / "a", 5, bias=True))
    # Rows of a layer that move with its bias are neurons.
    assert (table.name, len(table.rows)) == ("0", 40)
    assert {table.name for table in find_moving_tables(write_moving(tmp_path / "b", 5, bias=False))} == {"0", "1"}
    # Of two clients nothing is said, and neither where all move the same rows.
    assert find_moving_tables(write_moving(tmp_path / "c", 2, bias=True)) == []
    assert find_moving_tables(write_moving(tmp_path / "d", 5, bias=True, own=False)) == []
