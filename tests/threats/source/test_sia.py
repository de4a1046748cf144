import numpy as np
import pytest
import torch

from fedattack.attacks import ATTACKS, Knowledge, Scores, Targets, read_knowledge
from fedattack.audit.truth import read_truth
from fedattack.base.errors import ModelError, NeedsError
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.threats.source.case import credits_of
from fedattack.threats.source.sia import combine_likelihoods, combine_rounds, posterior
from tests.worlds.federation import CLIENTS, MODEL, write_run

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


@pytest.mark.slow
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


def test_likelihoods_of_clients_that_are_always_seen_are_theorem_2_s_exponents():
    losses = np.random.default_rng(0).exponential(size=(4, 6, 5))
    np.testing.assert_allclose(combine_likelihoods(losses), -losses.mean(axis=0), rtol=1e-14)
    tiny = np.array([[[1e-30, 2e-30, 0.5, 1e18]]] * 3)
    np.testing.assert_array_equal(combine_likelihoods(tiny)[0].argsort(), [3, 2, 1, 0])


def test_likelihoods_match_a_plain_loop_where_clients_were_not_always_seen():
    draw = np.random.default_rng(1)
    losses = draw.exponential(size=(7, 5, 6))
    losses[draw.random(losses.shape) < 0.1] = np.inf
    losses[:, :, draw.integers(6)] = 0.5  # one client without infinite losses
    for number in range(7):
        losses[number, :, draw.permutation(6)[:3]] = np.nan
    losses[:, :, 4] = np.nan
    got = combine_likelihoods(losses)
    for target in range(5):
        scores = {}
        for client in range(6):
            terms = []
            for number in range(7):
                if np.isnan(losses[number, target, client]):
                    continue
                others = [loss for loss in losses[number, target] if np.isfinite(loss)]
                terms.append((np.median(others) if others else 0.0) - losses[number, target, client])
            if terms:
                scores[client] = np.mean(terms)
        assert np.flatnonzero(~np.isnan(got[target])).tolist() == sorted(scores)
        finite = [client for client, score in scores.items() if np.isfinite(score)]
        for client, score in scores.items():
            expected = score - scores[finite[0]]  # what all clients of a target share says nothing of its owner
            assert got[target, client] - got[target, finite[0]] == pytest.approx(expected, abs=1e-12)


def test_an_early_round_is_not_held_against_the_client_that_was_seen_in_it_alone():
    """All clients' losses fall from 2 to 1; the owner's is lower than the others' in the only round it took part."""
    losses = np.array([[[1.7, 2.0, np.nan]], [[np.nan, 1.0, 1.05]]])
    losses = np.concatenate([losses, [[[np.nan, 1.0, 1.02]]]])
    assert np.nanargmax(combine_likelihoods(losses)[0]) == 0
    assert np.nanargmax(combine_rounds(losses)[0]) == 2


@pytest.mark.parametrize("combine", [combine_rounds, combine_likelihoods])
def test_losses_that_are_not_finite_stay_with_their_client(combine):
    losses = np.array([[[np.nan, np.inf, 0.2, 0.1]], [[np.nan, 0.1, 0.2, np.nan]]])
    scores = combine(losses)
    assert np.isnan(scores[0, 0])
    assert np.nanargmin(scores[0]) == 1
    assert np.isfinite(scores[0, 2:]).all()
    hopeless = combine(np.full((1, 1, 3), np.inf))
    np.testing.assert_array_equal(credits_of(hopeless), [[1 / 3] * 3])


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


@pytest.mark.parametrize("attack", ["sia", "membership"])
def test_why_no_reply_can_be_used_is_told(attack, tmp_path):
    good = {name: value.numpy() for name, value in MODEL.build().state_dict().items()}
    part = {name: array for name, array in good.items() if not name.startswith("fc2")}
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, good, [Reply(node, "ok", part, 5) for node in "ab"]))
    writer.close()
    targets = Targets(np.zeros((4, *MODEL.input_shape), dtype=np.float32), np.zeros(4, dtype=np.int64))
    known = Knowledge(model=MODEL, targets=targets)
    with pytest.raises(NeedsError, match=r"holds none \(round 1, client a left out: .*missing: fc2.*\)$"):
        ATTACKS[attack].run(Record(tmp_path / "record"), known, device="cpu")


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
