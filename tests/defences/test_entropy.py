"""Noise that protects somebody follows from at least 128 bits: nobody finds it by trying all seeds of a generator.

Two kinds of pairs of seeds are looked at. Seeds that agree in their lowest 32, 64 or 96 bits must not agree in the
noise. Nor must seeds from which the same 32 bits are derived, which is what a generator that keeps 32 bits would have.
"""

import secrets
from collections.abc import Callable

import numpy as np
import pytest
from torch import nn

from fedattack.claims.canaries.directions import move_arrays
from fedattack.defences import DEFENCES, defence_of
from fedattack.defences.guarantee import NOISY
from fedattack.learning import private_gradient, train_private
from simulations.seeds import derive_secret, derive_seed
from tests.strategies.test_central import released
from tests.worlds.local_grid import LocalGrid

Noise = Callable[[int], np.ndarray]

UPDATE = {"w": np.zeros((3, 2), np.float32)}
WORDS = 4
# By the birthday paradox two of so many have the same 32 bits: there are nineteen such pairs on average.
MANY = 400_000


def drawn_by(defence: str) -> Noise:
    def noise(seed: int) -> np.ndarray:
        chosen = defence_of({"defence": defence, "defence-strength": 0.5})
        assert chosen is not None
        return chosen.apply(UPDATE, np.random.default_rng(seed))["w"]

    return noise


def model() -> nn.Linear:
    linear = nn.Linear(3, 2, bias=False)
    nn.init.zeros_(linear.weight)
    return linear


X, Y = np.ones((4, 3), np.float32), np.zeros(4, np.int64)


def of_gradient(seed: int | None) -> np.ndarray:
    return private_gradient(model(), X, Y, noise=1.0, clip=1.0, seed=seed)["weight"]


def of_training(seed: int) -> np.ndarray:
    trained = model()
    train_private(trained, X, Y, epochs=1, batch_size=0, lr=1.0, noise=1.0, clip=1.0, seed=seed)
    return trained.weight.detach().numpy()


def of_batches(seed: int) -> np.ndarray:
    """Which examples are drawn: an amplified ε holds towards those alone who do not know."""
    x = np.eye(60, dtype=np.float32)
    trained = nn.Linear(60, 2, bias=False)
    nn.init.zeros_(trained.weight)
    train_private(trained, x, np.zeros(60, np.int64), epochs=1, batch_size=30, lr=1.0, noise=0.0, clip=1.0, seed=seed)
    return trained.weight.detach().numpy()


def of_central(seed: int) -> np.ndarray:
    LocalGrid(None, 1)  # messages can be made within a run alone
    return released(1.0, seed=seed)["b"]


def of_canary(seed: int) -> np.ndarray:
    return move_arrays(UPDATE, seed, 0, 1.0)["w"]


NOISES = {name: drawn_by(name) for name in NOISY} | {
    "dp-sgd, a gradient": of_gradient,
    "dp-sgd, training": of_training,
    "dp-sgd, batches": of_batches,
    "central noise": of_central,
    "a canary": of_canary,
}


def test_all_defences_that_draw_noise_are_looked_at():
    assert {*NOISY} <= {*NOISES}
    assert {*NOISY} <= {*DEFENCES}


@pytest.fixture(scope="module")
def twins():
    """Pairs of seeds by each word of 32 bits that is derived from both."""
    states = np.stack([np.random.SeedSequence(seed).generate_state(WORDS) for seed in range(MANY)])
    pairs = []
    for word in states.T:
        order = np.argsort(word, kind="stable")
        (same, *_) = np.flatnonzero(word[order][1:] == word[order][:-1])
        pairs.append((int(order[same]), int(order[same + 1])))
    return pairs


@pytest.mark.parametrize("name", NOISES)
def test_the_same_seed_gives_the_same_noise_and_each_bit_of_it_counts(name):
    noise, seed = NOISES[name], secrets.randbits(128)
    first = noise(seed)
    assert np.array_equal(first, noise(seed))
    for bit in (0, 31, 32, 63, 64, 95, 96, 127):
        assert not np.array_equal(first, noise(seed ^ (1 << bit))), bit


@pytest.mark.parametrize("name", NOISES)
def test_seeds_from_which_the_same_32_bits_follow_give_other_noise(name, twins):
    for one, other in twins:
        assert not np.array_equal(NOISES[name](one), NOISES[name](other)), (one, other)


@pytest.mark.slow
def test_flowers_noise_does_not_follow_from_32_bits_that_a_generator_draws():
    drawn = np.array([np.random.default_rng(seed).integers(2**32) for seed in range(MANY)])
    order = np.argsort(drawn, kind="stable")
    (same, *_) = np.flatnonzero(drawn[order][1:] == drawn[order][:-1])
    noise = NOISES["flower-localdp"]
    assert not np.array_equal(noise(int(order[same])), noise(int(order[same + 1])))


def test_a_run_derives_128_bits_for_noise(twins):
    of_stream = [derive_secret(seed, 2) for seed in range(200)]
    assert max(of_stream).bit_length() > 120
    for place in range(128):
        share = np.mean([value >> place & 1 for value in of_stream])
        assert 0.3 < share < 0.7, place
    assert derive_seed(5, 2) == derive_secret(5, 2) % 2**32


def test_without_a_seed_the_operating_system_draws():
    first = of_gradient(None)
    assert not np.array_equal(first, of_gradient(None))
