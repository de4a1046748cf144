"""How unlikely accidents are is what counting says."""

import math

import numpy as np
import pytest

from fedattack.attacks.accidents import bits_of_matches


def test_bits_say_how_rare_and_how_exact_a_number_is():
    known = np.arange(1024.0)[:, None] * np.array([[1.0, 0.0]])
    # Of 1,024 evenly spread whole numbers one is met once in so many, however exactly.
    assert bits_of_matches(known[[500]], np.array([1e-6, 1e-6]), known)[0] == pytest.approx(10, abs=0.2)
    # An error of 64 to both sides meets 128 times as many.
    assert bits_of_matches(known[[500]], np.array([64.0, 1.0]), known)[0] == pytest.approx(3, abs=0.2)
    # Each tenth of numbers that are no multiples of anything tells more, the more exactly it is met.
    numbers = np.sort(np.random.default_rng(0).uniform(size=4_096))[:, None]
    exact = bits_of_matches(numbers[[2000]], np.array([1e-5]), numbers)[0]
    assert exact == pytest.approx(-math.log2(2e-5), abs=0.6)
    # A number that every second one has tells one bit.
    halves = np.array([0.0, 1.0] * 500)[:, None]
    assert bits_of_matches(halves[[0]], np.array([1e-9]), halves)[0] == pytest.approx(1, abs=0.01)
