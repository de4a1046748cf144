"""Examples of sums are grouped by client where they move a neuron that another one woke; never across clients."""

import numpy as np
import pytest

from fedattack.learning import LocalSGD
from fedattack.threats.exact.activations import MovedNeuron, ReadExamples, group_examples
from tests.threats.exact.world import attacked, judged, write_sums

EXAMPLES = np.random.default_rng(0).random((6, 30))


def explained(pulls, start, examples=EXAMPLES, noise=0.0):
    """Explain neurons that move by examples, neuron i by example j with the weight ``pulls[i, j]``."""
    moved = np.column_stack([pulls @ EXAMPLES, pulls.sum(axis=1)])
    moved = moved + np.random.default_rng(1).normal(scale=max(noise, 1e-12), size=moved.shape)
    rounding = np.full(len(moved), max(4 * noise, 1e-10))
    return ReadExamples(examples, np.zeros(len(examples))).explain_neurons(moved, start, rounding)


def starting_above(examples):
    """Return the weights and bias of a neuron that these examples alone are above zero for."""
    sides = np.where(np.isin(np.arange(len(EXAMPLES)), examples), 1.0, -1.0)
    return np.append(np.linalg.lstsq(EXAMPLES, sides, rcond=None)[0], 0.0)


@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_what_moved_a_neuron_is_found_and_split_by_who_woke_it(noise):
    pulls = np.array([[0, 1.0, 0, -0.5, 0, 0], [2, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0.0]])
    start = np.array([starting_above([1]), starting_above([0, 2]), starting_above([4])])
    found = explained(pulls, start, noise=noise)
    assert [(neuron.before.tolist(), neuron.later.tolist()) for neuron in found] == [([1], [3]), ([0], [])]


def test_a_neuron_that_an_unknown_example_moved_is_left_alone():
    pulls = np.array([[0, 1.0, 0, 0, 0, 0.7]])
    assert explained(pulls, np.array([starting_above([1])]), examples=EXAMPLES[:5]) == []


def test_an_example_in_doubt_leaves_its_neuron_alone():
    noise = 1e-3
    pulls = np.array([[0, 1.0, 0, 4.5 * 4 * noise / np.linalg.norm(EXAMPLES[3]), 0, 0]])
    found = explained(pulls, np.array([starting_above([1])]), noise=noise)
    assert all(not len(neuron.later) for neuron in found)


def test_groups_grow_where_all_that_woke_a_neuron_are_of_one():
    def neuron(before, later):
        return MovedNeuron(np.array(before, dtype=np.int64), np.array(later, dtype=np.int64))

    two = [neuron([0], [1]), neuron([2], [3])]
    assert group_examples(6, two).tolist() == [0, 0, 1, 1, 2, 3]
    # What two of one group woke is of that group; what two of two groups woke is of either.
    more = [neuron([0, 1], [4]), neuron([1, 2], [5]), *two]
    assert group_examples(6, more).tolist() == [0, 0, 1, 1, 0, 2]
    assert group_examples(3, [neuron([], [1, 2])]).tolist() == [0, 1, 2]


def digits_of_sums(folder, **options):
    rng = np.random.default_rng(2)
    taking_part = [sorted(rng.choice(6, 3, replace=False).tolist()) for _ in range(10)]
    local = LocalSGD(4, 4, 0.5)
    shape = {"rounds": 10, "each": 8, "clients": 6, "hidden": 500, "seed": 2}
    return write_sums(folder, protocol="fedavg", training=local, taking_part=taking_part, **shape, **options)


@pytest.mark.slow
def test_digits_of_sums_are_grouped_and_no_group_is_of_two_clients(tmp_path):
    folder = digits_of_sums(tmp_path)
    found = judged(folder)
    assert found["recovered"].value > 0.7
    assert found["linked"].value > 0.3
    assert "; 0 examples are in a group of several clients" in found["linked"].reason
    assert found["clients"].value > 0.7


def test_after_one_step_nobody_woke_a_neuron(tmp_path):
    """The null run: every example that moved a neuron was above zero at the start."""
    folder = write_sums(tmp_path, rounds=4, each=5, taking_part=[(0, 1), (2, 3), (0, 2), (1, 3)])
    scores = attacked(folder, draws="0")
    assert len(scores.arrays["examples"]) > 3
    assert len(np.unique(scores.arrays["groups"])) == len(scores.arrays["examples"])
