"""Examples are read off records, of replies and of sums, and what lacks the layer is refused in one line."""

import numpy as np
import pytest

from fedattack.attacks import ModelKnowledge
from fedattack.attacks.first_layer import find_first_layer
from fedattack.audit.finding import LEAK, NO_EVIDENCE
from fedattack.base.errors import NeedsError
from fedattack.learning import LocalSGD
from fedattack.report.section import show_table
from fedattack.threats.exact import tables
from fedattack.threats.exact.section import _name_exposed
from tests.threats.exact.world import CLIENTS, attacked, judged, table, write_exact_run, write_sums

WORLD = "tests.threats.exact.world"


def known(name):
    return ModelKnowledge(spec=f"{WORLD}:{name}", input_shape=(1, 8, 8), classes=10, arguments={})


@pytest.mark.slow
def test_all_digits_of_small_batches_are_read_and_the_page_says_so(tmp_path):
    found = judged(write_exact_run(tmp_path))
    recovered = found["recovered"]
    assert (recovered.headline, recovered.verdict, recovered.n) == (True, LEAK, CLIENTS * 8)
    assert (recovered.value, found["precision"].value) == (1, 1)
    assert recovered.null["value"] == 0
    assert found["psnr"].value > 90
    assert "columns" not in found
    assert sum(row["right"] for row in recovered.series["rules"]) == CLIENTS * 8
    assert max(row["error"] for row in recovered.series["rules"]) < 1e-5
    assert show_table(tables.RULES, recovered).rows
    assert [row[0] for row in show_table(tables.CLIENTS, recovered).rows] == list("0123")
    assert show_table(tables.ROUNDS, recovered).rows == [["1", "100%"]]
    assert [row[-1] for row in show_table(tables.UPDATES, recovered).rows] == ["–"] * CLIENTS
    assert _name_exposed([recovered]) == "All examples of 4 of 4 clients were recovered."


def test_rows_of_a_table_are_read_whole_and_by_columns(tmp_path):
    found = judged(write_exact_run(tmp_path, data=table, each=6))
    assert found["recovered"].value == 1
    assert found["columns"].value == 1
    assert found["columns"].baselines["auxiliary examples"] < 0.2
    assert "psnr" not in found


def test_what_a_neuron_isolates_is_read_of_batches_that_are_too_large(tmp_path):
    """Of 100 digits a client every one that a single neuron tells is named, and no other."""
    folder = write_exact_run(tmp_path, each=100, clients=2, hidden=2000)
    found = judged(folder)
    assert "more than 64" in show_table(tables.UPDATES, found["recovered"]).rows[0][-1]
    assert found["precision"].value == 1
    assert found["recovered"].verdict == LEAK
    from fedattack.attacks import read_knowledge
    from fedattack.audit.truth import read_truth
    from fedattack.record import Record

    truth, layer = read_truth(folder / "truth"), find_first_layer(read_knowledge(folder / "knowledge").model)
    start = layer.join(Record(folder / "record").rounds[0].common)
    x, owners = truth.answers["exact"]["x"].astype(float), truth.answers["exact"]["owners"]
    isolated = 0
    for client in "01":
        above = x[owners == client] @ start[:, :-1].T + start[:, -1] > 0
        isolated += len({int(above[:, neuron].argmax()) for neuron in np.flatnonzero(above.sum(axis=0) == 1)})
    assert isolated > 0
    assert round(found["recovered"].value * 200) == isolated


def test_models_of_several_steps_are_read(tmp_path):
    found = judged(write_exact_run(tmp_path, protocol="fedavg", each=6, training=LocalSGD(2, 3, 0.1)))
    assert found["recovered"].value > 0.5
    assert found["precision"].value > 0.9


@pytest.mark.slow
def test_sums_are_read_and_traced_by_who_took_part(tmp_path):
    pairs = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)]
    found = judged(write_sums(tmp_path, rounds=6, each=5, taking_part=pairs))
    assert found["recovered"].value == 1
    assert found["clients"].value == 1
    assert found["clients"].baselines["guessing"] == 0.25
    curve = [row["share"] for row in found["recovered"].series["rounds"]]
    assert curve[:2] == [0.5, 1]


@pytest.mark.slow
def test_who_always_appears_together_is_not_told_apart(tmp_path):
    found = judged(write_sums(tmp_path, rounds=2, each=3))
    assert found["recovered"].value == 1
    assert found["clients"].value == 0


def test_examples_that_nobody_sent_are_no_leak(tmp_path):
    """The null run: clients train on other examples than the truth says."""
    found = judged(write_exact_run(tmp_path, others=True))
    assert (found["recovered"].value, found["recovered"].verdict) == (0, NO_EVIDENCE)


def test_of_noise_nothing_is_read(tmp_path):
    draw = np.random.default_rng(0)
    found = judged(
        write_exact_run(
            tmp_path, alter=lambda name, array, start: draw.normal(size=array.shape).astype(np.float32) * 1e-2
        )
    )
    assert (found["recovered"].value, found["recovered"].verdict) == (0, NO_EVIDENCE)
    assert "precision" not in found


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("convolution", "a first layer that is fully connected; here it is 0, Conv2d"),
        ("without_bias", "a first layer with a bias; 1 has none"),
        ("with_sign_changed", "receives the input unchanged; before first it is changed"),
    ],
)
def test_models_without_the_layer_are_refused_in_one_line(name, why, tmp_path):
    with pytest.raises(NeedsError, match=why):
        find_first_layer(known(name))
    folder = write_exact_run(tmp_path, spec=f"{WORLD}:{name}", each=2)
    with pytest.raises(NeedsError, match=f"attack exact cannot be made of .*: .*{why}"):
        attacked(folder, trusted=[f"{WORLD}:{name}"])


def test_the_first_layer_is_found_by_what_it_takes():
    layer = find_first_layer(known("out_of_order"))
    assert (layer.weight, layer.bias, layer.is_relu) == ("entry.weight", "entry.bias", True)
    assert not find_first_layer(known("with_tanh")).is_relu


def test_single_examples_of_a_layer_without_relu_are_read(tmp_path):
    spec = f"{WORLD}:with_tanh"
    scores = attacked(write_exact_run(tmp_path, spec=spec, each=1), trusted=[spec])
    assert len(scores.arrays["examples"]) == CLIENTS
    assert "no ReLU follows" in scores.facts["updates"][0]["why"]
