"""What was read off is judged by whose it is: certain where no accident meets it, and else by a test."""

import numpy as np
import pytest
from scipy import stats

from fedattack.audit.finding import LEAK, NO_EVIDENCE, TOO_FEW
from fedattack.audit.significance import correct_findings
from fedattack.threats.exact.judge import ExactJudge
from tests.threats.exact.read import NONE, case_of
from tests.threats.exact.world import digits


def flat_digits():
    return digits()[0].reshape(-1, 64)


def judged(*cases, draws=999):
    judge = ExactJudge(cases, setting={}, provenance={})
    judge.draws = draws
    return {finding.metric: finding for finding in correct_findings(judge.findings())}


def split(x, clients, each, others=40):
    parts = [x[client * each : (client + 1) * each] for client in range(clients)]
    return parts, x[clients * each : clients * each + others]


@pytest.mark.parametrize("view", ["individual", "aggregate"])
def test_one_row_of_many_numbers_is_certain(view):
    """The clients' examples are many, and those of nobody few: exchanged with them, one row would show nothing."""
    held, nobody = split(flat_digits(), 8, 60)
    found = judged(case_of([(3, held[3][7])], held, nobody=nobody, view=view))
    recovered = found["recovered"]
    assert recovered.value == pytest.approx(1 / 480)
    assert (recovered.verdict, recovered.p_adjusted) == (LEAK, None)
    assert recovered.read_off == {"what": "example", "right": 1, "certain": 1, "clients": 1}
    assert "1 example of 1 client is certain" in recovered.reason
    # A certain match is a leak, however often an accident recovers as many examples.
    assert recovered.p > 0.05
    assert (recovered.grounds[-1].kind, "and not the test of the value" in recovered.reason) == ("certain", True)


def test_a_row_of_the_only_client_is_certain_beside_nobody():
    (held,), _ = split(flat_digits(), 1, 60)
    recovered = judged(case_of([(0, held[0])], [held]))["recovered"]
    assert (recovered.verdict, recovered.read_off["certain"]) == (LEAK, 1)


def test_a_row_said_to_be_of_another_client_is_not_certain():
    held, nobody = split(flat_digits(), 4, 30)
    recovered = judged(case_of([(1, held[0][0]), (2, held[3][1])], held, nobody=nobody))["recovered"]
    assert (recovered.value, recovered.verdict) == (0, NO_EVIDENCE)
    assert recovered.read_off == {"what": "example", "right": 0, "certain": 0, "clients": 0}


@pytest.mark.parametrize("where", ["another client's", "nobody's", "the attacker's"])
def test_a_row_that_somebody_else_holds_too_is_not_certain(where):
    held, nobody = split(flat_digits(), 4, 30)
    row, auxiliary = held[0][:1], NONE
    if where == "another client's":
        held[1] = np.concatenate([held[1], row])
    elif where == "nobody's":
        nobody = np.concatenate([nobody, row])
    else:
        auxiliary = row
    found = judged(case_of([(0, row[0])], held, nobody=nobody, auxiliary=auxiliary))
    assert (found["recovered"].read_off["right"], found["recovered"].read_off["certain"]) == (1, 0)
    assert found["recovered"].verdict != LEAK


def test_a_row_that_is_nearly_right_is_not_certain():
    """Half a thousandth of the span off is read off, and not to all digits."""
    held, nobody = split(np.random.default_rng(0).random((200, 64), dtype=np.float32), 4, 30)
    recovered = judged(case_of([(0, held[0][0] + 5e-4)], held, nobody=nobody))["recovered"]
    assert (recovered.read_off["right"], recovered.read_off["certain"]) == (1, 0)


def test_rows_of_few_numbers_are_left_to_the_test():
    """Three columns of five values: equal rows are no wonder, and many at their own client are."""
    draw = np.random.default_rng(0)
    x = np.unique(draw.integers(5, size=(400, 3)), axis=0).astype(np.float32)
    held, nobody = split(draw.permutation(x), 3, 25, others=25)
    one = judged(case_of([(0, held[0][0])], held, nobody=nobody))["recovered"]
    assert (one.verdict, one.read_off["right"], one.read_off["certain"]) == (NO_EVIDENCE, 1, 0)
    read = [(client, row) for client in range(3) for row in held[client][:5]]
    many = judged(case_of(read, held, nobody=nobody))
    assert (many["recovered"].verdict, many["recovered"].read_off["certain"]) == (LEAK, 0)
    assert many["precision"].verdict == LEAK
    assert many["precision"].chance == pytest.approx(0.25, abs=0.03)


