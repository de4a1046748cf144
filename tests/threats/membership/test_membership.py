"""Membership inference on federations whose clients memorise random labels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.attacks import ATTACKS, Knowledge, KnownDefence, Scores, Targets, read_knowledge
from fedattack.audit.roc import area, tpr_at
from fedattack.audit.truth import NOBODY, SEVERAL, read_truth
from fedattack.defences import SETTINGS
from fedattack.learning import losses_of_models, per_record_loss
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.threats.membership.fedmia import against_others, logits_of
from fedattack.threats.membership.membership import _rmia, choose_spread
from tests.worlds.federation import CLASSES, CLIENTS, MODEL, write_predictions_run, write_run

MEMBERSHIP = ATTACKS["membership"]
ALONE = {"average-cosine", "loss-series", "loss-threshold", "gradient-norm", "gradient-difference"}
FEDMIA = {"fedmia", "fedmia-loss", "fedmia-cosine"}
SHADOWS = {"likelihood-ratio", "rmia"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"), epochs=20)


@pytest.fixture(scope="module")
def scores(run):
    return attack(run)


def attack(folder, *, options=(), record=None, **changes) -> Scores:
    known = replace(read_knowledge(folder / "knowledge"), **changes)
    chosen = MEMBERSHIP.with_options(dict(options))
    return chosen.run(record or Record(folder / "record"), known, device="cpu")


def told_apart(folder, scores, method="fedmia"):
    """Scores of members, each asked of its client, and of examples that nobody holds, asked of every client."""
    truth = read_truth(folder / "truth")
    values = scores.arrays[f"score/{method}"]
    columns = {truth.nodes.get(node): column for column, node in enumerate(scores.facts["clients"])}
    members = [row for row, owner in enumerate(truth.owners) if owner in columns]
    found = values[members, [columns[truth.owners[row]] for row in members]]
    nobody = values[truth.owners == NOBODY].ravel()
    return found[~np.isnan(found)], nobody[~np.isnan(nobody)]


def test_memorised_examples_are_found_at_few_false_positives(run, scores):
    assert tpr_at(*told_apart(run, scores), 0.01).value > 0.5
    for method in scores.facts["methods"]:
        assert area(*told_apart(run, scores, method)).low > 0.6, method
    assert scores.facts["methods"] == [name for name in scores.facts["methods"] if name in FEDMIA | ALONE]
    assert {*scores.facts["methods"]} == FEDMIA | ALONE
    assert scores.arrays["per_round"].shape == (2, *scores.arrays["score/fedmia"].shape)


def test_gradients_and_predictions_tell_members_apart_too(tmp_path):
    """They tell less: a gradient is one step, and students know but what the public records show."""
    gradients = write_run(tmp_path / "gradients", protocol="fedsgd", rounds=4)
    found = told_apart(gradients, attack(gradients))
    assert tpr_at(*found, 0.01).low > 0.01
    assert area(*found).low > 0.7
    predictions = write_predictions_run(tmp_path / "predictions", rounds=4, epochs=20)
    students = attack(predictions)
    assert {*students.facts["methods"]} == {"fedmia", "fedmia-loss", "loss-series", "loss-threshold"}
    found = told_apart(predictions, students)
    assert tpr_at(*found, 0.1).low > 0.1
    assert area(*found).low > 0.6


@pytest.mark.parametrize("protocol", ["fedavg", "fedsgd"])
def test_clients_that_learn_nothing_tell_nothing(tmp_path, protocol):
    folder = write_run(tmp_path, epochs=0, protocol=protocol)
    scores = attack(folder)
    np.testing.assert_array_equal(scores.arrays["score/fedmia"], 0.5)
    for method in scores.facts["methods"]:
        found = area(*told_apart(folder, scores, method))
        assert found.low <= 0.5 <= found.high, method


def test_scores_match_a_plain_loop_over_rounds_and_clients(run, scores):
    """Losses, cosines and their means, each by its own computation."""
    record, targets = Record(run / "record"), read_knowledge(run / "knowledge").targets
    rows = slice(0, len(targets), 16)
    few = Targets(targets.x[rows], targets.y[rows])
    losses, cosines, shrinks, norms = [], [], [], None
    for item in record:
        by_client = {key: [] for key in ("losses", "cosines", "shrinks", "norms")}
        for seen in item.observations:
            loss, _ = measured(seen.arrays, few)
            _, gradients = measured(item.common, few)
            _, last = measured(seen.arrays, few)
            update = np.concatenate([(seen.arrays[name] - item.common[name]).ravel() for name in seen.arrays])
            products = -gradients @ update.astype(np.float64)
            length = np.linalg.norm(gradients, axis=1)
            by_client["losses"].append(loss)
            by_client["cosines"].append(products / (length * np.linalg.norm(update)))
            by_client["shrinks"].append(2 * products - length**2)
            by_client["norms"].append(np.linalg.norm(last, axis=1))
        losses.append(np.stack(by_client["losses"], axis=1))
        cosines.append(np.stack(by_client["cosines"], axis=1))
        shrinks.append(np.stack(by_client["shrinks"], axis=1))
        norms = np.stack(by_client["norms"], axis=1)
    expected = {
        "average-cosine": np.mean(cosines, axis=0),
        "loss-series": -np.mean(losses, axis=0),
        "loss-threshold": -losses[-1],
        "gradient-norm": -norms,
        "gradient-difference": np.mean(shrinks, axis=0),
    }
    for method, values in expected.items():
        np.testing.assert_allclose(scores.arrays[f"score/{method}"][rows], values, rtol=1e-3, atol=1e-4)
    # The test borrows strength from all targets, so that these few are attacked alone.
    alone = attack(run, targets=few)
    by_loss = np.mean([against_others(logits_of(of_round)) for of_round in losses], axis=0)
    by_cosine = np.mean([against_others(of_round) for of_round in cosines], axis=0)
    np.testing.assert_allclose(alone.arrays["score/fedmia-loss"], by_loss, atol=1e-3)
    np.testing.assert_allclose(alone.arrays["score/fedmia-cosine"], by_cosine, atol=1e-3)
    np.testing.assert_allclose(alone.arrays["score/fedmia"], (by_loss + by_cosine) / 2, atol=1e-3)
    np.testing.assert_allclose(alone.arrays["per_round"].mean(axis=0), alone.arrays["score/fedmia"], atol=1e-6)


def measured(state, targets):
    """Losses and gradients of single examples, one backward pass each."""
    model = MODEL.build().eval()
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
    losses, gradients = [], []
    for x, y in zip(targets.x, targets.y, strict=True):
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.from_numpy(x[None])), torch.tensor([int(y)]))
        loss.backward()
        exact = losses_of_models(model, [state], x[None], np.array([y]), per_record_loss("cross-entropy"), device="cpu")
        losses.append(float(exact[0, 0]))
        gradients.append(torch.cat([value.grad.flatten() for value in model.parameters()]).double().numpy())
    return np.array(losses), np.stack(gradients)


def test_a_client_that_was_not_sampled_is_not_seen_rather_than_no(tmp_path):
    folder = write_run(tmp_path, rounds=2, epochs=20, skip=((1, 0), (2, 1)))
    scores = attack(folder)
    columns = {node: column for column, node in enumerate(scores.facts["clients"])}
    per_round = scores.arrays["per_round"]
    for position, absent in enumerate(("node0", "node1")):
        gone = np.isnan(per_round[position]).all(axis=0)
        assert np.flatnonzero(gone).tolist() == [columns[absent]]
        assert np.isfinite(np.delete(per_round[position], columns[absent], axis=1)).all()
    values = scores.arrays["score/fedmia"]
    assert np.isfinite(values).all()
    np.testing.assert_allclose(values[:, columns["node0"]], per_round[1, :, columns["node0"]], atol=1e-6)
    np.testing.assert_allclose(values[:, columns["node1"]], per_round[0, :, columns["node1"]], atol=1e-6)
    assert area(*told_apart(folder, scores)).low > 0.9
    # The gradient at a client's own model is that of the last round in which it replied.
    assert np.isfinite(scores.arrays["score/gradient-norm"]).all()


def test_a_client_that_was_never_seen_has_no_scores(tmp_path):
    folder = write_run(tmp_path, rounds=1, epochs=2)
    (item,) = Record(folder / "record")
    writer = RecordWriter(tmp_path / "again", facts={"lr": 0.2})
    replies = [Reply(seen.node, "ok", seen.arrays, 30) for seen in item.observations]
    writer.write(Exchange(1, item.common, [*replies, Reply("silent", "missing", reason="no answer")]))
    writer.close()
    scores = attack(folder, record=Record(tmp_path / "again"))
    column = scores.facts["clients"].index("silent")
    for method in scores.facts["methods"]:
        gone = np.isnan(scores.arrays[f"score/{method}"]).all(axis=0)
        assert np.flatnonzero(gone).tolist() == [column]


def test_fewer_than_three_clients_are_held_against_nobody(tmp_path):
    folder = write_run(tmp_path, rounds=2, epochs=2, skip=((1, 0), (1, 1), (2, 2), (2, 3)))
    scores = attack(folder)
    assert any("no round has three clients" in note for note in scores.notes)
    assert {*scores.facts["methods"]} == ALONE
    assert np.isnan(scores.arrays["per_round"]).all()
    assert np.isfinite(scores.arrays["score/loss-series"]).all()
    assert (scores.arrays["labels"] < CLASSES).all()


def test_an_example_that_two_clients_hold_is_found_in_both(tmp_path):
    folder = write_run(tmp_path, epochs=20, shared=6)
    truth, scores = read_truth(folder / "truth"), attack(folder)
    both = np.flatnonzero(truth.owners == SEVERAL)
    assert len(both) == 6
    columns = [scores.facts["clients"].index(node) for node in ("node0", "node1", "node2", "node3")]
    values = scores.arrays["score/fedmia"][both][:, columns]
    assert area(values[:, :2].ravel(), told_apart(folder, scores)[1]).value > 0.9
    assert values[:, :2].min() > values[:, 2:].max()


def test_the_order_of_clients_does_not_matter(tmp_path, run, scores):
    names = {"node0": "c", "node1": "a", "node2": "d", "node3": "b"}
    record = Record(run / "record")
    writer = RecordWriter(tmp_path / "record", seed=record.seed, facts=record.facts)
    for item in record:
        replies = []
        for seen in reversed(item.observations):
            replies.append(Reply(names[seen.node], "ok", seen.arrays, seen.num_examples))
        writer.write(Exchange(item.number, item.common, replies))
    writer.close(final=record.final)
    again = attack(run, record=Record(tmp_path / "record"))
    before = [scores.facts["clients"].index(node) for node in names]
    after = [again.facts["clients"].index(name) for name in names.values()]
    assert before != after
    for method in scores.facts["methods"]:
        first, second = scores.arrays[f"score/{method}"], again.arrays[f"score/{method}"]
        np.testing.assert_allclose(second[:, after], first[:, before], rtol=1e-5, atol=1e-6)


def known_noise(strength=0.05, clip=SETTINGS["defence-clip"]):
    settings = {"defence": "dp-gaussian", "defence-strength": strength, "defence-clip": clip}
    return KnownDefence("fedattack", {**SETTINGS, **settings})


def test_shadows_are_used_where_examples_and_training_are_known_and_noted_where_not(tmp_path):
    folder = write_run(tmp_path, rounds=2, epochs=5, auxiliary=60)
    scores = attack(folder, options={"shadows": "3"})
    assert {*scores.facts["methods"]} == FEDMIA | ALONE | SHADOWS
    assert scores.facts["trained"] == 3 * 2
    assert scores.notes == ()
    for method in SHADOWS:
        assert area(*told_apart(folder, scores, method)).low > 0.6, method
        values = scores.arrays[f"score/{method}"]
        assert ((values >= 0) & (values <= 1)).all()
    without = attack(folder, options={"shadows": "0"})
    assert {*without.facts["methods"]} == FEDMIA | ALONE
    assert (without.facts["trained"], without.notes) == (0, ())
    np.testing.assert_array_equal(without.arrays["score/fedmia"], scores.arrays["score/fedmia"])
    for lacking in ({"auxiliary": None}, {"training": None}):
        found = attack(folder, **lacking)
        assert {*found.facts["methods"]} == FEDMIA | ALONE
        # Who was given no auxiliary examples misses none.
        assert any("no shadow models" in note for note in found.notes) == ("training" in lacking)


class LastRound(Record):
    """The last round of a record."""

    def __iter__(self):
        return iter([*super().__iter__()][-1:])

    def __len__(self) -> int:
        return 1


def test_shadows_of_some_rounds_say_what_they_say_of_these_alone(tmp_path):
    folder = write_run(tmp_path, rounds=3, epochs=5, auxiliary=60)
    options = {"shadows": "3", "shadow_rounds": "1"}
    scores = attack(folder, options=options)
    assert scores.facts["trained"] == 3
    (note,) = scores.notes
    assert note.startswith("shadow models were trained in 1 of 3 rounds, as shadow_rounds says")
    last = attack(folder, options=options, record=LastRound(folder / "record"))
    whole = attack(folder, options={"shadows": "3", "shadow_rounds": "3"})
    assert last.notes == whole.notes == ()
    for method in SHADOWS:
        np.testing.assert_array_equal(scores.arrays[f"score/{method}"], last.arrays[f"score/{method}"])
    for method in FEDMIA | ALONE:
        np.testing.assert_array_equal(scores.arrays[f"score/{method}"], whole.arrays[f"score/{method}"])


@pytest.mark.parametrize(
    ("count", "expected"), [(None, [1, 2, 4, 8, 9]), (9, [1, 2, 4, 8, 9]), (2, [2, 9]), (1, [9]), (4, [1, 2, 4, 9])]
)
def test_rounds_are_spread_and_the_last_is_among_them(count, expected):
    assert choose_spread([1, 2, 4, 8, 9], count) == expected


@pytest.mark.parametrize("protocol", ["fedsgd", "fedmd"])
def test_no_shadows_are_trained_of_clients_that_send_back_no_model(tmp_path, protocol):
    options = {"epochs": 2, "rounds": 1, "auxiliary": 40}
    write = write_predictions_run if protocol == "fedmd" else write_run
    folder = write(tmp_path, **options, **({} if protocol == "fedmd" else {"protocol": protocol}))
    scores = attack(folder)
    assert not SHADOWS & {*scores.facts["methods"]}
    assert f"no shadow models: the attacker has no way to train clients of {protocol}" in scores.notes


def test_shadows_are_put_through_a_known_defence_alone(tmp_path):
    folder = write_run(tmp_path, rounds=1, epochs=5, auxiliary=60, defence=known_noise())
    plain = attack(folder, defence=None, options={"shadows": "3"})
    assert "likelihood-ratio-adaptive" not in plain.facts["methods"]
    noisy = attack(folder, options={"shadows": "3"})
    assert {*noisy.facts["methods"]} == {*plain.facts["methods"], "likelihood-ratio-adaptive"}
    adaptive = noisy.arrays["score/likelihood-ratio-adaptive"]
    assert (adaptive != noisy.arrays["score/likelihood-ratio"]).mean() > 0.9
    # A defence that hardly does anything leaves the shadows as they are.
    same = attack(folder, defence=known_noise(1e-9, clip=0.0), options={"shadows": "3"})
    np.testing.assert_allclose(
        same.arrays["score/likelihood-ratio-adaptive"], same.arrays["score/likelihood-ratio"], atol=1e-3
    )


def test_rmia_is_the_share_of_the_population_that_a_target_beats():
    draw = np.random.default_rng(0)
    losses, shadows = draw.exponential(size=(6, 2)), draw.exponential(size=(4, 6))
    population, on_population = {1: draw.exponential(size=9)}, draw.exponential(size=(4, 9))
    found = _rmia(losses, shadows, population, on_population)
    assert np.isnan(found[:, 0]).all()
    for target in range(6):
        beaten = 0
        own = np.exp(-losses[target, 1]) / (0.65 * np.exp(-shadows[:, target]).mean() + 0.35)
        for example in range(9):
            other = np.exp(-population[1][example]) / (0.65 * np.exp(-on_population[:, example]).mean() + 0.35)
            beaten += own >= other
        assert found[target, 1] == pytest.approx(beaten / 9)


class Branching(nn.Module):
    """A model that decides by a number, which torch.func refuses."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x) * (2.0 if x.sum().item() > 0 else 1.0)


