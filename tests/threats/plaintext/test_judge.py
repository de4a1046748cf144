"""Plaintext that holds examples is found, and plaintext that holds none is not."""

from dataclasses import replace

import numpy as np
import pytest

from fedattack.attacks import read_knowledge
from fedattack.audit.finding import CANNOT_TELL, LEAK, NO_EVIDENCE, NOT_APPLICABLE, TOO_FEW
from fedattack.base.errors import DataError
from fedattack.report.section import show_table
from fedattack.threats.plaintext import case, tables
from fedattack.threats.plaintext.exchange import Nearest
from fedattack.threats.plaintext.section import _explain
from fedattack.threats.plaintext.values import likeness
from tests.threats.plaintext.world import CLIENTS, EACH, ROUNDS, SIZE, judged, pixels, plain, write_plain_run
from tests.worlds.attacked import attack, judge, rewrite_truth


def rows_of(finding):
    return {(row["name"], row["type"]): row for row in finding.series["beside"]}


def listed(client, number, x):
    return {"first": (3 * x[number]).tolist()}


def nested(client, number, x):
    return {"image": x[0].reshape(4, 4).tolist()}


def raw(client, number, x):
    return {"raw": x[0].tobytes()}


def two(client, number, x):
    return {"both": x[:2].ravel().tolist()}


@pytest.mark.parametrize("says", [None, listed, nested, raw, two])
@pytest.mark.parametrize("beside", ["train", "evaluate", "query.forward"])
def test_examples_beside_the_model_are_found_in_whatever_form(says, beside, tmp_path):
    finding = judged(write_plain_run(tmp_path, *([says] if says else []), beside=beside))
    assert (finding.name, finding.headline, finding.verdict) == ("plaintext.own-examples", True, LEAK)
    assert (finding.value, finding.n) == (1.0, CLIENTS)
    assert finding.p == pytest.approx(1 / 720, abs=1e-3)
    assert finding.chance == pytest.approx(1 / CLIENTS, abs=0.02)
    (row,) = finding.series["vectors"]
    each = 2 if says is two else 1
    assert row["equal"] == row["vectors"] == each * CLIENTS * ROUNDS


def test_the_page_says_what_is_an_example(tmp_path):
    finding = judged(write_plain_run(tmp_path))
    assert _explain([finding]).words == [
        "px#: 18 of 18 vectors beside the model are a training example of the client that sent them."
    ]
    assert show_table(tables.VECTORS, finding).rows == [["px#", "18", "100%", "18 of 18"]]
    told = {row[0]: row[2:] for row in show_table(tables.BESIDE, finding).rows}
    assert told["px#"] == [f"{SIZE} numbers", "18, of 6 clients", "6", "none", "yes, each client"]
    assert told["loss"] == ["number", "18, of 6 clients", "18", "none", "no, it changes"]
    assert told["num-examples"] == ["number", "18, of 6 clients", "1", "none", "no, all send the same"]


def test_other_vectors_of_the_same_length_hide_no_example(tmp_path):
    draw = np.random.default_rng(3)

    def says(client, number, x):
        return pixels(client, number, x) | {f"noise-{each}": draw.uniform(size=SIZE).tolist() for each in "abc"}

    finding = judged(write_plain_run(tmp_path, says))
    assert (finding.value, finding.verdict) == (1.0, LEAK)


def test_an_ordinary_app_does_not_cry_wolf(tmp_path):
    finding = judged(write_plain_run(tmp_path, plain))
    assert (finding.value, finding.n, finding.p, finding.verdict) == (None, 0, None, NO_EVIDENCE)
    assert (
        finding.reason
        == "no reply holds a list or a family of numbers that could be an example, so there is nothing to ask"
    )
    assert _explain([finding]).words == ["Clients send no list and no text beside the model."]


