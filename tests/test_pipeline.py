import pytest

from fedattack.app import load_preset
from fedattack.pipeline import choose_seeds


@pytest.mark.parametrize(
    ("first", "count", "seeds"),
    [
        (None, None, [0, 1, 2, 3, 4]),
        (None, 2, [0, 1]),
        (None, 7, [0, 1, 2, 3, 4, 5, 6]),
        (3, None, [3, 4, 5, 6, 7]),
        (3, 2, [3, 4]),
        (0, 1, [0]),
    ],
)
def test_seeds_are_the_presets_unless_said_otherwise(first, count, seeds):
    assert choose_seeds(load_preset("quickstart"), first, count) == seeds
