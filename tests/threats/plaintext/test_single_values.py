"""Losses, predictions and embeddings of single examples are found, whatever their form; those of others are not."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.audit.finding import LEAK, NO_EVIDENCE
from fedattack.record import Record
from fedattack.threats.plaintext.section import _explain
from fedattack.threats.plaintext.single_values import Told, _match, _OfName, _seek_nearest, _tell
from fedattack.threats.plaintext.value_sources import Given, Rows, list_rows
from tests.threats.plaintext.values_world import CLASSES, CLIENTS, EACH, ROUNDS, losses, nothing, write_values_run
from tests.threats.plaintext.world import judged_all


def in_order(values: torch.Tensor) -> list[float]:
    """The numbers, sorted: nothing tells which example is which."""
    return sorted(values.flatten().tolist())


FORMS = {
    "losses in a list": losses,
    "losses in an array": lambda m, x, y: {"v": functional.cross_entropy(m(x), y, reduction="none")},
    "losses out of order": lambda m, x, y: {"v": in_order(functional.cross_entropy(m(x), y, reduction="none"))},
    "losses by numbered names": lambda m, x, y: {
        f"loss_{row}": value for row, value in enumerate(functional.cross_entropy(m(x), y, reduction="none").tolist())
    },
    "outputs": lambda m, x, y: {"v": m(x)},
    "probabilities": lambda m, x, y: {"v": m(x).softmax(1)},
    "probabilities in a list": lambda m, x, y: {"v": m(x).softmax(1).flatten().tolist()},
    "logarithms of probabilities": lambda m, x, y: {"v": m(x).log_softmax(1)},
    "probabilities of one class": lambda m, x, y: {"v": m(x).softmax(1)[:, 2].tolist()},
    "probabilities of the label": lambda m, x, y: {"v": m(x).softmax(1)[range(len(y)), y].tolist()},
    "largest probabilities": lambda m, x, y: {"v": m(x).softmax(1).amax(1)},
    "entropies": lambda m, x, y: {"v": torch.distributions.Categorical(logits=m(x)).entropy().tolist()},
    "embeddings": lambda m, x, y: {"v": next(iter(m.modules()))[:-1](x)},
    "double precision": lambda m, x, y: {"v": functional.cross_entropy(m(x).double(), y, reduction="none")},
}
WHAT = {
    "losses in": "losses",
    "losses out": "losses",
    "losses by": "losses",
    "probabilities in": "probabilities",
    "probabilities of one class": "probabilities of class 2",
    "embeddings": "outputs of ",
    "double": "losses",
}


def told(folder):
    """Attack and judge, and return the finding and the row of the one name."""
    finding = judged_all(folder)["single-values"]
    (row,) = [row for row in finding.series["values"] if row["what"]]
    return finding, row


@pytest.mark.parametrize("form", FORMS)
def test_values_are_certain_in_whatever_form(tmp_path, form):
    finding, row = told(write_values_run(tmp_path, FORMS[form]))
    what = next((what for prefix, what in WHAT.items() if form.startswith(prefix)), form)
    assert row["what"].startswith(what)
    assert row["what"].endswith("the model that the client sends")
    assert finding.verdict == LEAK
    # An example that gives the same as another one in both rounds is not told.
    assert finding.value >= 0.95
    assert finding.read_off["right"] == row["found"]
    assert finding.read_off["certain"] >= 0.85 * CLIENTS * EACH
    assert finding.read_off["clients"] == CLIENTS


@pytest.mark.parametrize("form", ["probabilities", "losses in a list", "outputs"])
def test_values_of_held_out_examples_in_evaluations_are_certain(tmp_path, form):
    finding, row = told(write_values_run(tmp_path, nothing, FORMS[form]))
    assert row["type"] == "evaluate"
    assert row["what"].endswith("a model that the server sends")
    assert finding.value >= 0.95
    assert finding.read_off["certain"] >= 0.95 * CLIENTS * EACH


def test_single_numbers_are_certain_together(tmp_path):
    """One loss a reply is met by accident now and then; those of all clients are not."""
    finding, row = told(
        write_values_run(
            tmp_path, lambda m, x, y: {"worst": functional.cross_entropy(m(x), y, reduction="none").max().item()}
        )
    )
    assert (row["name"], row["rows"]) == ("worst", 1)
    assert finding.verdict == LEAK
    assert CLIENTS - 1 <= finding.read_off["certain"] <= CLIENTS * ROUNDS
    assert finding.read_off["right"] == row["found"] <= CLIENTS * ROUNDS


def test_what_a_list_gives_away_by_itself_is_said(tmp_path):
    def says(model, x, y):
        outputs = model(x)
        each = functional.cross_entropy(outputs, y, reduction="none")
        each[0] = 1e4
        return {"losses": each.tolist(), "predicted": outputs.softmax(1)}

    findings = judged_all(write_values_run(tmp_path, says))
    rows = {row["name"]: row for row in findings["single-values"].series["values"]}
    right = rows["predicted"]["right"], rows["predicted"]["labelled"]
    assert 0 < right[0] <= right[1]
    assert right[1] >= 0.95 * CLIENTS * EACH
    assert (rows["losses"]["far"], rows["predicted"]["far"]) == (1, 0)
    assert rows["losses"]["by_example"]
    words = " ".join(_explain([*findings.values()]).words)
    assert "losses holds 1 value far above the others" in words
    assert f"that of the example's label in {right[0]} of {right[1]} rows" in words


def test_values_of_other_clients_are_none_of_ones_own(tmp_path):
    finding = judged_all(write_values_run(tmp_path, whose=1))["single-values"]
    assert finding.value == 0
    assert finding.verdict == NO_EVIDENCE
    assert finding.read_off["right"] == 0
    assert finding.series["values"][0]["others"] >= 0.95 * CLIENTS * EACH


def test_what_is_not_told_is_named_with_the_reason(tmp_path):
    findings = judged_all(write_values_run(tmp_path / "unknown", known=False))
    (row,) = findings["single-values"].series["values"]
    assert (row["what"], row["why"]) == ("", "nothing gives the losses or outputs of known examples")
    assert row["why"] in " ".join(_explain([*findings.values()]).words)
    draw = np.random.default_rng(0)
    strange = write_values_run(tmp_path / "strange", lambda m, x, y: {"v": draw.exponential(size=len(x)).tolist()})
    (row,) = judged_all(strange)["single-values"].series["values"]
    assert row["what"] == ""
    assert row["why"].startswith("no known example gives such values")


def test_a_mean_is_no_value_of_an_example(tmp_path):
    def says(model, x, y):
        each = functional.cross_entropy(model(x), y, reduction="none")
        return {"loss": each.mean().item(), "accuracy": (model(x).argmax(1) == y).double().mean().item(), "one": 1.0}

    assert "single-values" not in judged_all(write_values_run(tmp_path, says, says))


def test_scores_are_read_as_they_were_written(tmp_path):
    folder = write_values_run(tmp_path)
    attack = ATTACKS["plaintext"]
    scores = attack.run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu")
    scores.save(tmp_path / "scores.npz")
    read = attack.load_scores(tmp_path / "scores.npz").as_found(attack.found)
    found = scores.as_found(attack.found)
    assert read.values == found.values
    assert len(read.values) == CLIENTS
    for index in range(CLIENTS):
        assert read.list_told(index) == found.list_told(index) != []


def rows_of(values):
    return Rows("node0", "train", "v", 0, np.asarray(values, dtype=np.float64), 1e-7, False)


def given_of(values, error=1e-6):
    values = np.asarray(values, dtype=np.float64)
    return Given("losses", "a model", 1, values, np.full(values.shape, error))


@pytest.mark.parametrize("width", [1, 3])
def test_matches_are_those_of_a_loop_over_all_pairs(width):
    draw = np.random.default_rng(width)
    values = draw.normal(size=(200, width))
    # Two examples that are nearly alike, and rows that are a bit off, a little more, or something else.
    values[1] = values[0] + 4e-6
    sent = np.concatenate([values[:30] + 5e-7, values[30:60] + 3e-6, draw.normal(size=(40, width))])
    of_name = _OfName()
    _match(of_name, 0, rows_of(sent), given_of(values), None)
    met, alone = set(), set()
    for row in sent:
        for item, value in enumerate(values):
            if np.abs(row - value).max() <= 1e-6:
                met.add(item)
                others = [np.abs(row - other).max() for index, other in enumerate(values) if index != item]
                if min(others) > 1e-5:
                    alone.add(item)
    hits = of_name.hits["losses", "a model"]["node0"]
    assert {*hits} == met >= {*range(30)}
    assert {item for item, hit in hits.items() if hit.alone} == alone
    assert not {0, 1} & alone


@pytest.mark.parametrize("width", [1, 3])
def test_few_rows_are_compared_as_many_are(width):
    draw = np.random.default_rng(width)
    values = draw.normal(size=(50, width))
    rows = np.concatenate([values[:6] + draw.normal(0, 3e-3, (6, width)), draw.normal(size=(6, width))])
    apart = np.concatenate([_seek_nearest(rows[[index]], values) for index in range(len(rows))])
    together = _seek_nearest(rows, values)
    for one, other in zip(apart, together, strict=True):
        assert [*one] == [*other]
    assert (together < 50).any(axis=1)[:6].sum() >= 5


def test_accidents_are_as_rare_as_the_bits_say():
    """Of random lists of the same marginals a value is met about as often as once in 2 to the power of its bits."""
    draw = np.random.default_rng(3)
    expected = met = 0.0
    for _ in range(1000):
        values = draw.exponential(size=(300, 1))
        given = given_of(values, error=1e-4)
        of_name = _OfName()
        _match(of_name, 0, rows_of(draw.exponential(size=(10, 1))), given, None)
        met += sum(len(hits) for hits in of_name.hits.get(("losses", "a model"), {}).values())
        # Each of 10 rows may meet each of 300 values, whose density is exp(−value).
        expected += 10 * (2e-4 * np.exp(-values)).sum()
    # Bits count fewer than 4 for none: hits are at most as many as chance gives.
    assert 0 < met <= expected + 5 * math.sqrt(expected)


def test_lists_of_the_same_marginals_are_hardly_ever_told():
    draw = np.random.default_rng(0)
    told = 0
    for _ in range(1000):
        of_name = _OfName()
        for node in ("node0", "node1", "node2"):
            rows = replace(rows_of(draw.exponential(size=(20, 1))), node=node)
            of_name.rows.append(rows)
            _match(of_name, len(of_name.rows) - 1, rows, given_of(draw.exponential(size=(240, 1)), 1e-5), None)
        found = Told()
        _tell(found, of_name, {"node0": 0, "node1": 1, "node2": 2}, 240, 0.0)
        told += any(entry.what for entry in found.lists)
    assert told <= 1


def test_random_lists_of_clients_are_no_leak(tmp_path):
    draw = np.random.default_rng(0)
    for number in range(3):
        folder = write_values_run(
            tmp_path / str(number), lambda m, x, y: {"v": draw.exponential(size=len(x)).tolist()}, seed=number
        )
        finding = judged_all(folder)["single-values"]
        assert (finding.verdict, finding.read_off) == (NO_EVIDENCE, None)


def test_arrays_of_the_model_and_whole_numbers_are_no_values(tmp_path):
    def says(model, x, y):
        return {"counts": np.bincount(y, minlength=CLASSES).tolist(), "labels": y, "v": model(x)}

    record = Record(write_values_run(tmp_path, says) / "record")
    assert {rows.name for rows in list_rows(record)} == {"v"}
