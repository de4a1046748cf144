"""Counts of labels are judged by hand, by exchanges, and where there is nothing to find."""

from dataclasses import replace

import numpy as np
import pytest

from fedattack.audit.clients import Fits
from fedattack.audit.finding import LEAK, NO_EVIDENCE, NOT_APPLICABLE, TOO_FEW
from fedattack.base.errors import DataError
from fedattack.report.section import show_table
from fedattack.threats.labels import tables
from fedattack.threats.labels.judge import mean_error, share_named, share_right
from fedattack.threats.labels.section import _name_exposed
from tests.benchmarks.calibration.labels import World, draw_case
from tests.threats.labels.world import CLIENTS, attacked, judged, write_digits_run
from tests.worlds.attacked import judge, rewrite_truth


def test_measures_by_hand():
    counted, true = np.array([3.0, 0, 1]), np.array([2.0, 2, 0])
    assert share_right(counted, true) == 0.5
    assert share_named(counted, true) == 0.5
    assert mean_error(counted, true) == pytest.approx(4 / 3)


def test_which_labels_are_named_does_not_depend_on_how_many_examples_another_client_holds():
    counts = np.array([[3.0, 1, 0], [60, 60, 1]])
    case = draw_case(World(clients=2, classes=3, examples=4), 0, np.random.default_rng(0))
    case.scores.arrays["counts"][:] = counts
    case.truth.counts[:] = counts
    assert case.fits("present").tolist() == [[1, 2 / 3], [1, 1]]


def test_exchanges_by_hand():
    fits = Fits([np.array([[1.0, 0.2], [0.4, 1.0]]), np.array([[0.5]])])
    assert fits.own.tolist() == [1, 1, 0.5]
    assert (fits.sums, fits.sizes) == ([2.0, 0.5], [2, 1])
    drawn = fits.draw(np.random.default_rng(0), 500)
    assert {round(value, 6) for value in drawn} == {round(2.5 / 3, 6), round(1.1 / 3, 6)}
    assert fits.test(np.random.default_rng(0)).least == 0.5


def test_clients_are_not_too_few_where_nothing_was_read_of_them():
    found = Fits([np.zeros((6, 6))]).test(np.random.default_rng(0))
    assert (found.p, found.least) == (1.0, pytest.approx(1 / 720, abs=1e-3))
    alike = Fits([np.full((6, 6), 0.5)]).test(np.random.default_rng(0))
    assert alike.least == 1.0


def test_labels_of_digits_leak_and_the_page_says_so(tmp_path):
    found = judged(write_digits_run(tmp_path))
    right = found["right"]
    assert (right.headline, right.verdict, right.n) == (True, LEAK, CLIENTS)
    assert right.value > 0.98
    assert right.p == pytest.approx(1 / 720, abs=1e-3)
    assert found["present"].value > 0.97
    error = found["mean-error"]
    assert (error.verdict, error.units) == (NOT_APPLICABLE, "examples")
    assert error.value < 0.3 < error.null["value"]
    assert show_table(tables.RULES, right).rows[0][0] == "solved for the mixture of labels"
    assert [row[0] for row in show_table(tables.CLIENTS, right).rows] == list("012345")
    assert "counted right" in _name_exposed([right])


def test_three_clients_are_too_few(tmp_path):
    found = judged(write_digits_run(tmp_path, clients=3))["right"]
    assert (found.verdict, found.value) == (TOO_FEW, 1)
    assert found.read_off == {"what": "label count", "right": 3, "certain": 0, "clients": 0}


@pytest.mark.slow
def test_counts_that_tell_nothing_of_a_client_are_no_leak(tmp_path):
    """The null: what was counted stands beside other clients, drawn anew each time."""
    folder = write_digits_run(tmp_path)
    draw, ps = np.random.default_rng(7), []
    for _ in range(20):
        counts = np.stack([draw.multinomial(60, draw.dirichlet(np.ones(10))) for _ in range(CLIENTS)])
        rewrite_truth(folder, counts=counts)
        found = judged(folder)["right"]
        assert found.verdict == NO_EVIDENCE or found.p <= 0.05
        ps.append(found.p)
    assert sum(p <= 0.05 for p in ps) <= 4


def test_of_clients_that_hold_nothing_known_nothing_is_said(tmp_path):
    folder = write_digits_run(tmp_path)
    rewrite_truth(folder, counts=np.zeros((CLIENTS, 10), dtype=np.int64))
    found = judged(folder)["right"]
    assert (found.verdict, found.value) == (NOT_APPLICABLE, None)
    assert found.reason == "there is no client whose labels are known"


def test_scores_of_other_labels_than_the_truth_s_are_refused(tmp_path):
    folder = write_digits_run(tmp_path)
    scores = attacked(folder)
    for facts, arrays, message in (
        ({"classes": 9}, {}, "expected counts of 9 labels, got 10"),
        (
            {"classes": 9},
            {"counts": scores.arrays["counts"][..., :9], "prior": scores.arrays["prior"][:9]},
            "seed 0: the truth counts 10 labels, and the scores 9",
        ),
    ):
        altered = replace(scores, facts={**scores.facts, **facts}, arrays={**scores.arrays, **arrays})
        altered.save(folder / "scores" / "labels.npz")
        with pytest.raises(DataError, match=message):
            judge(folder)