def test_a_clients_own_words_are_never_called_none(tmp_path):
    def says(client, number, x):
        return {"words": [f"word-{client}", f"word-{client + 1}"], "note": f"{client}{number}", "days": [number, 2, 3]}

    finding = judged(write_plain_run(tmp_path, says))
    assert _explain([finding]).words == [
        "The list words is the same in all rounds, and names each client.",
        "The text note has 18 different values in 18 replies of 6 clients.",
    ]
    assert ["words", "train", "2 texts"] in [row[:3] for row in show_table(tables.BESIDE, finding).rows]
    only_numbers = replace(finding, series={"beside": [rows_of(finding)["days", "train"]]})
    (words,) = _explain([only_numbers]).words
    assert words == "Clients send days beside the model. It was not shown that this reveals nothing."


def test_arrays_that_the_record_only_names_leave_the_question_open(tmp_path):
    finding = judged(write_plain_run(tmp_path, plain, arrays={"curve.labels": np.zeros(19, np.int64)}))
    assert (finding.value, finding.verdict) == (None, CANNOT_TELL)
    assert finding.reason.startswith("replies hold arrays beside the model that no attack reads: curve.labels (19)")
    assert _explain([finding]).words == ["Replies to evaluate hold the array curve.labels (19), which no attack reads."]


def test_vectors_of_another_length_are_no_examples(tmp_path):
    finding = judged(write_plain_run(tmp_path, lambda client, number, x: {"few": x[0, :5].tolist()}))
    assert (finding.value, finding.verdict) == (0.0, NO_EVIDENCE)
    assert finding.reason == f"no list or family of numbers is as long as an example ({SIZE} numbers)"


@pytest.mark.slow
def test_noise_as_long_as_an_example_stays_at_chance(tmp_path):
    draw = np.random.default_rng(5)
    ps = []
    for seed in range(20):
        folder = write_plain_run(tmp_path / str(seed), lambda *_: {"v": draw.uniform(size=SIZE).tolist()}, seed=seed)
        ps.append(judged(folder).p)
    assert sum(p <= 0.05 for p in ps) <= 4


def test_examples_are_certain_where_three_clients_are_too_few_for_a_test(tmp_path):
    """Each client sends its first example in each of three rounds."""
    finding = judged(write_plain_run(tmp_path, clients=3))
    assert (finding.value, finding.verdict) == (1.0, LEAK)
    assert finding.p_least == pytest.approx(1 / 6)
    assert finding.series["vectors"][0]["equal"] == 9
    assert finding.read_off == {"what": "example", "right": 3, "certain": 3, "clients": 3}


def test_few_vectors_are_compared_at_once(tmp_path, monkeypatch):
    """Each client sends all of its examples in each round: each counts once, however often it is compared."""
    sizes = []

    def note_size(vectors, examples):
        sizes.append(len(vectors))
        return likeness(vectors, examples)

    monkeypatch.setattr(case, "likeness", note_size)
    monkeypatch.setattr(case, "_AT_ONCE", 1)
    finding = judged(write_plain_run(tmp_path, lambda client, number, x: {"all": x.ravel().tolist()}))
    every = CLIENTS * EACH
    assert finding.read_off == {"what": "example", "right": every, "certain": every, "clients": CLIENTS}
    assert sum(sizes) >= every * ROUNDS
    assert max(sizes) == 64


def test_what_is_near_to_an_example_of_three_clients_is_too_little(tmp_path):
    draw = np.random.default_rng(0)

    def says(client, number, x):
        return {"v": (x[0] + 0.05 * draw.normal(size=SIZE)).tolist()}

    finding = judged(write_plain_run(tmp_path, says, clients=3))
    assert (finding.value, finding.verdict) == (1.0, TOO_FEW)
    assert finding.read_off["certain"] == 0


def test_an_example_that_another_client_holds_too_is_not_certain(tmp_path):
    folder = write_plain_run(tmp_path, clients=3)
    targets = read_knowledge(folder / "knowledge").targets
    shared = {"x": np.concatenate([targets.x] * 3), "owners": np.repeat(["0", "1", "2"], len(targets))}
    rewrite_truth(folder, answers={"plaintext": shared})
    found = judged(folder).read_off
    assert (found["right"], found["certain"]) == (3, 0)


