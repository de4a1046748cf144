from itertools import combinations

import numpy as np
import pytest
import torch

from fedattack.base.errors import DataError
from fedattack.learning import LocalSGD, build_model, train_local
from fedattack.learning.attribute_updates import attribute_updates


def auxiliary(count=60):
    rng = np.random.default_rng(0)
    x = np.arange(count, dtype=np.float32)[:, None] * [1, 0, 0, 0] / 100 + rng.normal(size=(count, 4)) * [0, 1, 1, 1]
    return x.astype(np.float32), rng.integers(3, size=count), rng.permutation(np.arange(count) % 4 // 3)


def test_auxiliary_updates_are_those_of_clients_of_one_value():
    """With one step on all records an update is the mean of its records' own: all clients that may be are tried."""
    x, y, attribute = auxiliary(12)
    model = build_model("linear", input_shape=(4,), classes=3, seed=0)
    start = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    training = LocalSGD(epochs=1, batch_size=0, lr=0.5)
    made = attribute_updates(model, start, x, y, attribute, training, clients=40, records=3, seed=1)
    assert set(made.values.tolist()) == {0, 1}
    single = []
    for record in range(12):
        model.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
        train_local(model, x[[record]], y[[record]], epochs=1, batch_size=0, lr=0.5, seed=0)
        single.append({name: value.numpy() - start[name] for name, value in model.state_dict().items()})
    for update, value, rows in zip(made, made.values.tolist(), made.rows, strict=True):
        own = np.flatnonzero(attribute == value)
        found = [
            chosen
            for chosen in combinations(own.tolist(), 3)
            if all(
                np.allclose(np.mean([single[row][name] for row in chosen], axis=0), update[name], atol=1e-6)
                for name in update
            )
        ]
        assert len(found) == 1, "three different records of the client's value, and nobody else's"
        assert set(found[0]) == set(rows.tolist())


def test_values_are_dealt_as_they_occur_and_all_comes_from_the_seed():
    x, y, attribute = auxiliary()
    model = build_model("linear", input_shape=(4,), classes=3, seed=0)
    start = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}

    def drawn(seed):
        return attribute_updates(model, start, x, y, attribute, LocalSGD(2, 2, 0.1), clients=400, records=4, seed=seed)

    first, again, other = drawn(0), drawn(0), drawn(1)
    assert first.values.mean() == pytest.approx(0.25, abs=0.07)
    np.testing.assert_array_equal(list(first)[7]["fc1.weight"], list(again)[7]["fc1.weight"])
    assert (list(first)[7]["fc1.weight"] != list(other)[7]["fc1.weight"]).any()
    with pytest.raises(DataError, match=r"at least 16 examples of each value; got \{0: 45, 1: 15\}"):
        attribute_updates(model, start, x, y, attribute, LocalSGD(1, 2, 0.1), clients=4, records=16, seed=0)