def branching(**_):
    torch.manual_seed(0)
    return Branching()


def test_rmia_says_nothing_of_a_model_that_diverged():
    losses = np.array([[0.1, 0.1], [np.nan, 0.1]])
    population = {0: np.ones(5), 1: np.full(5, np.nan)}
    scores = _rmia(losses, np.ones((4, 2)), population, np.ones((4, 5)))
    assert scores[0, 0] == 1.0
    assert np.isnan([scores[1, 0], *scores[:, 1]]).all()


def test_where_the_model_that_was_sent_is_damaged_losses_are_left(tmp_path):
    run = write_run(tmp_path / "good", rounds=1, epochs=20, auxiliary=20)
    (round_,) = Record(run / "record")
    start = dict(round_.common)
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, start, [Reply("node0", "failed")]))
    writer.write(Exchange(2, start, [Reply(seen.node, "ok", seen.arrays, 30) for seen in round_.observations]))
    writer.close()
    file = tmp_path / "record" / "rounds" / "000000.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    scores = attack(run, record=Record(tmp_path / "record", skip_damaged=True))
    assert scores.facts["methods"] == ["fedmia", "fedmia-loss", "loss-series", "loss-threshold", "gradient-norm"]


def test_without_gradients_of_single_examples_losses_are_left(tmp_path):
    model = replace(MODEL, spec=f"{__name__}:branching", input_shape=(4,), classes=3)
    draw = np.random.default_rng(0)
    writer = RecordWriter(tmp_path / "record")
    for number in (1, 2):
        common = {name: value.numpy().copy() for name, value in branching().state_dict().items()}
        replies = []
        for client in range(4):
            sent = {name: array + draw.normal(size=array.shape).astype(np.float32) for name, array in common.items()}
            replies.append(Reply(f"node{client}", "ok", sent, 5))
        writer.write(Exchange(number, common, replies))
    writer.close()
    targets = Targets(draw.normal(size=(12, 4)).astype(np.float32), draw.integers(3, size=12))
    scores = MEMBERSHIP.run(Record(tmp_path / "record"), Knowledge(model=model, targets=targets), device="cpu")
    assert scores.facts["methods"] == ["fedmia", "fedmia-loss", "loss-series", "loss-threshold"]
    assert sum("gradients of single examples cannot be computed for this model" in note for note in scores.notes) == 1
    assert np.isfinite(scores.arrays["score/fedmia"]).all()


