import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Scores, read_knowledge
from fedattack.base.errors import DataError, NeedsError
from fedattack.learning import LocalSGD, build_model
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.threats.attribute.aia import METHODS
from fedattack.threats.attribute.by_estimates import mark_largest
from fedattack.threats.attribute.by_loss import beliefs_of, smallest_loss
from fedattack.threats.attribute.case import lower_bound
from fedattack.threats.attribute.local_optimum import decode_least_squares, fit_update_maps
from tests.worlds.attributes import linear, partial_of, tables, values_of, write_attribute_run

AIA = ATTACKS["aia"]
GLOBAL, LAST, LOCAL, MOMENTS = range(len(METHODS))
LOGISTIC = ModelKnowledge(spec="linear", input_shape=(5,), classes=2)
ONE_HOT = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def attack(folder, attacking=AIA, **changes) -> Scores:
    return attacking.run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu", **changes)


def attack_in_memory(data, attacking=AIA, **changes) -> Scores:
    """Attack a run in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        return attack(write_attribute_run(Path(folder), data, **changes), attacking)


def accuracy(scores, truth):
    return (scores.arrays["decisions"] == truth).mean(axis=1)


def optimum_of(x, y):
    """Return the least-squares weights, the last one being the bias."""
    return np.linalg.lstsq(np.c_[x, np.ones(len(x))].astype(np.float64), y, rcond=None)[0]


def test_the_decoded_model_gives_the_attribute_away():
    data = tables(noise=0.05)
    scores = attack_in_memory(data)
    found = accuracy(scores, values_of(data))
    assert found[LOCAL] == 1
    assert found[MOMENTS] == 1
    assert found[GLOBAL] < 0.9


def test_decisions_under_the_local_optimum_are_those_of_algorithm_3_by_hand():
    data = tables(noise=0.7)
    scores = attack_in_memory(data)
    start = 0
    for (x, y), facts in zip(data, scores.facts["clients"], strict=True):
        weights, ones = optimum_of(x, y), int(x[:, -1].sum())
        estimates = []
        for row, label in zip(x, y, strict=True):
            estimates.append((label - row[:-1] @ weights[:-2] - weights[-1]) / weights[-2])
        expected = np.zeros(len(x), dtype=int)
        expected[np.argsort(estimates)[len(x) - ones :]] = 1
        assert scores.arrays["decisions"][LOCAL, start : start + len(x)].tolist() == expected.tolist()
        assert facts["how"] == "messages"
        assert facts["share"] == pytest.approx(x[:, -1].mean(), abs=1e-6)
        assert facts["weight"]["reconstructed"] == pytest.approx(weights[-2], rel=1e-3)
        start += len(x)


@pytest.mark.parametrize("how", [None, LocalSGD(1, 0, 0.1, optimizer="Adam")])
def test_whoever_trains_otherwise_than_by_known_sgd_is_asked_by_losses(how, tmp_path):
    data = tables(noise=0.05)
    folder = write_attribute_run(tmp_path, data)
    known = replace(read_knowledge(folder / "knowledge"), training=how)
    scores = AIA.run(Record(folder / "record"), known, device="cpu")
    assert any("no least-squares problem is decoded" in note for note in scores.notes)
    assert {facts["how"] for facts in scores.facts["clients"]} <= {"last returned", "extrapolated"}
    # The value with the smallest loss under the last returned model, as with known training.
    whole = attack(folder)
    np.testing.assert_array_equal(scores.arrays["losses"][LAST], whole.arrays["losses"][LAST])


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.slow
def test_a_hundred_unknowns_are_decoded_from_messages_in_float32(share):
    data = tables(clients=3, records=300, features=99)
    scores = attack_in_memory(data, share=share, rounds=20)
    for (x, y), facts in zip(data, scores.facts["clients"], strict=True):
        assert facts["unknowns"] == 100
        assert facts["share"] == pytest.approx(x[:, -1].mean(), abs=1e-6)
        assert facts["weight"]["reconstructed"] == pytest.approx(optimum_of(x, y)[-2], rel=1e-4)


def test_losses_are_those_of_each_record_with_each_value():
    data = tables(clients=2, records=7)
    scores = attack_in_memory(data, share=1.0)
    for client, (x, y) in enumerate(data):
        weights = optimum_of(x, y)
        for record in range(len(x)):
            for value in (0, 1):
                expected = (np.append(x[record, :-1], [value, 1.0]) @ weights - y[record]) ** 2
                got = scores.arrays["losses"][LOCAL, client * len(x) + record, value]
                assert got == pytest.approx(expected, rel=1e-2, abs=1e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_sign_of_the_weight_does_not_matter(sign):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(50, 4)).astype(np.float32)
    x[:, -1] = draw.random(50) < 0.3
    y = (x @ np.array([0.5, -1.0, 0.2, sign * 2.0]) + 0.1 * draw.normal(size=50)).astype(np.float32)
    data = [(x, y), *tables(clients=2, features=4)]
    found = attack_in_memory(data).arrays["decisions"][LOCAL, :50]
    np.testing.assert_array_equal(found, x[:, -1])


def test_proposition_3_bounds_a_thousand_random_problems():
    """Decoded from features + 1 messages each."""
    draw = np.random.default_rng(0)
    checked = tight = 0
    while checked < 1_000:
        features = int(draw.integers(2, 8))
        records = int(draw.integers(2 * features, 60))
        x = draw.normal(size=(records, features))
        x[:, -1] = draw.random(records) < draw.uniform(0.05, 0.95)
        if x[:, -1].std() == 0:
            continue
        noise = draw.exponential(0.5) * draw.standard_t(3, records)
        y = x @ (draw.normal(size=features) * draw.uniform(0.1, 3)) + noise
        received = draw.normal(size=(features + 1, features))
        moves = 0.1 * 2 / records * (received @ x.T - y) @ x
        found = decode_least_squares(fit_update_maps(received, moves[None], np.finfo(float).eps)[0], lr=0.1)
        share, weight = found.H[-1, -1] / 2, found.optimum[-1]
        decisions = mark_largest((y - x[:, :-1] @ found.optimum[:-1]) / weight, math.ceil(share * records - 1e-6), draw)
        bound = lower_bound(x[:, -1].mean(), np.mean((y - x @ found.optimum) ** 2), weight)
        assert np.mean(decisions == x[:, -1]) >= bound - 1e-9
        checked += 1
        tight += bound > abs(1 - 2 * share)
    assert tight > 100


def pair(half=10, seed=0):
    """Return Proposition 1's two clients: the same but for opposite attributes, and not to be told apart."""
    draw = np.random.default_rng(seed)
    public = np.tile(draw.normal(size=(half, 3)), (2, 1))
    s = np.repeat([1.0, 0.0], half)
    y = draw.normal(size=2 * half)
    y[half:] += y[:half].mean() - y[half:].mean()
    return [(np.c_[public, value].astype(np.float32), y.astype(np.float32)) for value in (s, 1 - s)]


