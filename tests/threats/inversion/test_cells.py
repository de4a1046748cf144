"""Cells of tables: what counts as right, beside a slow count; known answers, and a null."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedattack.attacks import Scores, read_knowledge
from fedattack.attacks.coding import find_coding
from fedattack.audit.finding import LEAK
from fedattack.audit.truth import read_truth
from fedattack.record import Record
from fedattack.report import write_report
from fedattack.threats.inversion.case import InversionCase
from fedattack.threats.inversion.cells import TOLERANCE, CellsCase
from fedattack.threats.inversion.exchange import AttackedClient, exchange_cells
from fedattack.threats.inversion.inversion import ReconstructedExamples
from fedattack.threats.inversion.judge import InversionJudge
from fedattack.threats.inversion.options import SURE
from tests.threats.inversion.inverted import make_scores
from tests.worlds.attacked import attack_and_judge, audit_folder
from tests.worlds.cases import change_case, make_case
from tests.worlds.inversion import table, write_table_run

CLIENTS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_table_run(tmp_path_factory.mktemp("run"), rounds=1, clients=CLIENTS, each=2)


def case_of(folder, x=None, unsure=None):
    truth = read_truth(folder / "truth")
    found = truth.records.x if x is None else x
    scores = make_scores(found, truth.records.y, map(str, range(CLIENTS)), each=2)
    if unsure is not None:
        scores = Scores.of("inversion", replace(scores.as_found(ReconstructedExamples), unsure=unsure))
    return make_case(InversionCase, 0, scores, truth, Record(folder / "record"), read_knowledge(folder / "knowledge"))


def judged(case):
    return {finding.metric: finding for finding in InversionJudge([case], setting={}, provenance={}).findings()}


def is_right(coding, true, found):
    """Compare two rows (inputs,) column by column."""
    right = []
    for inputs, is_number in zip(coding.columns, coding.is_number, strict=True):
        if is_number:
            right.append(abs(true[inputs[0]] - found[inputs[0]]) <= TOLERANCE * coding.deviation[inputs[0]])
        else:
            right.append(all((true[i] > 0.5) == (found[i] > 0.5) for i in inputs))
    return right


def test_right_cells_are_those_of_the_best_of_all_orders(folder):
    x, _ = table()
    found = x[np.random.default_rng(3).permutation(len(x))[: 2 * CLIENTS]]
    case = case_of(folder, found)
    cells = CellsCase(case, case.knowledge.coding)
    for right, (number, _, rows) in zip(cells.results, case.batches, strict=True):
        truth, own = case.held.x[rows], found[2 * number : 2 * number + 2]
        counts = []
        for order in itertools.permutations(range(2)):
            counts.append(sum(sum(is_right(cells.coding, truth[i], own[j])) for i, j in enumerate(order)))
        assert right.sum() == max(counts)


def test_true_rows_in_any_order_are_a_leak_and_random_ones_are_none(folder):
    own = read_truth(folder / "truth").records.x
    found = judged(case_of(folder, own.reshape(CLIENTS, 2, -1)[:, ::-1].reshape(own.shape)))
    for metric in ("cells", "rows"):
        assert (found[metric].value, found[metric].verdict, found[metric].n) == (1, LEAK, 2 * CLIENTS)
        assert found[metric].chance < 0.8
    assert "sure-cells" not in found
    x, _ = table()
    random = judged(case_of(folder, x[np.random.default_rng(3).permutation(len(x))[: len(own)]]))
    assert random["cells"].verdict != LEAK
    assert random["rows"].value < 0.3


def test_cells_are_divided_by_how_sure_the_attacker_is(folder):
    own = read_truth(folder / "truth").records.x
    unsure = np.random.default_rng(0).random((len(own), 5))
    # Wrong where the attacker is unsure: two values in one input are turned around.
    wrong = unsure[:, 4] > 0.5
    found = own.copy()
    found[wrong, 12] = 1 - found[wrong, 12]
    findings = judged(case_of(folder, found, unsure))
    series = findings["sure-cells"].series["quarters"]
    assert [row["quarter"] for row in series] == ["surest", "second", "third", "least sure"]
    assert sum(row["cells"] for row in series) == unsure.size
    assert series[0]["right"] == 1
    assert series[3]["right"] < 1
    right = sum(row["right"] * row["cells"] for row in series)
    assert right == pytest.approx(unsure.size - wrong.sum())
    assert series[3]["unsure"] == unsure.max()
    columns = findings["cells"].series["columns"]
    assert [row["sure"] for row in columns] == pytest.approx((unsure <= SURE).mean(axis=0))
    assert [row["sure_right"] for row in columns] == [1] * 5
    assert columns[4]["right"] < 1


def test_of_a_column_of_which_the_attacker_is_never_sure_no_share_is_right(folder):
    own = read_truth(folder / "truth").records.x
    unsure = np.ones((len(own), 5))
    unsure[:, 0] = 0
    columns = judged(case_of(folder, own, unsure))["cells"].series["columns"]
    assert [row["sure"] for row in columns] == [1, 0, 0, 0, 0]
    assert [row["sure_right"] for row in columns] == [1, None, None, None, None]


def test_every_cell_that_was_found_is_listed_as_a_slow_count_has_it(folder):
    own = read_truth(folder / "truth").records.x
    unsure = np.random.default_rng(0).random((len(own), 5))
    found = own.reshape(CLIENTS, 2, -1)[:, ::-1].reshape(own.shape).copy()
    found[3, 12] = 1 - found[3, 12]
    case = case_of(folder, found, unsure)
    judge = InversionJudge([case], setting={}, provenance={})
    rows = [*InversionJudge.list_cells.list_rows(judge, case)]
    assert len(rows) == unsure.size
    cells = case.knowledge.coding.decode(found)
    for row in rows:
        # The two rows of a client are found the other way round.
        stands, column = row["record"] ^ 1, int(row["column"]) - 1
        assert row["unsure"] == unsure[stands, column]
        assert row["found"] == cells[stands, column]
        assert row["client"] == str(row["record"] // 2)
        assert row["right"] is ((stands, column) != (3, 4))


def test_images_and_numbers_alone_have_no_cells(folder, tmp_path):
    case = case_of(folder)
    coding = find_coding(np.random.default_rng(0).normal(size=(20, 13)))
    assert all(coding.is_number)
    found = judged(change_case(case, knowledge=replace(case.knowledge, coding=coding)))
    assert "cells" not in found
    assert "mse" in found


def test_exchanges_count_as_the_pairing_does_and_the_truth_stands_first():
    draw = np.random.default_rng(0)
    pool = draw.integers(3, size=(60, 4)).astype(float)
    attacked = [
        AttackedClient(pool[:3], np.zeros(3, int), [pool[[2, 0, 1]]]),
        AttackedClient(pool[3:5], np.zeros(2, int), [pool[5:6]]),
    ]
    exchanged = exchange_cells(attacked, (pool[10:], np.zeros(50, int)), np.full(4, 0.5), draw, 200)
    assert exchanged.cells[0, :3].tolist() == [1, 1, 1]
    # One reconstruction stands for one of two examples, and nothing for the other.
    one = [(pool[row] == pool[5]).mean() for row in (3, 4)]
    assert sorted(exchanged.cells[0, 3:].tolist()) == pytest.approx([0, max(one)])
    assert exchanged.cells[1:].mean() < 0.7


@pytest.mark.slow
def test_rows_of_clients_are_found_and_those_of_nobody_are_not(tmp_path):
    write_table_run(tmp_path / "own", rounds=1, clients=5, each=2)
    found = attack_and_judge("inversion", tmp_path / "own", iterations="800")
    assert found["cells"].value > 0.95
    assert found["rows"].verdict == LEAK
    assert found["sure-cells"].value == 1
    audit_folder(tmp_path / "own")
    page = write_report(tmp_path / "own").read_text()
    assert "Cells by how sure of them the attacker is" in page
    assert "What was found of each column" in page
    assert "Rows that are right in all cells" in page
    write_table_run(tmp_path / "silent", rounds=1, clients=5, each=2, silent=True)
    null = attack_and_judge("inversion", tmp_path / "silent", iterations="800")
    assert null["cells"].verdict != LEAK
    assert null["rows"].verdict != LEAK