def test_copies_of_a_column_tell_no_more_than_one():
    x = np.repeat(np.random.default_rng(0).normal(size=(100, 2)), 32, axis=1).astype(np.float32)
    held, nobody = split(x * np.tile([1, -2], 32), 3, 20)
    recovered = judged(case_of([(0, held[0][0])], held, nobody=nobody))["recovered"]
    assert (recovered.read_off["right"], recovered.read_off["certain"]) == (1, 0)


def test_of_one_client_beside_nobody_nothing_can_be_exchanged():
    (held,), _ = split(flat_digits()[:, 10:12], 1, 60)
    recovered = judged(case_of([(0, held[0])], [held]))["recovered"]
    assert recovered.verdict == TOO_FEW
    assert "nothing to exchange" in recovered.reason


def draws_of_nobody(kind, draw, held, nobody, population):
    """Read off what tells nothing of a client."""
    read = []
    for client, own in enumerate(held):
        for _ in range(10):
            if kind == "random rows":
                x = draw.random(own.shape[1]).astype(np.float32)
            elif kind == "rows of other clients":
                x = held[draw.choice([other for other in range(len(held)) if other != client])][0]
            elif kind == "the mean of a client":
                x = own.mean(axis=0)
            elif kind == "any known rows":
                every = np.concatenate([*held, nobody])
                x = every[draw.integers(len(every))]
            else:
                x = population(draw, 1)[0]
            read.append((client, x))
    return read


def binary(draw, count):
    """Draw rows of six columns of 0 and 1 that are mostly 0: equal rows are common."""
    return (draw.random((count, 6)) < 0.3).astype(np.float32)


def coarse(draw, count):
    return draw.integers(3, size=(count, 4)).astype(np.float32)


def fine(draw, count):
    return draw.normal(size=(count, 20)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("view", ["individual", "aggregate"])
@pytest.mark.parametrize("sizes", [(30, 30, 30, 30), (100,), (10, 60, 20)])
@pytest.mark.parametrize("population", [binary, coarse, fine])
@pytest.mark.parametrize(
    "kind", ["random rows", "rows of other clients", "the mean of a client", "any known rows", "new rows"]
)
def test_where_nothing_is_told_of_clients_a_leak_is_found_in_one_of_twenty_runs(kind, population, sizes, view):
    if kind == "rows of other clients" and (len(sizes) == 1 or view == "aggregate"):
        pytest.skip("of sums, or of one client, they are no other client's")
    if kind == "any known rows" and population is fine:
        pytest.skip("a client's example of twenty fine numbers is no accident, whoever is said to hold it")
    runs, alarms = 60, 0
    for seed in range(runs):
        draw = np.random.default_rng(seed)
        held, nobody = [population(draw, size) for size in sizes], population(draw, 30)
        read = draws_of_nobody(kind, draw, held, nobody, population)
        found = judged(
            case_of(read, held, nobody=nobody, auxiliary=population(draw, 30), seed=seed, view=view), draws=199
        )
        alarms += any(finding.verdict == LEAK for finding in found.values())
        assert found["recovered"].read_off["certain"] == 0
    assert alarms <= stats.binom.ppf(0.99, runs, 0.05)


def test_sums_are_traced_and_linked_by_more_than_chance():
    held, nobody = split(flat_digits(), 6, 12)
    read = [(client, row) for client in range(6) for row in held[client][:4]]
    case = case_of(read, held, nobody=nobody, view="aggregate")
    case.scores.arrays["whose"][:] = np.repeat(np.arange(6), 4)
    case.scores.arrays["groups"][:] = np.repeat(np.arange(12), 2)
    found = judged(case, draws=4_999)
    assert (found["clients"].value, found["clients"].verdict) == (1, LEAK)
    assert (found["linked"].value, found["linked"].verdict) == (1, LEAK)
    assert found["linked"].chance == pytest.approx(3 / 23, abs=0.05)
    draw = np.random.default_rng(0)
    case.scores.arrays["whose"][:] = draw.permutation(np.repeat(np.arange(6), 4))
    other = case_of(read, held, nobody=nobody, view="aggregate")
    other.scores.arrays["whose"][:] = case.scores.arrays["whose"]
    other.scores.arrays["groups"][:] = draw.permutation(np.repeat(np.arange(12), 2))
    found = judged(other, draws=4_999)
    assert (found["recovered"].verdict, found["precision"].verdict) == (LEAK, LEAK)
    assert (found["clients"].verdict, found["linked"].verdict) == (NO_EVIDENCE, NO_EVIDENCE)
