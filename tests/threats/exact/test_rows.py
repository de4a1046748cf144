"""Quotients of neurons: what one example alone moves is that example, and mixtures are not taken for one."""

import numpy as np

from fedattack.threats.exact.known_values import KnownValues
from fedattack.threats.exact.rows import choose, divide, join

NOTHING = KnownValues(np.ones(6), (), np.zeros(6))


def moved_by(pulls, x):
    """Return how weights and bias move: neuron i by example j with the weight ``pulls[i, j]``."""
    return np.column_stack([pulls @ x, pulls.sum(axis=1)])


def read(pulls, x, known=NOTHING, tells_apart=True):
    moved = moved_by(pulls, x)
    rounding = np.full(len(moved), 1e-12)
    parts = [divide(moved, np.zeros_like(moved), rounding, 0, known, is_active=False)]
    return choose(join(parts, x.shape[1]), known, tells_apart=tells_apart)


def test_examples_of_two_neurons_are_read_and_mixtures_are_not():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(3, 6))
    # Two neurons of the first example, one of the second, two mixtures, one that nobody moves.
    pulls = np.array([[2.0, 0, 0], [-0.5, 0, 0], [0, 1, 0], [1, 2, 0], [3, 1, 0], [0, 0, 0]])
    found = read(pulls, x)
    np.testing.assert_allclose(found.x, x[:1], atol=1e-9)
    assert found.agree.tolist() == [True]
    assert found.seen == (frozenset({0}),)


def test_where_all_pull_in_one_direction_agreement_says_nothing():
    draw = np.random.default_rng(0)
    x, pulls = draw.normal(size=(2, 6)), np.array([[1.0, 2.0], [3.0, 6.0]])
    assert len(read(pulls, x).x) == 1
    assert not len(read(pulls, x, tells_apart=False).x)


def test_values_that_are_known_tell_one_neuron_s_example_from_a_mixture():
    scale = np.arange(5) / 4
    known = KnownValues(np.ones(6), (scale,) * 6, np.zeros(6))
    x = np.array([[0, 1, 0.25, 0.5, 0.75, 1], [1, 0.5, 0.25, 0.25, 0, 0.75]])
    found = read(np.array([[1.0, 0], [0.3, 0.4]]), x + 1e-13, known, tells_apart=False)
    np.testing.assert_array_equal(found.x, x[:1])
    assert found.agree.tolist() == [False]


def test_of_mixtures_of_random_examples_none_passes():
    draw = np.random.default_rng(3)
    scale = np.arange(17) / 16
    known = KnownValues(np.ones(30), (scale,) * 30, np.zeros(30))
    x = draw.choice(scale, size=(40, 30))
    pulls = draw.normal(size=(2000, 40)) * (draw.random((2000, 40)) < 0.1)
    alone = (pulls != 0).sum(axis=1) == 1
    pulls = pulls[~alone]
    assert not len(read(pulls, x, known).x)