@pytest.mark.slow
def test_proposition_1s_pair_averages_exactly_one_half():
    other = tables(clients=2, features=4)
    first, second = pair()
    found = [attack_in_memory([client, *other]).arrays["decisions"][:, :20] for client in (first, second)]
    truths = [client[0][:, -1] for client in (first, second)]
    np.testing.assert_array_equal(found[0], found[1])
    mean = np.mean([(ours == truth).mean(axis=1) for ours, truth in zip(found, truths, strict=True)], axis=0)
    assert mean.tolist() == [0.5] * len(METHODS)


def test_an_attribute_that_was_permuted_before_training_gives_no_excess():
    data = tables(clients=10, records=60, noise=0.3)
    draw = np.random.default_rng(1)
    permuted = []
    for x, y in data:
        other = x.copy()
        other[:, -1] = draw.permutation(other[:, -1])
        permuted.append((other, y))
    truth = values_of(data)
    found = accuracy(attack_in_memory(permuted), truth)
    chance = truth.mean() ** 2 + (1 - truth.mean()) ** 2
    assert np.all(found[2:] < chance + 4 * np.sqrt(0.25 / len(truth)))
    assert np.all(found[2:] < max(truth.mean(), 1 - truth.mean()) + 0.05)


def test_an_attribute_without_weight_is_drawn_with_the_right_share():
    draw = np.random.default_rng(0)
    decisions = np.stack([mark_largest(np.zeros(20), 5, draw) for _ in range(2_000)])
    assert (decisions.sum(axis=1) == 5).all()
    np.testing.assert_allclose(decisions.mean(axis=0), 0.25, atol=0.05)


