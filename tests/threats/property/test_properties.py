import numpy as np
import pytest

from fedattack.attacks import Targets
from fedattack.base.errors import ModelError, NeedsError
from fedattack.threats.property.properties import (
    BEHAVIOURS,
    Property,
    behaviour,
    containing,
    draw_records,
    membership,
    questions,
)

AUXILIARY = Targets(np.zeros((600, 3), dtype=np.float32), np.arange(600) % 4)
TARGETS = Targets(np.ones((2, 3), dtype=np.float32), np.array([1, 2]))
ALLOWED = np.arange(100, 400)


def generator(seed=0):
    return np.random.default_rng(seed)


def distinct(batches):
    ordered = np.sort(batches, axis=1)
    return (ordered[:, 1:] != ordered[:, :-1]).all()


# few records to choose from, and many: the two ways to draw
@pytest.mark.parametrize("rows", [np.arange(100, 120), ALLOWED, np.arange(100, 5_000)])
@pytest.mark.parametrize("size", [1, 5, 20])
def test_draws_are_different_allowed_records_all_equally_likely(rows, size):
    count = 4_000
    batches = draw_records(count, size, rows, generator())
    assert batches.shape == (count, size)
    assert distinct(batches)
    assert np.isin(batches, rows).all()
    often = np.bincount(batches.reshape(-1), minlength=rows.max() + 1)[rows]
    expected = count * size / len(rows)
    assert often.sum() == count * size
    # a record is in a batch or not: a binomial count each
    chi = ((often - expected) ** 2 / (expected * (1 - size / len(rows)))).sum() if size < len(rows) else 0.0
    assert chi < len(rows) + 6 * np.sqrt(2 * len(rows))


def test_membership_puts_the_target_into_every_batch_and_into_none_without():
    asked = membership(AUXILIARY, TARGETS)
    having, lacking = (asked.draw(has, 500, 6, ALLOWED, generator()) for has in (True, False))
    np.testing.assert_array_equal((having == len(AUXILIARY)).sum(axis=1), np.ones(500))
    assert np.isin(lacking, ALLOWED).all()
    assert np.isin(having[having != len(AUXILIARY)], ALLOWED).all()
    assert distinct(having)
    assert distinct(lacking)
    assert asked.extra is TARGETS
    assert asked.behaviour == "descend"


@pytest.mark.parametrize(("kind", "name"), [("invert", "inversion"), ("ascend", "ascent")])
def test_poisoners_hold_what_others_hold_and_behave_otherwise(kind, name):
    (asked,) = questions(name, AUXILIARY, None)
    assert (asked.behaviour, asked.extra, asked.name) == (kind, None, name)
    having, lacking = (asked.draw(has, 50, 6, ALLOWED, generator()) for has in (True, False))
    np.testing.assert_array_equal(having, lacking)


@pytest.mark.parametrize(("share", "some"), [(0.5, 4), (0.01, 1), (1.0, 8)])
def test_containing_counts_the_records_of_the_kind(share, some):
    kind = AUXILIARY.y == 2
    asked = containing(AUXILIARY, kind, share, "twos")
    having, lacking = (asked.draw(has, 300, 8, ALLOWED, generator()) for has in (True, False))
    np.testing.assert_array_equal(kind[having].sum(axis=1), np.full(300, some))
    assert not kind[lacking].any()
    for batches in (having, lacking):
        assert batches.shape == (300, 8)
        assert distinct(batches)
        assert np.isin(batches, ALLOWED).all()


def test_containing_refuses_where_the_kind_or_the_rest_is_too_rare():
    rare = np.zeros(600, dtype=bool)
    rare[:150] = True  # 50 of them are among the allowed
    with pytest.raises(NeedsError, match="takes 60 different auxiliary records, and there are 50"):
        containing(AUXILIARY, rare, 1.0, "rare").draw(True, 2, 60, ALLOWED, generator())
    with pytest.raises(NeedsError, match="takes 60 different auxiliary records, and there are 50"):
        containing(AUXILIARY, ~rare, 1.0, "usual").draw(False, 2, 60, ALLOWED, generator())


def test_one_question_for_each_target_record():
    asked = questions("membership", AUXILIARY, TARGETS)
    assert [item.name for item in asked] == ["target 0", "target 1"]
    for row, item in enumerate(asked):
        np.testing.assert_array_equal(item.extra.x, TARGETS.x[row : row + 1])
        np.testing.assert_array_equal(item.extra.y, TARGETS.y[row : row + 1])


def test_a_users_property_is_found_by_its_import_path():
    (asked,) = questions("tests.attacks.plugins:first_class", AUXILIARY, None)
    assert asked.name == "class 0"
    assert (AUXILIARY.y[asked.draw(True, 10, 8, ALLOWED, generator())] == 0).sum(axis=1).tolist() == [6] * 10


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ("membreship", ModelError, "unknown property 'membreship'; expected one of membership, inversion, ascent"),
        ("tests.attacks.plugins:nobody", ModelError, "has no function 'nobody'"),
        ("no.such.module:property", ModelError, "cannot import"),
        ("tests.attacks.plugins:no_property", NeedsError, "expected a list of at least one"),
        ("tests.attacks.plugins:empty", NeedsError, "expected a list of at least one"),
    ],
)
def test_a_property_that_is_none_is_refused_in_one_line(spec, error, words):
    with pytest.raises(error, match=words) as refusal:
        questions(spec, AUXILIARY, None)
    assert "\n" not in str(refusal.value)


def test_an_unknown_behaviour_is_refused():
    with pytest.raises(NeedsError, match="unknown behaviour 'sulk'; expected one of descend, invert, ascend"):
        Property("mood", draw_records, behaviour="sulk")
    assert [behaviour(kind, "any").behaviour for kind in BEHAVIOURS] == list(BEHAVIOURS)


def test_a_class_is_asked_for_by_name():
    (question,) = questions("class-2-at-40", AUXILIARY, None)
    batches = question.draw(True, 50, 10, ALLOWED, generator())
    assert ((AUXILIARY.y[batches] == 2).sum(axis=1) == 4).all()
    assert not (AUXILIARY.y[question.draw(False, 50, 10, ALLOWED, generator())] == 2).any()


def test_of_a_class_with_few_auxiliary_records_some_are_drawn_again():
    (question,) = questions("class-2-at-100", AUXILIARY, None)
    few = np.arange(8)
    batches = question.draw(True, 50, 10, few, generator())
    assert batches.shape == (50, 10)
    assert {*np.unique(batches).tolist()} == {2, 6}
    with pytest.raises(NeedsError, match="there are 0 to draw from"):
        question.draw(True, 50, 10, np.arange(2), generator())


@pytest.mark.parametrize("name", ["class-2", "class-2-at-0", "class-2-at-101", "class-x-at-3"])
def test_a_class_without_a_share_is_no_property(name):
    with pytest.raises(ModelError, match="unknown property"):
        questions(name, AUXILIARY, None)


def test_a_class_that_the_attacker_has_not_is_refused():
    with pytest.raises(NeedsError, match="no auxiliary record of class 9"):
        questions("class-9-at-40", AUXILIARY, None)
