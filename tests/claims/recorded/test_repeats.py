import numpy as np
import pytest

from fedattack.claims.recorded import repeats
from fedattack.claims.recorded.draws import GaussianDraws
from fedattack.claims.recorded.looking import Head
from fedattack.claims.recorded.repeats import UpdateHeads, choose_length, count_tests, repeats_in

GAUSSIAN = GaussianDraws()


def kept(node, number, **arrays):
    return UpdateHeads(node, number, {name: Head(np.asarray(a, np.float32), 0.0) for name, a in arrays.items()})


def found(updates, error=1e-6, scale=1.0):
    return [
        (r.first.node, r.second.node, r.first.round, r.second.round, r.name, r.other)
        for r in repeats_in(updates, GAUSSIAN, scale, error)
    ]


def test_what_is_left_is_what_a_projection_leaves():
    stack = np.random.default_rng(0).normal(size=(4, 30))
    left = repeats._squares_across(stack)
    for i in range(4):
        for j in range(4):
            along = stack[i] / np.linalg.norm(stack[i])
            assert left[i, j] == pytest.approx(((stack[j] - (stack[j] @ along) * along) ** 2).sum(), abs=1e-9)
    assert repeats._squares_across(np.zeros((2, 3))).tolist() == [[0, 0], [0, 0]]


def test_comparisons_are_counted():
    rng = np.random.default_rng(1)
    updates = [
        kept(str(n), r, a=rng.normal(size=100), b=rng.normal(size=200), c=rng.normal(size=5))
        for r in (1, 2, 3)
        for n in range(4)
    ]
    between_clients, between_rounds, between_arrays = 3 * 2 * 4 * 3, 4 * 2 * 3, 4 * 2
    assert count_tests(updates) == between_clients + between_rounds + between_arrays
    assert found(updates) == []


@pytest.mark.parametrize("factor", [1.0, -1.0, 2.0])
def test_noise_of_another_client(factor):
    noise = np.random.default_rng(2).normal(size=500)
    updates = [kept("0", 1, a=noise + 0.05), kept("1", 1, a=factor * noise)]
    assert ("0", "1", 1, 1, "a", "a") in found(updates)


def test_noise_of_another_round_is_looked_for_in_later_ones_alone():
    noise = np.random.default_rng(3).normal(size=500)
    updates = [kept("0", 1, a=noise), kept("0", 4, a=noise + 0.01)]
    assert found(updates) == [("0", "0", 1, 4, "a", "a")]


def test_noise_of_another_array_of_the_update():
    noise = np.random.default_rng(4).normal(size=500)
    both = {("0", "0", 1, 1, "a", "b"), ("0", "0", 1, 1, "b", "a")}
    assert set(found([kept("0", 1, a=noise, b=noise[:300])])) == both


def test_updates_that_are_alike_have_noise_of_their_own():
    """A large common part does not make the noise that is left shorter."""
    rng = np.random.default_rng(5)
    common = 50 * rng.normal(size=400)
    alarms = 0
    for _ in range(200):
        updates = [kept(str(n), 1, a=common + rng.normal(size=400)) for n in range(3)]
        alarms += bool(found(updates, error=0.05 / 6))
    assert alarms <= 20


def test_what_rounding_took_is_allowed_for():
    noise = np.random.default_rng(6).normal(size=500)
    same = kept("0", 1, a=noise), kept("1", 1, a=noise)
    loose = [UpdateHeads(each.node, 1, {"a": Head(each.heads["a"].values, 100.0)}) for each in same]
    assert len(found(same)) == 2
    assert found(loose) == []


def test_so_much_is_kept():
    assert choose_length(2, 5) >= 1000
    assert choose_length(2, 1_000_000) * 2 * repeats.MOST_UPDATES <= 1 << 26
    assert choose_length(1_000_000_000, 1) == repeats.LEAST