def test_clients_that_diverged_hide_nobody_and_are_named(tmp_path):
    """One sends NaN, one weights that overflow, and one an infinite weight, whose losses are numbers now and then."""
    folder = write_run(tmp_path / "good", rounds=1, epochs=20)
    known = read_knowledge(folder / "knowledge")
    known.targets.x[::3, 0] = 0.0
    (item,) = Record(folder / "record")
    start = dict(item.common)
    infinite = {name: array.copy() for name, array in start.items()}
    infinite["fc1.weight"][0, 0] = np.inf
    odd = {
        "nan": {name: np.full_like(array, np.nan) for name, array in start.items()},
        "huge": {name: np.full_like(array, 1e30) for name, array in start.items()},
        "infinite": infinite,
    }
    writer = RecordWriter(tmp_path / "record")
    replies = [Reply(seen.node, "ok", seen.arrays, 30) for seen in item.observations]
    writer.write(Exchange(1, start, replies + [Reply(name, "ok", arrays, 30) for name, arrays in odd.items()]))
    writer.close()
    scores = MEMBERSHIP.run(Record(tmp_path / "record"), replace(known, auxiliary=None), device="cpu")
    good = [scores.facts["clients"].index(f"node{client}") for client in range(CLIENTS)]
    for method in scores.facts["methods"]:
        assert np.isfinite(scores.arrays[f"score/{method}"][:, good]).all(), method
    for name in ("nan", "infinite"):
        assert any(f"round 1, client {name}: its model gives losses that are not numbers" in x for x in scores.notes)
    assert np.isnan(scores.arrays["score/fedmia"][:, scores.facts["clients"].index("nan")]).all()
    assert area(*told_apart(folder, scores)).low > 0.8
    scores.save(tmp_path / "scores.npz")
    MEMBERSHIP.load_scores(tmp_path / "scores.npz")
