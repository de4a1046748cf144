"""The order of nodes: that of their partitions, for which many nodes are not asked one and all."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from simulations import order
from simulations.order import OrderedGrid
from tests.worlds.local_grid import LocalGrid
from tests.worlds.reference import DEFAULTS, run_app

NODES = 8


class Registered(LocalGrid):
    """Nodes of random ids, that say in which order they were registered, if they do."""

    def __init__(self, partitions=range(NODES), stamps: bool = True):
        self.asked = []

        def app(message, context):
            self.asked.append(context.node_config["partition-id"])
            return self.answer(message, context)

        super().__init__(app, NODES)
        ids = random.Random(0).sample(range(10**9), NODES)
        contexts = list(self._contexts.values())
        self._contexts = {node: contexts[partition] for node, partition in zip(ids, partitions, strict=True)}
        self._stamps = {node: f"2026-11-23T00:00:0{place}" if stamps else "" for place, node in enumerate(ids)}
        self.partition = {node: context.node_config["partition-id"] for node, context in self._contexts.items()}

    def answer(self, message, context):
        properties = ConfigRecord({"client": str(context.node_config["partition-id"])})
        return Message(RecordDict({"getpropertiesres.properties": properties}), reply_to=message)

    def get_nodes(self):
        nodes = [SimpleNamespace(node_id=node, registered_at=self._stamps[node]) for node in self._contexts]
        return sorted(nodes, key=lambda node: node.node_id)

    def held_by(self, nodes):
        return [self.partition[node] for node in nodes]


@pytest.fixture
def many(monkeypatch):
    monkeypatch.setattr(order, "FEW", NODES - 1)


@pytest.mark.usefixtures("many")
def test_of_many_nodes_those_that_are_needed_are_asked_once():
    grid = Registered()
    ordered = OrderedGrid(grid, NODES)
    assert len(list(ordered.get_node_ids())) == NODES
    assert grid.asked == []
    assert grid.held_by(ordered.nodes_at([5, 2])) == [5, 2]
    assert grid.held_by(ordered.nodes_at([2, 7])) == [2, 7]
    assert grid.asked == [5, 2, 7]


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    "grid", [lambda: Registered([0, 1, 2, 4, 3, 5, 6, 7]), lambda: Registered(stamps=False)], ids=["swapped", "silent"]
)
def test_where_the_order_is_another_all_are_asked(grid):
    grid = grid()
    ordered = OrderedGrid(grid, NODES)
    assert grid.held_by(ordered.nodes_at([3, 0, 6])) == [3, 0, 6]
    assert sorted(grid.asked) == list(range(NODES))
    assert grid.held_by(ordered.get_node_ids()) == list(range(NODES))


def test_few_nodes_are_all_asked_at_once():
    grid = Registered([3, 1, 2, 0, 4, 5, 7, 6])
    ordered = OrderedGrid(grid, NODES)
    assert grid.held_by(ordered.get_node_ids()) == list(range(NODES))
    assert sorted(grid.asked) == list(range(NODES))
    assert grid.held_by(ordered.nodes_at([4])) == [4]
    assert len(grid.asked) == NODES


@pytest.mark.parametrize("changes", [{}, {"server": "isolating", "victims": 2}, {"secagg": True}], ids=str)
def test_a_run_is_the_same_whether_all_nodes_are_asked_or_those_that_are_drawn(changes, tmp_path, monkeypatch):
    config = (
        DEFAULTS | {"clients": 12, "fraction": 0.25, "rounds": 2, "seed": 3, "device": "cpu", "size": 500} | changes
    )
    asked = run_app(tmp_path / "asked", config)
    monkeypatch.setattr(order, "FEW", 0)
    drawn = run_app(tmp_path / "drawn", config)
    assert len(drawn) == len(asked) == 2
    for one, other in zip(asked, drawn, strict=True):
        assert sorted(one.sampled) == sorted(other.sampled)
        # SecAgg+ rounds at random.
        tolerance = 1e-3 if "secagg" in changes else 0.0
        for name, array in one.after.items():
            np.testing.assert_allclose(array, other.after[name], rtol=0, atol=tolerance)
