"""Clipping and noise: exact where they can be, and of the stated distribution where they are random."""

import math

import numpy as np
import pytest
from scipy import stats

from fedattack.base.errors import ConfigError
from fedattack.defences import DEFENCES
from fedattack.defences.noise import clip_factor
from tests.refusals import refused

NOISY = ["dp-gaussian", "dp-laplace", "flower-localdp"]


def update(scale: float = 1.0, size: int = 200) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    shapes = {"a.weight": (size, 100), "a.bias": (size,), "scalar": ()}
    return {name: np.asarray(scale * draw.normal(size=shape), dtype=np.float32) for name, shape in shapes.items()}


def flat(arrays) -> np.ndarray:
    return np.concatenate([np.asarray(array, dtype=np.float64).ravel() for array in arrays.values()])


def clipped(update, clip: float) -> dict[str, np.ndarray]:
    factor = clip_factor(update, clip)
    return {name: array.astype(np.float64) * factor for name, array in update.items()}


def make(name: str, strength: float, clip: float):
    return DEFENCES[name]({"defence": name, "defence-strength": strength, "defence-clip": clip})


@pytest.mark.parametrize("clip", [1e-6, 0.3, 1.0, 17.3, 141.0])
def test_clipping_is_exact_and_keeps_the_direction(clip):
    given = update()
    norm = math.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in given.values()))
    assert norm > clip
    got = flat(clipped(given, clip))
    assert np.sqrt((got**2).sum()) <= clip * (1 + 1e-15)
    np.testing.assert_allclose(got, flat(given) * (clip / norm), rtol=1e-12)


def test_a_short_update_is_not_clipped_at_all():
    given = update()
    for name, array in clipped(given, 1e3).items():
        np.testing.assert_array_equal(array, given[name])
    zeros = {"a": np.zeros(3, np.float32)}
    np.testing.assert_array_equal(clipped(zeros, 1e-3)["a"], zeros["a"])


@pytest.mark.parametrize("name", NOISY)
def test_noise_has_the_stated_distribution_around_the_clipped_update(name):
    strength, clip = 0.05, 2.0
    given = update()
    before = {key: array.copy() for key, array in given.items()}
    got = make(name, strength, clip).apply(given, np.random.default_rng(1))
    noise = flat(got) - flat(clipped(given, clip))
    law = stats.laplace(scale=strength) if name == "dp-laplace" else stats.norm(scale=strength)
    assert stats.kstest(noise, law.cdf).pvalue > 0.01
    # a scale that is wrong by a tenth is found out
    assert stats.kstest(noise, lambda value: law.cdf(value / 1.1)).pvalue < 1e-4
    assert np.std(noise) == pytest.approx(law.std(), rel=0.02)
    assert abs(np.mean(noise)) < 4 * law.std() / math.sqrt(len(noise))
    # independent from one entry to the next
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 4 / math.sqrt(len(noise))
    for key, array in given.items():
        assert got[key].shape == array.shape
        assert got[key].dtype == np.float32
        np.testing.assert_array_equal(array, before[key])


@pytest.mark.parametrize("name", NOISY)
def test_the_generator_decides_the_noise_and_numpy_s_own_is_left_alone(name):
    given, defence = update(size=3), make(name, 0.1, 1.0)
    kept = np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = (flat(defence.apply(given, np.random.default_rng(seed))) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    np.testing.assert_array_equal(np.random.get_state()[1], kept)  # noqa: NPY002


def test_without_clipping_the_whole_update_stays():
    given = update(100.0)
    got = make("dp-gaussian", 1e-4, 0.0).apply(given, np.random.default_rng(0))
    np.testing.assert_allclose(flat(got), flat(given), rtol=0, atol=1e-2)


def test_flower_is_given_the_same_mechanism():
    """Of the same strength and clip it is DP-Gaussian, drawn by Flower."""
    given = update(size=20)
    got = make("flower-localdp", 1e-7, 0.5).apply(given, np.random.default_rng(0))
    np.testing.assert_allclose(flat(got), flat(clipped(given, 0.5)), atol=1e-6)


@pytest.mark.parametrize("tiny", [0.0, 1e-30])
@pytest.mark.parametrize("name", NOISY)
def test_an_update_without_a_norm_gets_the_noise_all_the_same(name, tiny):
    """Flower's mod would divide by the norm, which of 1e-30 is 0 in single precision."""
    given = {"a": np.full(20_000, tiny, dtype=np.float32)}
    got = make(name, 0.1, 1.0).apply(given, np.random.default_rng(0))["a"]
    law = stats.laplace(scale=0.1) if name == "dp-laplace" else stats.norm(scale=0.1)
    assert stats.kstest(got, law.cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("dp-gaussian", {"defence-strength": -0.1}, "defence-strength = -0.1: expected at least 0.0 "),
        ("dp-laplace", {"defence-strength": math.nan}, "defence-strength = nan"),
        ("dp-gaussian", {"defence-clip": -1.0}, "defence-clip = -1.0"),
        ("dp-gaussian", {"defence-strength": "much"}, "defence-strength = 'much': expected a number"),
        ("flower-localdp", {"defence-clip": 0.0}, "defence-clip = 0.0: expected more than 0 "),
        ("flower-localdp", {"dp-delta": 2.0}, "dp-delta = 2.0: expected less than 1.0"),
    ],
)
def test_bad_settings_are_refused_by_key(name, change, message):
    with refused(ConfigError, message):
        DEFENCES[name]({"defence-strength": 0.1, **change})