def test_ties_between_losses_are_drawn_and_no_loss_is_no_answer():
    losses = np.array([[1.0, 1.0, 2.0]] * 3_000 + [[np.nan, 3.0, np.inf], [np.nan, np.nan, np.inf]])
    decisions = smallest_loss(losses, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(decisions[:3_000], minlength=3) / 3_000, [0.5, 0.5, 0.0], atol=0.04)
    assert decisions[-2:].tolist() == [1, -1]


def test_beliefs_are_bayes_rule():
    losses = np.array([[0.1, 1.5], [2.0, 0.3], [np.nan, 1.0]])
    prior = np.array([0.2, 0.8])
    beliefs, evidence = beliefs_of(losses, prior, gaussian=False)
    expected = prior * np.exp(-losses[:2])
    np.testing.assert_allclose(beliefs[:2], expected / expected.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(beliefs[2], prior)
    assert evidence == -math.inf
    assert beliefs_of(losses[:2], prior, gaussian=False)[1] == pytest.approx(np.log(expected.sum(axis=1)).mean())


def test_beliefs_from_squared_errors_find_the_noise():
    """The variance is the likeliest, and beliefs are then calibrated: as often right as they say."""
    draw = np.random.default_rng(0)
    s = draw.random(4_000) < 0.3
    y = s + 0.5 * draw.normal(size=len(s))
    losses = np.stack([y**2, (y - 1) ** 2], axis=1)
    beliefs, best = beliefs_of(losses, np.array([0.7, 0.3]), gaussian=True)
    for low in (0.1, 0.4, 0.7):
        chosen = (beliefs[:, 1] >= low) & (beliefs[:, 1] < low + 0.2)
        assert s[chosen].mean() == pytest.approx(beliefs[chosen, 1].mean(), abs=0.06)
    worse = beliefs_of(4 * losses + 1, np.array([0.7, 0.3]), gaussian=True)[1]
    assert worse < best


def test_all_clients_in_every_round_are_decoded_with_their_public_attributes():
    data = tables(clients=5, features=8, records=30, noise=0.1)
    scores = attack_in_memory(data, share=1.0)
    assert {item["how"] for item in scores.facts["clients"]} == {"messages and public attributes"}
    assert all(item["rank"] < item["unknowns"] for item in scores.facts["clients"])
    assert "5 of 5 clients (client 0" in scores.notes[0]
    assert accuracy(scores, values_of(data))[LOCAL] == 1


def test_one_message_is_decoded_with_the_public_attributes():
    data = tables(features=8, noise=0.05)
    scores = attack_in_memory(data, rounds=1, share=1.0)
    assert {item["how"] for item in scores.facts["clients"]} == {"messages and public attributes"}
    assert "messages alone do not determine the local optimum" in scores.notes[0]
    assert accuracy(scores, values_of(data))[LOCAL] == 1


def test_too_few_messages_from_clients_half_known_fall_back_and_say_so(tmp_path):
    data = tables(features=8)
    folder = write_attribute_run(tmp_path, data, rounds=5, share=1.0)
    known = read_knowledge(folder / "knowledge")
    half = {name: getattr(known.partial, name)[::2] for name in ("x", "y", "clients")}
    known = replace(known, partial=replace(known.partial, **half))
    scores = AIA.run(Record(folder / "record"), known, device="cpu")
    assert {item["how"] for item in scores.facts["clients"]} <= {"last returned", "extrapolated"}
    assert [item["share"] for item in scores.facts["clients"]] == [None] * 4
    assert "not determined" in scores.notes[0]
    assert (scores.arrays["decisions"][:3] >= 0).all()
    assert (scores.arrays["decisions"][MOMENTS] == -1).all()


def test_a_column_on_a_small_scale_that_rounding_hides_is_decoded_with_the_public_attributes():
    data = tables(noise=0.05)
    for x, _ in data:
        x[:, 1] /= 1_000
    scores = attack_in_memory(data)
    assert {item["how"] for item in scores.facts["clients"]} == {"messages and public attributes"}
    assert accuracy(scores, values_of(data))[LOCAL] == 1


@pytest.mark.slow
def test_mini_batches_and_epochs_are_undone_well_enough():
    data = tables(clients=4, features=8, records=40, noise=0.1)
    scores = attack_in_memory(data, share=1.0, training=LocalSGD(epochs=3, batch_size=8, lr=0.02))
    found = accuracy(scores, values_of(data))
    assert found[LOCAL] > 0.95
    assert found[LOCAL] > found[LAST]


@pytest.mark.parametrize("domain", [((-1.0,), (1.0,)), ((1.0, 0.0), (0.0, 1.0)), ((2.0,), (0.5,))])
@pytest.mark.slow
def test_any_encoding_of_two_values_is_decoded(domain):
    data = []
    for x, y in tables(noise=0.05):
        codes = np.array(domain, dtype=np.float32)[x[:, -1].astype(int)]
        data.append((np.c_[x[:, :-1], codes].astype(np.float32), y))
    scores = attack_in_memory(data, domain=domain, rounds=60, training=LocalSGD(epochs=1, batch_size=0, lr=0.08))
    truth = values_of(data, domain)
    assert accuracy(scores, truth)[LOCAL] == 1
    for item in scores.facts["clients"]:
        own = truth[read_rows(scores, item["client"], len(data[0][0]))]
        assert item["share"] == pytest.approx(own.mean(), abs=1e-6)


def read_rows(scores, client, each):
    start = int(client.split()[1]) * each
    return slice(start, start + each)


def test_algorithm_4_takes_the_value_with_the_smallest_loss_of_any_model(tmp_path):
    draw = np.random.default_rng(0)
    data = []
    for _ in range(3):
        s = draw.integers(3, size=20)
        x = np.c_[draw.normal(size=(20, 2)), np.eye(3)[s]].astype(np.float32)
        data.append((x, (x[:, 0] + 2 * (s == 1) - (s == 2) > 0).astype(np.int64)))
    folder = write_attribute_run(tmp_path, data, model=LOGISTIC, domain=ONE_HOT, share=1.0, rounds=4)
    scores = attack(folder)
    record = Record(folder / "record")
    states = [record.final, {item.node: item for item in record.rounds[-1].observations}]
    for client, (x, y) in enumerate(data):
        for method, state in ((GLOBAL, states[0]), (LAST, states[1][f"node{client}"].arrays)):
            model = build_model("linear", input_shape=(5,), classes=2).double()
            model.load_state_dict({name: torch.from_numpy(array).double() for name, array in state.items()})
            for row in range(len(x)):
                losses = []
                for value in ONE_HOT:
                    full = torch.tensor([[*x[row, :2], *value]], dtype=torch.float64)
                    losses.append(
                        float(torch.nn.functional.cross_entropy(model(full).detach(), torch.tensor([y[row]])))
                    )
                at = client * len(x) + row
                np.testing.assert_allclose(scores.arrays["losses"][method, at], losses, rtol=1e-4)
                assert scores.arrays["decisions"][method, at] == int(np.argmin(losses))
    np.testing.assert_allclose(scores.arrays["beliefs"].sum(axis=2), 1)
    assert (scores.arrays["decisions"][MOMENTS] == -1).all()
    assert {item["weight"] for item in scores.facts["clients"]} == {None}


def test_an_isolated_clients_network_is_followed_towards_its_optimum():
    data = tables(clients=3, records=50, features=5, noise=0.1)
    network = ModelKnowledge(spec="mlp", input_shape=(5,), classes=1, hidden=16, loss="mse")
    scores = attack_in_memory(data, model=network, isolated=(0, 1, 2), rounds=40)
    truth = values_of(data)
    own = scores.arrays["losses"][:, np.arange(len(truth)), truth].mean(axis=1)
    assert own[LOCAL] < own[LAST] < own[GLOBAL]
    assert scores.facts["server"] == "isolating"


@pytest.mark.parametrize("training", [LocalSGD(1, 0, 0.3), LocalSGD(3, 8, 0.05)], ids=["one step", "mini-batches"])
@pytest.mark.slow
def test_logistic_clients_are_followed_towards_their_optima_by_watching_alone(training):
    data = [(x, (y > 0).astype(np.int64)) for x, y in tables(records=60, noise=0.3)]
    truth, rows = values_of(data), np.arange(240)
    own = attack_in_memory(data, model=LOGISTIC, training=training).arrays["losses"][:, rows, truth].mean(axis=1)
    assert own[LOCAL] < 0.8 * own[LAST]
    assert own[LAST] < own[GLOBAL]


def test_clients_with_different_messages_and_clients_never_seen():
    data = tables(clients=4, noise=0.05)
    scores = attack_in_memory(data, absent=(2,), rounds=40)
    facts = {item["client"]: item for item in scores.facts["clients"]}
    assert facts["client 2"]["how"] == "not seen"
    assert facts["client 2"]["messages"] == 0
    assert len({item["messages"] for item in facts.values()}) > 2
    unseen = read_rows(scores, "client 2", len(data[0][0]))
    assert (scores.arrays["decisions"][LAST:, unseen] == -1).all()
    assert (scores.arrays["decisions"][GLOBAL, unseen] >= 0).all()
    np.testing.assert_array_equal(scores.arrays["beliefs"][LAST:, unseen], 0.5)
    others = np.ones(len(scores.arrays["decisions"][0]), dtype=bool)
    others[unseen] = False
    assert (scores.arrays["decisions"][LOCAL, others] == values_of(data)[others]).all()
    assert any("client 2" in note and "no usable reply" in note for note in scores.notes)


def test_a_known_prior_speaks_where_there_is_no_model():
    data = tables(clients=3)
    scores = attack_in_memory(data, absent=(1,), prior=(0.9, 0.1))
    unseen = read_rows(scores, "client 1", len(data[0][0]))
    np.testing.assert_allclose(scores.arrays["beliefs"][LOCAL, unseen], [[0.9, 0.1]] * len(data[0][0]))


def test_only_the_last_rounds_are_kept_where_memory_is_short():
    scores = attack_in_memory(tables(), attacking=type(AIA)(AIA.options.replace(memory=16 * 6 * 4 * 5)), share=1.0)
    assert {item["messages"] for item in scores.facts["clients"]} == {5}
    assert any("only the last 5 rounds" in note for note in scores.notes)


def test_replies_that_cannot_be_used_are_named(tmp_path):
    data = tables(clients=2)
    good = {"fc1.weight": np.zeros((1, 5), np.float32), "fc1.bias": np.zeros(1, np.float32)}
    broken = {name: np.full_like(array, np.nan) for name, array in good.items()}
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, good, [Reply("client 0", "ok", good, 40), Reply("client 1", "ok", broken, 40)]))
    writer.close(final=good)
    known = Knowledge(model=linear(5), training=LocalSGD(1, 0, 0.1), partial=partial_of(data, ((0.0,), (1.0,))))
    scores = AIA.run(Record(tmp_path / "record"), known, device="cpu")
    assert scores.notes[0] == "round 1, client client 1 left out: its model is not finite"
    assert (scores.arrays["decisions"][LAST:, 40:] == -1).all()
    strangers = Knowledge(**{**vars(known), "nodes": {"client 0": "somebody", "client 1": "else"}})
    with pytest.raises(NeedsError, match="knowledge/nodes names the clients"):
        AIA.run(Record(tmp_path / "record"), strangers, device="cpu")


def test_a_domain_too_large_to_enumerate_is_refused(tmp_path):
    domain = tuple((float(value),) for value in range(1_001))
    folder = write_attribute_run(tmp_path, tables(clients=2), domain=domain, rounds=1)
    with pytest.raises(DataError, match="has 1001 values, and at most 1000 can be tried"):
        attack(folder)