def test_values_by_example_and_names_of_sites_are_told_without_a_test(tmp_path):
    def says(client, number, x):
        site = {"site": f"hospital-{client}", "scanner": "ab"[client % 2], "raw": b"\0\1"}
        return {"losses": (x[:, 0] + number).tolist(), **site}

    finding = judged(write_plain_run(tmp_path, says))
    assert (finding.verdict, finding.p) == (NO_EVIDENCE, None)
    rows = rows_of(finding)
    assert (rows["losses", "train"]["by_example"], rows["losses", "train"]["numbers"]) == (CLIENTS * ROUNDS, EACH)
    told = {name: tables.say_apart(row) for (name, _), row in rows.items()}
    assert told == {
        "num-examples": "no, all send the same",
        "losses": "no, it changes",
        "site": "yes, each client",
        "scanner": "into 2 groups",
        "raw": "no, all send the same",
    }
    assert _explain([finding]).words == [
        "losses is a list with one value for each of the client's examples.",
        "The text site is the same in all rounds, and names each client.",
        "The text scanner is the same in all rounds, and names 2 groups of clients.",
    ]


def test_without_examples_nothing_is_said_of_vectors(tmp_path):
    folder = write_plain_run(tmp_path)
    rewrite_truth(folder)
    finding = judged(folder)
    assert (finding.value, finding.verdict) == (None, NOT_APPLICABLE)
    assert "no example of one array of numbers is known of a client" in finding.reason


def test_a_damaged_answer_is_refused(tmp_path):
    folder = write_plain_run(tmp_path)
    good = {"x": np.zeros((2, SIZE), np.float32), "owners": np.array(["a", ""])}
    for bad in (
        {"x": good["x"]},
        good | {"owners": np.array(["a"])},
        good | {"x": np.full((2, SIZE), np.nan, np.float32)},
    ):
        rewrite_truth(folder, answers={"plaintext": bad})
        with pytest.raises(DataError, match="seed 0: the truth's answer 'plaintext'"):
            judged(folder)


def test_exchanges_are_counted_by_hand():
    share = np.array([[1.0, 0.0], [0.5, 0.5]])
    found = Nearest({"px#": (share, np.eye(3)), "other": (0 * share, np.zeros((3, 3)))})
    assert found.best == "px#"
    assert found.own("px#").tolist() == [1.0, 0.5, 1.0, 1.0, 1.0]
    drawn = found.draw(np.random.default_rng(0), 4_000)
    assert drawn.mean() == pytest.approx((0.5 + 0.5 + 3 / 3) / 5, abs=0.02)
    assert {round(5 * value, 6) for value in drawn} == {
        first + second for first in (1.5, 0.5) for second in (0.0, 1.0, 3.0)
    }


def test_of_more_vectors_than_can_be_compared_each_client_keeps_as_many(tmp_path, monkeypatch):
    folder = write_plain_run(tmp_path, two)
    whole = judged(folder)
    # Three runs of six clients send two vectors each a round: 36, of which 12 are compared.
    monkeypatch.setattr(case, "_MOST_CANDIDATES", 12)
    finding = judged(folder)
    (row,) = finding.series["vectors"]
    assert (row["vectors"], finding.n, finding.value) == (12, whole.n, whole.value)


def test_more_examples_than_can_be_compared_are_refused(tmp_path, monkeypatch):
    folder = write_plain_run(tmp_path)
    held = {"x": np.zeros((2, SIZE), np.float32), "owners": np.array(["0", "1"])}
    rewrite_truth(folder, answers={"plaintext": held})
    monkeypatch.setattr(case, "_MOST_EXAMPLES", 1)
    with pytest.raises(DataError, match="x has 2 examples of 16 numbers; at most 1 of"):
        judged(folder)


def test_scores_whose_vectors_do_not_fit_their_numbers_are_refused(tmp_path):
    folder = write_plain_run(tmp_path)
    scores = attack("plaintext", folder)
    for name, array, words in (
        ("numbers", scores.arrays["numbers"][1:], "the vectors do not fit their numbers"),
        ("whose", scores.arrays["whose"] + 99, "whose: expected indices below"),
    ):
        replace(scores, arrays={**scores.arrays, name: array}).save(folder / "scores" / "plaintext.npz")
        with pytest.raises(DataError, match=words):
            judge(folder)
