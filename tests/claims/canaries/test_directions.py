"""Directions of canaries, and the exact null of their scores."""

import numpy as np
import pytest
from scipy import stats

from fedattack.claims.canaries import directions
from fedattack.claims.canaries.directions import Products, blocks, move_arrays, sizes_of


def model(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(30, 20)).astype(np.float32),
        "count": np.array(3, dtype=np.int64),
        "b": rng.normal(size=50),
        "none": np.zeros((0, 3), np.float32),
    }


def direction(canary, seed=5):
    parts = [np.concatenate([drawn[0]]) for _, _, drawn in blocks(seed, [canary], sizes_of(model()))]
    return np.concatenate(parts).astype(np.float64)


def test_a_canary_is_as_far_as_it_should_be_in_its_own_direction_and_leaves_integers_alone():
    before = model()
    after = move_arrays(before, seed=5, canary=2, length=0.7)
    assert after["count"] == 3
    assert {name: (a.shape, a.dtype) for name, a in after.items()} == {
        name: (a.shape, a.dtype) for name, a in before.items()
    }
    way = np.concatenate([(after[name].astype(float) - before[name]).reshape(-1) for name in ("w", "b")])
    assert np.linalg.norm(way) == pytest.approx(0.7, rel=1e-5)
    towards = direction(2)
    assert way @ towards / np.linalg.norm(towards) == pytest.approx(0.7, rel=1e-5)
    assert abs(way @ direction(3) / np.linalg.norm(direction(3))) < 0.1
    assert np.array_equal(before["w"], model()["w"])


def test_a_direction_depends_neither_on_who_else_is_drawn_nor_on_the_blocks(monkeypatch):
    alone = direction(1)
    monkeypatch.setattr(directions, "_DRAWN", 64)
    monkeypatch.setattr(directions, "_ENTRIES", 16)
    parts = [drawn[1] for _, _, drawn in blocks(5, [0, 1, 4], sizes_of(model()))]
    assert len(parts) > 20
    assert np.array_equal(np.concatenate(parts), alone)


def test_scores_are_the_t_statistics_of_a_regression():
    rng = np.random.default_rng(1)
    drawn, vector = rng.normal(size=(4, 60)), rng.normal(size=60)
    products = Products(4)
    for part in (slice(0, 25), slice(25, 60)):
        products.add(drawn[:, part], vector[part])
    fitted, rest, *_ = np.linalg.lstsq(drawn.T, vector, rcond=None)
    errors = np.sqrt(rest[0] / 56 * np.diag(np.linalg.inv(drawn @ drawn.T)))
    assert products.freedom == 56
    assert products.scores() == pytest.approx(fitted / errors)
    assert products.of_first(2).scores()[0] != pytest.approx(products.scores()[0])


def test_without_other_canaries_the_score_is_the_papers_cosine():
    rng = np.random.default_rng(2)
    drawn, vector = rng.normal(size=(1, 50)), rng.normal(size=50)
    products = Products(1)
    products.add(drawn, vector)
    cosine = float(drawn[0] @ vector / np.linalg.norm(drawn) / np.linalg.norm(vector))
    assert products.scores()[0] == pytest.approx(cosine * np.sqrt(49 / (1 - cosine**2)))


def test_the_null_is_exact_whatever_is_released_and_whoever_takes_part():
    """The released vector has the other canaries in it, at any length, and is far from noise of its own."""
    found = []
    for seed in range(1500):
        rng = np.random.default_rng(seed)
        drawn = rng.normal(size=(4, 12))
        released = np.eye(12)[0] * 7 + 3 * drawn[0] - 50 * drawn[1] * drawn[2]
        products = Products(4)
        products.add(drawn, released)
        found.append(products.scores()[3])
    assert stats.kstest(found, stats.t(8).cdf).pvalue > 1e-3


def test_canaries_alone_are_told_for_certain():
    rng = np.random.default_rng(3)
    drawn = rng.normal(size=(3, 40))
    products = Products(3)
    products.add(drawn, drawn.sum(axis=0))
    assert (products.scores() > 1e5).all()


def test_directions_that_tell_nothing_are_left_out():
    rng = np.random.default_rng(4)
    drawn, vector = rng.normal(size=(8, 60)), rng.normal(size=60)
    drawn[1], drawn[3], drawn[5] = 0, np.nan, np.inf
    drawn[7] = drawn[2] - drawn[4]
    products = Products(8)
    products.add(drawn, vector)
    scores = products.scores()
    plain = Products(4)
    plain.add(drawn[[0, 2, 4, 6]], vector)
    assert not scores[[1, 3, 5]].any()
    # Of three that follow from one another, two are kept.
    assert np.count_nonzero(scores[[2, 4, 7]]) == 2
    assert scores[[0, 6]] == pytest.approx(plain.scores()[[0, 3]])
    nothing = Products(2)
    nothing.add(np.zeros((2, 60)), vector)
    assert np.array_equal(nothing.scores(), np.zeros(2))


def test_scales_of_directions_do_not_matter():
    rng = np.random.default_rng(5)
    drawn, vector = rng.normal(size=(3, 40)), rng.normal(size=40)
    plain, scaled = Products(3), Products(3)
    plain.add(drawn, vector)
    scaled.add(drawn * np.array([[1e-9], [1.0], [1e30]]), vector)
    assert scaled.scores() == pytest.approx(plain.scores())
