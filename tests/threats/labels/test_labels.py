"""Labels of the bundled digits are counted in gradients, models and sums, and refusals say why."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.audit.truth import read_truth
from fedattack.base.errors import NeedsError
from fedattack.learning import LocalSGD, train_local
from fedattack.record import Record
from tests.threats.labels.world import CLIENTS, attacked, write_digits_run, write_sums_of_digits
from tests.worlds.federation import write_predictions_run


def errors(folder):
    """Return by rule the mean absolute error of the counts."""
    scores, truth = attacked(folder), read_truth(folder / "truth")
    counts = dict(zip(scores.facts["rules"], scores.arrays["counts"], strict=True))
    return {rule: float(np.abs(of_rule - truth.counts).mean()) for rule, of_rule in counts.items()}


def test_gradients_of_digits_are_counted_to_a_few_examples(tmp_path):
    found = errors(write_digits_run(tmp_path))
    assert found["solved"] <= 0.3
    assert found["solved"] <= min(found["llg-plus"], found["llg"], found["idlg"])


def test_models_of_digits_are_counted_at_least_as_well_as_by_llg(tmp_path):
    means = {}
    for seed in range(3):
        for rule, error in errors(
            write_digits_run(tmp_path / str(seed), protocol="fedavg", epochs=2, seed=seed)
        ).items():
            means.setdefault(rule, []).append(error)
    means = {rule: np.mean(values) for rule, values in means.items()}
    assert means["solved"] <= min(means.values())


@pytest.mark.parametrize(("protocol", "most"), [("fedsgd", 0.5), ("fedavg", 4.5)])
def test_sums_tell_clients_apart_over_rounds(protocol, most, tmp_path):
    """Each client is left out once: the sums of the others tell what it holds."""
    taking_part = [[client for client in range(CLIENTS) if client != left] for left in range(CLIENTS)]
    folder = write_sums_of_digits(tmp_path, rounds=CLIENTS, taking_part=taking_part, protocol=protocol)
    assert Record(folder / "record").view == "aggregate"
    found = errors(folder)
    assert found["solved"] <= min(most, *found.values())
    assert not any("always appear together" in note for note in attacked(folder).notes)


def test_clients_that_always_appear_together_are_not_told_apart(tmp_path):
    folder = write_sums_of_digits(tmp_path, rounds=2)
    scores = attacked(folder)
    assert "the sums tell 1 of 6 clients apart: those that always appear together get the same shares" in scores.notes
    truth = read_truth(folder / "truth")
    whole = scores.arrays["counts"][0].sum(axis=0)
    assert np.abs(whole - truth.counts.sum(axis=0)).max() <= CLIENTS
    assert (np.ptp(scores.arrays["counts"][0], axis=0) == 0).all()


def test_drawn_inputs_stand_for_examples(tmp_path):
    folder = write_digits_run(tmp_path, auxiliary=0)
    scores = attacked(folder)
    assert scores.facts["drawn"]
    assert any("random inputs" in note for note in scores.notes)
    assert errors(folder)["solved"] <= 2


def test_without_knowing_how_clients_train_labels_are_solved_up_to_a_factor(tmp_path):
    folder = write_digits_run(tmp_path, protocol="fedavg", knows_training=False)
    scores = attacked(folder)
    assert scores.facts["rules"] == ["solved", "llg"]
    assert any("not known how clients train" in note for note in scores.notes)
    found = errors(folder)
    assert found["solved"] < found["llg"]


def test_without_examples_and_without_knowing_how_clients_train_llg_alone_counts(tmp_path):
    scores = attacked(write_digits_run(tmp_path, protocol="fedavg", knows_training=False, auxiliary=0))
    assert scores.facts["rules"] == ["llg"]
    assert any("only the rule LLG is used" in note for note in scores.notes)


@pytest.mark.parametrize("auxiliary", [0, 200])
def test_of_clients_whose_labels_are_alike_more_is_right_than_by_the_prior(auxiliary, tmp_path):
    """Clients of several epochs that draw labels alike leave hardly any gradient, of which LLG makes noise."""
    folder = write_digits_run(
        tmp_path, protocol="fedavg", epochs=2, alpha=300, each=120, auxiliary=auxiliary, rounds=2, seed=4
    )
    scores, truth = attacked(folder), read_truth(folder / "truth")
    guess = np.abs(scores.arrays["prior"] * truth.counts.sum(axis=1, keepdims=True) - truth.counts).mean()
    found = errors(folder)
    assert found["solved"] < guess < found["llg"]


@pytest.mark.parametrize("training", [LocalSGD(2, 4, 0.1), LocalSGD(3, 0, 0.1, momentum=0.9)])
def test_reach_is_how_far_a_constant_gradient_moves_a_model(training):
    model = nn.Linear(1, 1, bias=False)
    start = model.weight.item()
    x = np.ones((12, 1), np.float32)
    # The loss is the output itself, whose gradient is always 1.
    loss = f"{__name__}:output"
    train_local(model, x, np.zeros(12, np.float32), seed=0, loss=loss, **training.keywords())
    assert (start - model.weight.item()) / training.lr == pytest.approx(training.reach(12), rel=1e-4)


def output(outputs, targets):
    return outputs.flatten().double()


def test_what_cannot_be_asked_is_refused_in_one_line(tmp_path):
    folder = write_digits_run(tmp_path / "whole")
    record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
    attack = ATTACKS["labels"]
    regression = replace(known, model=replace(known.model, loss="mse"))
    with pytest.raises(NeedsError, match=r"reads gradients of a cross-entropy, .* loss is mse of 10 outputs"):
        attack.run(record, regression)
    frozen = replace(known, frozen={"fc2.weight": np.zeros((10, 32), np.float32)})
    with pytest.raises(NeedsError, match=r"reads how the last layer moves, and fc2\.weight is frozen"):
        attack.run(record, frozen)
    nine = replace(known, model=replace(known.model, spec="tests.threats.labels.world:ends_in_nine"))
    with pytest.raises(NeedsError, match="ends in a linear layer of 10 outputs, one a label; the last one here has 9"):
        attack.run(record, nine)
    with pytest.raises(NeedsError, match=r"attack labels cannot be made of .*: it needs .*, but these clients send"):
        attack.run(Record(write_predictions_run(tmp_path / "md", rounds=1, epochs=1) / "record"), known)
    zeros = write_digits_run(tmp_path / "zeros", alter=lambda name, array, start: np.zeros_like(array))
    with pytest.raises(NeedsError, match="needs updates of a last layer with example counts"):
        attacked(zeros)
    lost = write_digits_run(tmp_path / "lost", alter=lambda name, array, start: np.full_like(array, np.nan))
    with pytest.raises(NeedsError, match=r"round 1, client node0 left out: numbers are not finite"):
        attacked(lost)


def test_labels_beyond_the_model_s_are_not_taken_for_examples(tmp_path):
    folder = write_digits_run(tmp_path)
    known = read_knowledge(folder / "knowledge")
    floats = replace(known.auxiliary, y=known.auxiliary.y.astype(np.float32))
    model = replace(known.model, loss="cross-entropy")
    scores = ATTACKS["labels"].run(Record(folder / "record"), replace(known, auxiliary=floats, model=model))
    assert scores.facts["drawn"]
