"""What was read off is certain where no accident meets it; then no test decides, and no correction takes it back."""

import numpy as np
import pytest
from scipy import stats

from fedattack.attacks.accidents import count_repeats
from fedattack.audit.control import STEPPED, Control, with_controls
from fedattack.audit.finding import CANNOT_TELL, LEAK, NO_EVIDENCE, Finding, answering
from fedattack.audit.readoff import BITS, bits_beside, bits_of_items, bits_of_repeats, read_off
from fedattack.audit.significance import correct_findings
from tests.audit.test_finding import finding


def read(right, certain, clients=1):
    return {"what": "example", "right": right, "certain": certain, "clients": clients}


@pytest.mark.parametrize(
    ("own", "others", "held", "all_held"), [(3, 0, 5, 20), (7, 2, 30, 90), (1, 4, 2, 9), (5, 0, 5, 5)]
)
def test_items_are_as_unlikely_as_drawn_from_an_urn(own, others, held, all_held):
    often = stats.hypergeom.sf(own - 1, all_held, held, own + others)
    assert bits_of_items(own, others, held, all_held) == pytest.approx(-np.log2(often), abs=1e-9)


def test_of_no_own_items_and_of_none_but_own_nothing_is_unlikely():
    assert bits_of_items(0, 10, 20, 40) == 0
    assert bits_of_items(40, 0, 40, 40) == 0
    assert bits_of_items(40, 0, 40, 80) > BITS > bits_of_items(20, 20, 40, 80)


def test_an_example_tells_what_its_numbers_are_rare_by():
    """By hand: of 7 other rows one has the first number, and none the second; the nearest differs in the second."""
    known = np.array([[0, 9], [0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7]], dtype=float)
    assert bits_beside(known[:1], known[1:2], known, 1e-3) == pytest.approx([3])
    assert bits_beside(known[:1], known[2:], known, 1e-3) == pytest.approx([5])
    assert bits_beside(known[:1], known[:0], known, 1e-3) == pytest.approx([5])
    assert bits_beside(known[:1], known[:1], known, 1e-3) == pytest.approx([0])


def test_a_column_that_says_the_same_and_one_that_is_constant_tell_nothing_more():
    draw = np.random.default_rng(0).normal(size=(50, 3))
    copied = np.column_stack([draw, -2 * draw[:, 1] + 7, np.ones(50)])
    alone, with_copies = (bits_beside(x[:5], x[5:], x, 1e-3) for x in (draw, copied))
    np.testing.assert_allclose(with_copies, alone)


def test_fresh_rows_of_the_same_kind_are_no_nearer_than_chance():
    """The null: of few columns of few values, equal rows are met by accident, and are never certain."""
    draw = np.random.default_rng(0)
    known = draw.integers(4, size=(300, 8)).astype(float)
    assert bits_beside(known[:100], known[100:], known, 1e-3).max() < BITS


def test_what_comes_again_is_counted_by_hand():
    """Thing 0 is of clients 0 and 1, and of nobody; thing 1 of client 2; thing 2 of nobody."""
    things, holders = np.array([0, 0, 0, 1, 2]), np.array([0, 1, -1, 2, -1])
    # Others: 1 and 1 for the clients of thing 0, 2 for nobody; of three clients, two others each, and three for nobody.
    assert count_repeats(things, holders, 3) == (4, 2 + 2 + 3 + 2 + 3)
    # What all clients hold is public: thing 0 counts no more, but where two clients are all.
    assert count_repeats(np.array([0, 0, 0, 1]), np.array([0, 1, 2, 0]), 3) == (0, 2)
    assert count_repeats(np.array([0, 0, 1]), np.array([0, 1, 1]), 2) == (2, 3)
    none = np.zeros(0, np.int64)
    assert count_repeats(none, none, 0) == (0, 0)


def test_what_often_comes_again_is_certain_only_if_much_is_right():
    assert bits_of_repeats(3, 10, 0, 100) == np.inf
    often = stats.binom.sf(2, 10, 0.1)
    assert bits_of_repeats(3, 10, 10, 100) == pytest.approx(-np.log2(often))
    assert bits_of_repeats(20, 20, 10, 100) > BITS > bits_of_repeats(10, 10, 10, 100)
    assert bits_of_repeats(0, 0, 10, 100) == pytest.approx(0)


def test_counts_are_summed_up_over_runs():
    found = read_off("row", [np.array([3, 0]), np.array([1])], [np.array([2, 0]), np.array([1])])
    assert found == {"what": "row", "right": 4, "certain": 3, "clients": 2}


def test_what_is_certain_outlasts_the_correction_and_takes_nothing_from_the_others():
    certain = finding(p=0.6, verdict=LEAK, headline=True, read_off=read(1, 1))
    other = finding(metric="auc", p=0.04, verdict=LEAK)
    first, second = correct_findings([certain, other])
    assert (first.verdict, first.p, first.p_adjusted, first.is_certain) == (LEAK, 0.6, None, True)
    assert (second.verdict, second.p_adjusted) == (LEAK, pytest.approx(0.04))
    taken, _ = correct_findings([finding(p=0.6, verdict=NO_EVIDENCE, headline=True, read_off=read(1, 0)), other])
    assert (taken.verdict, taken.p_adjusted, taken.is_certain) == (NO_EVIDENCE, pytest.approx(0.6), False)


def test_a_blind_control_does_not_deny_what_is_right():
    shown = finding(verdict=NO_EVIDENCE, reason="so much may be an accident", headline=True, read_off=read(2, 0))
    (found,) = with_controls([shown], {"sia": Control(STEPPED, 1, False)})
    assert found.verdict == NO_EVIDENCE
    assert found.reason.endswith("this attack shows no leak either")
    (blind,) = with_controls([finding(verdict=NO_EVIDENCE, headline=True)], {"sia": Control(STEPPED, 1, False)})
    assert blind.verdict == CANNOT_TELL


def test_findings_of_earlier_versions_are_read():
    old = finding().to_dict()
    del old["read_off"]
    assert Finding.from_dict(old) == finding()
    assert answering([finding(verdict=LEAK, headline=True, read_off=read(1, 1))])[0].is_certain
    # What is certain answers before what a test shows.
    shown, certain = finding(verdict=LEAK, headline=True), finding(verdict=LEAK, metric="sure", read_off=read(1, 1))
    assert answering([shown, certain]) == [certain]
    more = finding(verdict=LEAK, metric="surer", read_off=read(3, 2))
    assert answering([shown, certain, more]) == [more]
