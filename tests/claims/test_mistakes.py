import math

import pytest

from fedattack.claims import mistakes
from fedattack.privacy.gaussian import epsilon_of


def test_every_mistake_costs():
    table = mistakes.mistakes()
    assert len({row.name for row in table}) == 8
    for row in table:
        assert row.true > row.claimed > 0, row.name
        assert row.example
        assert row.why


def test_some_by_closed_forms():
    assert mistakes.low_sensitivity().true > 1e8
    assert mistakes.low_sensitivity(sensitivity=2.0, epsilon=0.9).true < 0.9
    # σ = 0.4845 for ε = 10.
    assert mistakes.classical_formula().true == pytest.approx(epsilon_of(1 / 0.48448, 1e-5), rel=1e-4)
    assert mistakes.classical_formula(0.9).true < 0.9
    assert mistakes.per_round(rounds=1).true == pytest.approx(1.0)
    assert mistakes.weights(share=0.1).true == pytest.approx(mistakes.weights().claimed)
    assert mistakes.left_out().true == math.inf
    assert mistakes.noise_first(norm=1.0).true == pytest.approx(mistakes.noise_first().claimed)
    assert mistakes.secagg_range(entries=1).true == pytest.approx(mistakes.secagg_range().claimed)


def test_a_new_engine_forgets():
    one, many = (mistakes.reset_engine(rounds=rounds) for rounds in (1, 50))
    assert one.true == one.claimed == many.claimed
    assert many.true > 4
