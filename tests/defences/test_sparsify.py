import numpy as np
import pytest

from fedattack.base.errors import ConfigError
from fedattack.defences import DEFENCES

RNG = np.random.default_rng(0)


def make(share: float):
    return DEFENCES["sparsify"]({"defence-strength": share})


def update() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(4)
    shapes = {"a": (30, 20), "b": (7,), "c": (), "empty": (0, 3)}
    return {name: np.asarray(draw.normal(size=shape), dtype=np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999, 1.0])
def test_what_is_above_the_percentile_is_kept_and_nothing_else(share):
    """Against numpy's percentile over all entries."""
    given = update()
    before = {name: array.copy() for name, array in given.items()}
    flat = np.abs(np.concatenate([array.ravel() for array in given.values()]))
    threshold = np.percentile(flat, 100 * share) if share else -1.0
    got = make(share).apply(given, RNG)
    for name, array in given.items():
        np.testing.assert_array_equal(got[name], np.where(np.abs(array) > threshold, array, 0))
        assert (got[name].shape, got[name].dtype) == (array.shape, np.float32)
        np.testing.assert_array_equal(array, before[name])
    assert sum(np.count_nonzero(array == 0) for array in got.values()) == round(share * len(flat))


def test_the_count_is_exact_among_equals():
    given = {"a": np.ones((10, 10), dtype=np.float32), "b": -np.ones(100, dtype=np.float32)}
    got = make(0.25).apply(given, RNG)
    assert sum(np.count_nonzero(array == 0) for array in got.values()) == 50


def test_a_share_beyond_all_is_refused():
    with pytest.raises(ConfigError, match=r"defence-strength = 1\.5: expected at most 1 "):
        make(1.5)
