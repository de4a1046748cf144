import numpy as np
import pytest

from fedattack.attacks.private_attribute import ADVERSARIES, train_adversary
from fedattack.errors import ConfigError, DataError, ModelError
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
