"""The server of central differential privacy."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from strategies.central import CentralFedAvg, CentralNoise
from strategies.honest_but_curious import Sampling
from tests.worlds.local_grid import LocalGrid

MODEL = {"w": np.zeros((50, 40), np.float32), "b": np.zeros(40, np.float32)}
# Flower's wrapper divides by the norm of an update, and fails where it is zero.
NEAR = {"w": np.zeros((50, 40), np.float32), "b": np.full(40, 1e-9, np.float32)}


@pytest.fixture(autouse=True)
def _within_a_run():
    """Messages can be made within a run alone."""
    LocalGrid(None, 1)


class Nodes:
    def get_node_ids(self):
        return [1, 2, 3, 4]


def as_arrays(arrays):
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def released(multiplier, clip=1.0, *, seed=0, server_round=1, replies=None, done=0):
    strategy = CentralFedAvg(Sampling(1.0, 4, 0), CentralNoise(multiplier, clip, seed))
    strategy._done = done
    list(strategy.configure_train(server_round, as_arrays(MODEL), ConfigRecord(), Nodes()))
    sent = []
    for count, arrays in replies or [(10, NEAR)] * 4:
        content = RecordDict({"arrays": as_arrays(arrays), "metrics": MetricRecord({"num-examples": count})})
        sent.append(Message(content, reply_to=Message(RecordDict(), 1, MessageType.TRAIN)))
    arrays, _ = strategy.aggregate_train(server_round, sent)
    return {name: array.numpy() for name, array in arrays.items()}


def test_updates_are_clipped_and_weigh_the_same():
    far = MODEL | {"b": np.full(40, 100.0, np.float32)}
    mean = released(0.0, 2.0, replies=[(1000, far), (1, NEAR), (1, NEAR), (1, NEAR)])
    assert np.linalg.norm(mean["b"]) == pytest.approx(2.0 / 4, rel=1e-5)


def test_noise_is_that_of_the_multiplier_over_the_clients():
    noise = np.concatenate([array.ravel() for array in released(2.0, 3.0).values()])
    assert noise.std() == pytest.approx(2.0 * 3.0 / 4, rel=0.05)
    assert abs(noise.mean()) < 0.1


def test_noise_follows_from_seed_and_round_and_leaves_the_global_generator():
    np.random.seed(5)  # noqa: NPY002
    first = released(1.0)["w"]
    drawn = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    assert np.random.random() == drawn  # noqa: NPY002
    assert np.array_equal(first, released(1.0)["w"])
    assert not np.array_equal(first, released(1.0, seed=1)["w"])
    assert not np.array_equal(first, released(1.0, server_round=2)["w"])
    # A run that goes on counts its rounds from one again.
    assert np.array_equal(released(1.0, server_round=3)["w"], released(1.0, server_round=1, done=2)["w"])
