"""Neurons that look in one direction are found, and neighbours told apart, against the sums that they are."""

import numpy as np

from fedattack.threats.exact.rows import find_bins, subtract_neighbours


def test_neurons_of_one_direction_are_found_in_the_order_of_their_places():
    draw = np.random.default_rng(0)
    direction, places = draw.normal(size=12), draw.permutation(20).astype(float)
    start = np.column_stack([0.01 * np.tile(direction, (20, 1)), -0.01 * places])
    others = np.column_stack([draw.normal(size=(30, 12)), np.zeros(30)])
    dead = np.column_stack([np.zeros((40, 12)), -np.ones(40)])
    order = draw.permutation(90)
    (rows,) = find_bins(np.concatenate([start, others, dead])[order])
    np.testing.assert_array_equal(order[rows], np.argsort(places))


def test_honest_layers_have_none():
    assert find_bins(np.random.default_rng(0).normal(size=(200, 65))) == []
    assert find_bins(np.zeros((200, 65))) == []


def test_neighbours_differ_by_what_lies_between():
    x = np.random.default_rng(1).normal(size=(5, 3))
    pull = np.arange(1.0, 6.0)
    each = pull[:, None] * np.column_stack([x, np.ones(5)])
    # The first neuron is moved by all, and each further one by one example less.
    moved = np.cumsum(each[::-1], axis=0)[::-1]
    rows, between, rounding = subtract_neighbours(moved, np.full(5, 0.1), [np.arange(5)])
    np.testing.assert_allclose(between, each)
    np.testing.assert_allclose(rounding, [0.2, 0.2, 0.2, 0.2, 0.1])
    np.testing.assert_array_equal(rows, np.arange(5))
