import math
from html import escape

import pytest

from fedattack.report.epsilons import Row, epsilon_axis, limits, raise_powers
from tests.report.test_figures import texts

INFINITE = math.inf


def test_all_numbers_are_named_in_the_drawing_and_in_its_words():
    rows = [
        Row("configured", "> 10⁹", 4.8e9, 4.8e9),
        Row("in the record", "≥ 3.1", 3.1, INFINITE),
        Row("measured", "infinite", INFINITE, INFINITE),
        Row("canaries", "not checked"),
    ]
    plot = epsilon_axis(10, rows, "the run of 5 rounds", "e")
    drawn = texts(plot.svg)
    for row in rows:
        assert {row.name, row.said} <= set(drawn)
        assert f"{row.name} {escape(row.said)}" in plot.svg
    assert {"claimed", "10", "above the claim", "10⁹"} <= set(drawn)
    assert plot.rows[1] == ["configured", "> 10⁹"]


def test_the_same_answer_gives_the_same_drawing():
    rows = [Row("configured", "1.99–33.1", 1.99, 33.1, 4.0)]
    assert epsilon_axis(3, rows, "the run", "e").svg == epsilon_axis(3, rows, "the run", "e").svg


@pytest.mark.parametrize(
    ("declared", "low", "high"),
    [
        (10, 4.8e9, 4.8e9),
        (8, 1.2, INFINITE),
        (0.001, 0.0, 0.0005),
        (3, INFINITE, INFINITE),
        (1e-9, 1e300, 1e301),
        (1e300, 1.0, 1.0),
    ],
)
def test_the_axis_holds_what_is_finite_and_leaves_room_beside_the_claim(declared, low, high):
    left, right = limits(declared, [Row("configured", "", low, high)])
    for end in (declared, low, high):
        if 1e-6 <= end <= 1e12:
            assert left <= end <= right
    if 1e-6 <= declared <= 1e12:
        assert 0 < math.log(declared / left) <= 0.5 * math.log(right / left)
    epsilon_axis(declared, [Row("configured", "", low, high)], "the run", "e")


def test_powers_are_raised():
    assert raise_powers("ε > 10^9, and 10^-12 of it") == "ε > 10⁹, and 10⁻¹² of it"
    assert raise_powers("10 ^ 9 of 2^9") == "10 ^ 9 of 2^9"
