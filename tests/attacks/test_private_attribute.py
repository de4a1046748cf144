from itertools import combinations

import numpy as np
import pytest
import torch

from fedattack.attacks.private_attribute import ADVERSARIES, auxiliary_updates, train_adversary
from fedattack.errors import ConfigError, DataError, ModelError
from fedattack.learning import LocalSGD, build_model, train_local
from fedattack.learning.pooled_updates import Fit
from tests.defences.updates import VALUES, planted_updates

FIT = Fit(epochs=4)


def trained(name, updates, labels, **changes):
    return train_adversary(
        name, updates, labels, **({"values": VALUES, "seed": 0, "features": 20, "fit": FIT} | changes)
    )


def success(adversary, updates, labels):
    return (adversary.infer(updates).decisions == labels).mean()


@pytest.mark.parametrize("name", ADVERSARIES)
def test_a_planted_attribute_is_found_and_a_shuffled_one_is_not(name):
    known, labels = planted_updates(300, seed=0)
    asked, truth = planted_updates(300, seed=1)
    assert success(trained(name, known, labels), asked, truth) > 0.7
    rng = np.random.default_rng(2)
    # One shuffle is right or wrong about many at once, so that several are needed.
    found = [success(trained(name, known, rng.permutation(labels)), asked, truth) for _ in range(8)]
    assert np.mean(found) == pytest.approx(1 / VALUES, abs=0.07)


@pytest.mark.parametrize("name", ADVERSARIES)
def test_beliefs_are_shares_whose_largest_is_the_decision_and_come_from_the_seed(name):
    known, labels = planted_updates(90, seed=0)
    asked, _ = planted_updates(40, seed=1)
    first, again = (trained(name, known, labels).infer(asked) for _ in range(2))
    assert first.beliefs.shape == (40, VALUES)
    np.testing.assert_allclose(first.beliefs.sum(axis=1), 1)
    assert first.beliefs.min() >= 0
    np.testing.assert_array_equal(first.decisions, first.beliefs.argmax(axis=1))
    np.testing.assert_array_equal(first.beliefs, again.beliefs)
    if name != "svm":  # which draws nothing
        assert (trained(name, known, labels, seed=1).infer(asked).beliefs != first.beliefs).any()


@pytest.mark.parametrize("name", ["svm", "random-forest"])
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_value_that_nobody_in_training_has_is_believed_of_nobody(name, missing):
    known, labels = planted_updates(90, seed=0)
    rows = np.flatnonzero(labels != missing)
    asked, truth = planted_updates(100, seed=1)
    found = trained(name, [known[row] for row in rows], labels[rows]).infer(asked)
    assert (found.beliefs[:, missing] == 0).all()
    assert (found.decisions == truth)[truth != missing].mean() > 0.7


def test_an_adaptive_adversary_undoes_a_defence_that_a_static_one_does_not():
    """Here the defence turns updates around: whoever trains on such updates does not mind."""
    known, labels = planted_updates(300, seed=0)
    asked, truth = planted_updates(200, seed=1)
    turned, asked = ([{name: -array for name, array in update.items()} for update in many] for many in (known, asked))
    assert success(trained("random-forest", turned, labels), asked, truth) > 0.6
    assert success(trained("random-forest", known, labels), asked, truth) < 0.45


def test_adversaries_refuse_what_does_not_fit():
    known, labels = planted_updates(30, seed=0)
    with pytest.raises(ConfigError, match="unknown adversary 'knn'; expected one of stru-nn"):
        trained("knn", known, labels)
    with pytest.raises(DataError, match="expected 30 whole numbers"):
        trained("svm", known, labels[:-1])
    with pytest.raises(DataError, match="at least two values"):
        trained("svm", known, np.ones_like(labels))
    with pytest.raises(ModelError, match="b has shape none"):
        trained("svm", known, labels).infer([{"w": known[0]["w"]}])


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
    updates, labels = auxiliary_updates(model, start, x, y, attribute, training, clients=40, records=3, seed=1)
    assert set(labels.tolist()) == {0, 1}
    single = []
    for record in range(12):
        model.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
        train_local(model, x[[record]], y[[record]], epochs=1, batch_size=0, lr=0.5, seed=0)
        single.append({name: value.numpy() - start[name] for name, value in model.state_dict().items()})
    for update, label in zip(updates, labels.tolist(), strict=True):
        own = np.flatnonzero(attribute == label)
        found = [
            rows
            for rows in combinations(own.tolist(), 3)
            if all(
                np.allclose(np.mean([single[row][name] for row in rows], axis=0), update[name], atol=1e-6)
                for name in update
            )
        ]
        assert len(found) == 1, "three different records of the client's value, and nobody else's"


def test_values_are_dealt_as_they_occur_and_all_comes_from_the_seed():
    x, y, attribute = auxiliary()
    model = build_model("linear", input_shape=(4,), classes=3, seed=0)
    start = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}

    def drawn(seed):
        return auxiliary_updates(model, start, x, y, attribute, LocalSGD(2, 2, 0.1), clients=400, records=4, seed=seed)

    (first, labels), (again, _), (other, _) = drawn(0), drawn(0), drawn(1)
    assert labels.mean() == pytest.approx(0.25, abs=0.07)
    np.testing.assert_array_equal(first[7]["fc1.weight"], again[7]["fc1.weight"])
    assert (first[7]["fc1.weight"] != other[7]["fc1.weight"]).any()
    with pytest.raises(DataError, match=r"at least 16 records of each value; got \{0: 45, 1: 15\}"):
        auxiliary_updates(model, start, x, y, attribute, LocalSGD(1, 2, 0.1), clients=4, records=16, seed=0)
