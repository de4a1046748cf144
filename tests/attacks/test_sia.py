import numpy as np
import pytest
import torch

from fedattack.attacks import ATTACKS, Knowledge, Scores, Targets, read_knowledge
from fedattack.attacks.sia import combine_rounds, posterior
from fedattack.audit.source import credits_of
from fedattack.audit.truth import read_truth
from fedattack.errors import ModelError
from fedattack.record import Exchange, Record, RecordWriter, Reply
from tests.federation import CLIENTS, MODEL, write_run

SIA = ATTACKS["sia"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"))


def attack(folder, **changes) -> Scores:
    return SIA.run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu", **changes)


def owners(folder) -> np.ndarray:
    truth = read_truth(folder / "truth")
    return np.array([int(name) if name else -1 for name in truth.owners])


def test_memorised_records_are_traced_to_their_clients(run):
    scores = attack(run)
    owner = owners(run)
    held = owner >= 0
    assert np.mean(scores.arrays["decisions"][held] == owner[held]) > 0.9
    for losses in scores.arrays["losses"]:
        assert np.mean(losses[held].argmin(axis=1) == owner[held]) > 0.9


def test_losses_match_a_plain_loop_over_clients_and_records(run):
    scores = attack(run)
    record, known = Record(run / "record"), read_knowledge(run / "knowledge")
    for position, item in enumerate(record):
        for seen in item.observations:
            model = MODEL.build().eval()
            model.load_state_dict({name: torch.from_numpy(array) for name, array in seen.arrays.items()})
            for target in range(0, len(known.targets), 17):
                logits = model(torch.from_numpy(known.targets.x[target : target + 1])).double()
                expected = torch.nn.functional.cross_entropy(logits, torch.tensor([int(known.targets.y[target])]))
                column = scores.facts["clients"].index(seen.node)
                got = scores.arrays["losses"][position, target, column]
                assert got == pytest.approx(float(expected), rel=1e-4, abs=1e-9)


def test_clients_that_learn_nothing_tie_and_ties_are_fair(tmp_path):
    scores = attack(write_run(tmp_path, epochs=0))
    credit = credits_of(scores.arrays["combined"])
    np.testing.assert_array_equal(credit, np.full_like(credit, 1 / CLIENTS))
    named = np.bincount(scores.arrays["decisions"], minlength=CLIENTS)
    assert named.min() > 0.6 * len(scores.arrays["decisions"]) / CLIENTS


def test_a_client_that_was_not_sampled_is_not_seen_rather_than_no(tmp_path):
    folder = write_run(tmp_path, rounds=3, skip=((1, 0), (2, 0), (2, 1)))
    scores = attack(folder)
    losses = scores.arrays["losses"]
    assert np.isnan(losses[0, :, 0]).all()
    assert np.isnan(losses[1, :, :2]).all()
    assert np.isfinite(losses[2]).all()
    owner = owners(folder)
    assert np.mean(scores.arrays["decisions"][owner == 0] == 0) > 0.8


def test_rounds_are_averaged_over_those_in_which_a_client_was_seen():
    losses = -np.log(np.array([[[0.9, 0.2, np.nan]], [[0.5, np.nan, np.nan]]]))
    np.testing.assert_allclose(combine_rounds(losses), [[0.7 - 1, 0.2 - 1, np.nan]])


def test_tiny_losses_do_not_tie_and_huge_ones_do_not_drown_the_rest():
    tiny = np.array([[[1e-30, 2e-30, 1.0]]])
    assert combine_rounds(tiny)[0].argmax() == 0
    assert combine_rounds(tiny)[0, 0] != combine_rounds(tiny)[0, 1]
    huge = np.array([[[0.1, 0.2, 1e18]], [[0.1, 0.2, np.inf]]])
    np.testing.assert_allclose(combine_rounds(huge), [[np.exp(-0.1) - 1, np.exp(-0.2) - 1, -1.0]])


def test_posterior_is_the_softmax_of_scores_and_prior():
    scores = np.array([[1.0, 0.0, np.nan], [np.nan, np.nan, np.nan]])
    prior = np.log([0.2, 0.3, 0.5])
    got = posterior(scores, prior, gamma=0.5)
    weights = np.array([0.2 * np.exp(2.0), 0.3, 0.0])
    np.testing.assert_allclose(got[0], weights / weights.sum())
    np.testing.assert_allclose(got[1], [0.2, 0.3, 0.5])


def test_the_size_prior_follows_the_counts_that_clients_send(run):
    known = read_knowledge(run / "knowledge")
    scores = SIA.run(
        Record(run / "record"), Knowledge(model=known.model, targets=known.targets, prior="examples"), device="cpu"
    )
    np.testing.assert_allclose(np.exp(scores.arrays["log_prior"]), 1 / CLIENTS)
    assert scores.facts["prior"] == "examples"


def test_parameters_that_do_not_fit_the_model_are_refused(run):
    known = read_knowledge(run / "knowledge")
    wide = Knowledge(model=type(MODEL)(**{**vars(MODEL), "hidden": 65}), targets=known.targets)
    with pytest.raises(ModelError, match="fc1"):
        SIA.run(Record(run / "record"), wide, device="cpu")


def test_a_client_of_another_shape_or_with_nan_is_named_and_cannot_win(tmp_path):
    good = {name: value.numpy() for name, value in MODEL.build().state_dict().items()}
    broken = {name: np.full_like(array, np.nan) for name, array in good.items()}
    other = {**good, "fc2.bias": np.zeros(7, dtype=np.float32)}
    writer = RecordWriter(tmp_path / "record")
    replies = [Reply("good", "ok", good, 5), Reply("nan", "ok", broken, 5), Reply("odd", "ok", other, 5)]
    writer.write(Exchange(1, good, replies))
    writer.close()
    targets = Targets(np.zeros((4, *MODEL.input_shape), dtype=np.float32), np.zeros(4, dtype=np.int64))
    scores = SIA.run(Record(tmp_path / "record"), Knowledge(model=MODEL, targets=targets), device="cpu")
    assert scores.facts["clients"] == ["good", "nan", "odd"]
    assert scores.arrays["decisions"].tolist() == [0] * 4
    notes = " ".join(scores.notes)
    assert "client nan: its model gives losses that are not finite" in notes
    assert "client odd left out" in notes
    assert "fc2.bias" in notes
