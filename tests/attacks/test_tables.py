"""Tables of a model, and the rows of them that examples use, are found."""

import numpy as np
from torch import nn

from fedattack.attacks import Knowledge, ModelKnowledge, Targets
from fedattack.attacks.replies import spread_replies
from fedattack.attacks.tables import find_tables
from fedattack.record import Record, project_record
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


def test_replies_are_spread_over_the_run(tmp_path):
    record = Record(write_run(tmp_path, rounds=5, epochs=0, skip=((2, 0), (5, 0))) / "record")
    chosen = spread_replies(record, 2)
    assert [seq for seq, nodes in sorted(chosen.items()) if "node0" in nodes] == [0, 3]
    assert [seq for seq, nodes in sorted(chosen.items()) if "node1" in nodes] == [0, 4]
    assert all(len(nodes) == 4 for nodes in spread_replies(record, 9).values() if "node0" in nodes)
    sums = project_record(record, tmp_path / "sums")
    assert [len(nodes) for _, nodes in sorted(spread_replies(sums, 1).items())] == [4, 3, 4, 4, 3]
