from dataclasses import replace

import numpy as np
import pytest
import torch

from fedattack.attacks import ATTACKS, Targets, read_knowledge
from fedattack.base.errors import ConfigError, NeedsError
from fedattack.learning import LocalSGD, build_model
from fedattack.learning.soft_losses import soft_targets
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.threats.inversion.gradient_inversion import ONE_GRADIENT, ClientModel
from fedattack.threats.inversion.inversion import _read_labels, take_middle, take_one_gradient
from tests.worlds.inversion import MODEL, digits, table, write_inversion_run

ATTACK = ATTACKS["inversion"]
QUICK = {"iterations": "5"}
NORMED = replace(MODEL, spec="tests.worlds.inversion:normed")


def run(folder, **options):
    attack = ATTACK.with_options(QUICK | options)
    return attack.run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_inversion_run(tmp_path_factory.mktemp("run"), clients=3, each=2, rounds=3)


def asked(scores):
    return [(item["client"], item["round"], item["records"]) for item in scores.facts["batches"]]


def test_rounds_clients_and_the_number_of_records_are_chosen(folder):
    assert asked(run(folder)) == [("node0", 1, 2), ("node1", 1, 2), ("node2", 1, 2)]
    chosen = run(folder, updates="2,3", clients="node2, node0", records="1")
    assert asked(chosen) == [("node0", 2, 1), ("node0", 3, 1), ("node2", 2, 1), ("node2", 3, 1)]
    assert chosen.arrays["images"].shape == (4, 1, 8, 8)
    assert chosen.arrays["batches"].tolist() == [0, 1, 2, 3]
    assert run(folder, restarts="3").arrays["objectives"].shape == (3, 3)


def test_clients_have_the_names_that_the_server_knows(folder):
    known = replace(read_knowledge(folder / "knowledge"), nodes={"node1": "hospital"})
    scores = ATTACK.with_options(QUICK | {"clients": "hospital"}).run(Record(folder / "record"), known, device="cpu")
    assert [(item["client"], item["node"]) for item in scores.facts["batches"]] == [("hospital", "node1")]


def test_the_box_comes_from_the_option_the_knowledge_or_auxiliary_images_and_never_for_tables(folder):
    x, y = digits()
    known = read_knowledge(folder / "knowledge")
    assert known.limits is None
    stated = replace(known, limits=((-1.0, 2.0),), auxiliary=Targets(x[:50], y[:50]))
    cases = [
        (known, {}, None),
        (known, {"box": "-0.5,0.25"}, [[-0.5], [0.25]]),
        (stated, {}, [[-1.0], [2.0]]),
        (stated, {"box": "none"}, None),
        (replace(stated, limits=None), {}, [[x[:50].min()], [x[:50].max()]]),
    ]
    for knowledge, options, box in cases:
        scores = ATTACK.with_options(QUICK | options).run(Record(folder / "record"), knowledge, device="cpu")
        assert scores.facts["box"] == box
        if box is not None:
            images = scores.arrays["images"]
            assert images.min() >= box[0][0] - 1e-6
            assert images.max() <= box[1][0] + 1e-6
    rows = Targets(x[:50].reshape(50, -1), y[:50])
    assert ATTACK.box_of(replace(stated, auxiliary=rows), (64,)) is None
    low, high = ATTACK.with_options({"box": "0,1"}).box_of(stated, (64,))
    assert (low.tolist(), high.tolist()) == ([0.0], [1.0])


@pytest.mark.parametrize("each", [1, 2])
def test_gradients_give_the_labels_away(tmp_path, each):
    write_inversion_run(tmp_path, clients=5, each=each)
    _, y = digits()
    own = y[np.random.default_rng(0).permutation(len(y))[: 5 * each]].reshape(5, each)
    found = run(tmp_path).arrays["labels"].reshape(5, each)
    np.testing.assert_array_equal(found, np.sort(own, axis=1))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_several_steps_give_the_labels_away_as_one_gradient_does(tmp_path, momentum):
    training = LocalSGD(epochs=3, batch_size=0, lr=0.02, momentum=momentum)
    write_inversion_run(tmp_path, clients=5, each=4, protocol="fedavg", training=training)
    _, y = digits()
    own = y[np.random.default_rng(0).permutation(len(y))[:20]].reshape(5, 4)
    found = run(tmp_path).arrays["labels"].reshape(5, 4)
    np.testing.assert_array_equal(found, np.sort(own, axis=1))


@pytest.mark.parametrize("training", [ONE_GRADIENT, LocalSGD(epochs=3, batch_size=0, lr=0.02)])
def test_what_models_make_of_a_typical_row_tells_how_often_each_label_is_there(training):
    x, y = table()
    client = ClientModel(build_model("mlp", input_shape=(13,), classes=2, hidden=32, seed=0), "cross-entropy", training)
    with torch.no_grad():
        # Classes that are not predicted alike, which the rule without a typical row takes them to be.
        client.model.fc2.bias += torch.tensor([0.8, -0.8])
    received = {name: value.numpy() for name, value in client.model.state_dict().items()}
    typical = x.mean(axis=0, keepdims=True)
    right = {"typical": 0, "none": 0}
    for draw in range(20):
        rows = np.random.default_rng(draw).permutation(len(y))[:12]
        targets = soft_targets("cross-entropy", y[rows], 2)
        moved = client.movement(*client.split(received), torch.from_numpy(x[rows]), targets)
        movement = {name: value.detach().numpy() for name, value in moved.items()}
        sent = {name: received[name] - np.float32(training.lr) * movement[name] for name in received}
        states = [received] if training is ONE_GRADIENT else [received, sent]
        for name, known in (("typical", typical), ("none", None)):
            found = _read_labels(client.model, movement, 12, training, states, known)
            right[name] += np.array_equal(found, np.sort(y[rows]))
            client.model.load_state_dict({key: torch.from_numpy(array) for key, array in received.items()})
    assert right["typical"] >= 12
    assert right["none"] <= 5


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.slow
def test_fedavg_is_inverted_as_fedsgd(tmp_path, steps):
    training = LocalSGD(epochs=steps, batch_size=0, lr=0.1)
    write_inversion_run(tmp_path, clients=2, protocol="fedavg", training=training)
    x, _ = digits()
    rows = np.random.default_rng(0).permutation(len(x))[:2]
    images = run(tmp_path, iterations="300", variation="0").arrays["images"]
    assert np.abs(images - x[rows]).mean() < 0.1


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_gradient_at_the_middle_of_a_path_is_nearest_to_the_mean_along_it(momentum):
    """Held against a slow walk along the path, whose mean gradient the movement is."""
    x, y = (torch.from_numpy(part[:12]) for part in digits())
    training = LocalSGD(epochs=8, batch_size=0, lr=0.005, momentum=momentum)
    client = ClientModel(build_model("mlp", input_shape=(1, 8, 8), classes=10, hidden=32, seed=0), "mse", training)
    client.model.double()
    targets = torch.eye(10, dtype=torch.float64)[y]
    state = {name: value.detach() for name, value in client.model.state_dict().items()}
    moved = client.follow(state, {}, x.double(), targets)[0]
    movement = {name: value.numpy() for name, value in moved.items()}
    received = {name: value.numpy() for name, value in state.items()}
    sent = {name: received[name] - training.lr * movement[name] for name in received}
    middle, mean = take_middle(received, sent, movement, training.reach(12))
    one = ClientModel(client.model, "mse", take_one_gradient(training))
    one.model.double()

    def miss(at):
        gradient = one.movement({name: torch.from_numpy(at[name]) for name in at}, {}, x.double(), targets)
        apart = [np.linalg.norm(gradient[name].detach().numpy() - mean[name]) for name in mean]
        return np.linalg.norm(apart) / np.linalg.norm([np.linalg.norm(value) for value in mean.values()])

    assert miss(middle) < 0.05
    assert miss(middle) < 0.6 * min(miss(received), miss(sent))


@pytest.mark.parametrize("silent", [False, True])
def test_clients_of_many_steps_are_searched_by_one_gradient(tmp_path, silent):
    training = LocalSGD(epochs=1_200, batch_size=0, lr=0.00002)
    write_inversion_run(tmp_path, clients=2, protocol="fedavg", training=training, silent=silent)
    with pytest.raises(NeedsError, match="at most 1,000 are imitated"):
        run(tmp_path)
    scores = run(tmp_path, imitate="middle", iterations="300", variation="0")
    assert scores.facts["imitate"] == "middle"
    x, _ = digits()
    rows = np.random.default_rng(0).permutation(len(x))[:2]
    assert (np.abs(scores.arrays["images"] - x[rows]).mean() < 0.1) == (not silent)


def test_a_client_of_fedsgd_sends_its_gradient_as_it_is(folder):
    found = run(folder, imitate="middle")
    assert found.facts["imitate"] == "steps"
    np.testing.assert_array_equal(found.arrays["images"], run(folder).arrays["images"])


def test_clients_of_other_updates_are_not_found(tmp_path):
    """A null: updates of other records do not lead to the clients' own."""
    write_inversion_run(tmp_path, clients=2, silent=True)
    x, _ = digits()
    rows = np.random.default_rng(0).permutation(len(x))[:2]
    assert np.abs(run(tmp_path, iterations="60").arrays["images"] - x[rows]).mean() > 0.3


def test_replies_that_say_nothing_are_left_out_with_a_note(tmp_path):
    write_inversion_run(tmp_path / "whole", clients=3, rounds=1)
    (item,) = Record(tmp_path / "whole" / "record")
    writer = RecordWriter(tmp_path / "record", protocol="fedsgd")
    replies = [Reply(seen.node, "ok", dict(seen.arrays), 1) for seen in item.observations]
    replies[0] = replace(replies[0], arrays={name: 0 * array for name, array in replies[0].arrays.items()})
    replies[1] = replace(replies[1], arrays={name: np.nan * array for name, array in replies[1].arrays.items()})
    writer.write(Exchange(1, dict(item.common), replies))
    writer.close()
    known = read_knowledge(tmp_path / "whole" / "knowledge")
    scores = ATTACK.with_options(QUICK).run(Record(tmp_path / "record"), known, device="cpu")
    assert asked(scores) == [("node2", 1, 1)]
    assert scores.notes == tuple(
        f"round 1, client node{n} left out: what it sent is zero or not finite" for n in (0, 1)
    )


def test_what_cannot_be_attacked_is_refused(folder, tmp_path):
    with pytest.raises(NeedsError, match=r"holds none that can be used for updates=pre1 and clients=nobody"):
        run(folder, clients="nobody")
    write_inversion_run(tmp_path, protocol="fedavg")
    known = read_knowledge(tmp_path / "knowledge")
    still = replace(known, training=replace(known.training, lr=0.0))
    with pytest.raises(NeedsError, match="lr = 0"):
        ATTACK.run(Record(tmp_path / "record"), still)
    regression = replace(known, model=replace(MODEL, loss="mse"))
    with pytest.raises(NeedsError, match="label=rule is about cross-entropy"):
        ATTACK.with_options({"label": "rule"}).run(Record(tmp_path / "record"), regression)
    own = "torch.nn.functional:cross_entropy"
    trusted = replace(read_knowledge(tmp_path / "knowledge", trusted={own}), model=replace(MODEL, loss=own))
    with pytest.raises(NeedsError, match="labels can be searched for under cross-entropy and mse"):
        ATTACK.run(Record(tmp_path / "record"), trusted)


def test_an_unknown_order_of_mini_batches_is_told(tmp_path):
    training = LocalSGD(epochs=1, batch_size=1, lr=0.1)
    write_inversion_run(tmp_path, clients=2, each=2, protocol="fedavg", training=training)
    fixed, searched = (run(tmp_path, order=order) for order in ("fixed", "searched"))
    assert fixed.notes[0].endswith(
        "in an order that the server does not know; the attack assumes one order for all epochs"
    )
    assert searched.notes[0].endswith("the attack searches for it with the examples")
    assert (fixed.facts["order"], searched.facts["order"]) == ("fixed", "searched")
    assert (fixed.arrays["objectives"] != searched.arrays["objectives"]).all()


def test_behind_batch_normalisation_no_order_is_searched_for(tmp_path):
    """An example would change the statistics of all mini-batches that it is in by a part."""
    training = LocalSGD(epochs=2, batch_size=2, lr=0.1)
    write_inversion_run(tmp_path, clients=2, each=4, rounds=1, protocol="fedavg", training=training, model=NORMED)
    known = replace(read_knowledge(tmp_path / "knowledge"), model=NORMED)
    fixed, searched = (
        ATTACK.with_options(QUICK | {"order": order}).run(Record(tmp_path / "record"), known, device="cpu")
        for order in ("fixed", "searched")
    )
    assert searched.notes == fixed.notes
    np.testing.assert_array_equal(searched.arrays["images"], fixed.arrays["images"])


def test_buffers_tell_the_statistics_of_batches_and_the_scores_say_of_how_many_layers(tmp_path):
    write_inversion_run(tmp_path, clients=2, each=4, rounds=1, protocol="fedavg", model=NORMED)
    known, record = replace(read_knowledge(tmp_path / "knowledge"), model=NORMED), Record(tmp_path / "record")

    def scores(known, **options):
        return ATTACK.with_options(QUICK | options).run(record, known, device="cpu")

    told, again, off = scores(known), scores(known), scores(known, statistics="0")
    assert [item["statistics"] for item in told.facts["batches"]] == [2, 2]
    assert (told.facts["statistics"], off.facts["statistics"], told.notes) == (1, 0, ())
    for name, array in told.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])
    assert (told.arrays["objectives"] != off.arrays["objectives"]).all()

    # A server that takes clients to make another number of steps finds that their counters say otherwise.
    wrong = scores(replace(known, training=LocalSGD(epochs=2, batch_size=0, lr=0.1)))
    assert [item["statistics"] for item in wrong.facts["batches"]] == [0, 0]
    assert "round 1, client node0: the buffers of 2 of 2 layers of batch normalisation do not reveal" in wrong.notes[0]


def test_without_batch_normalisation_the_weight_of_its_statistics_changes_nothing(folder):
    for name, array in run(folder, statistics="0").arrays.items():
        np.testing.assert_array_equal(run(folder).arrays[name], array)
    assert run(folder).notes == ()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"method": "adam"}, "option method=adam: expected one of cos, l2"),
        ({"label": "known"}, "option label=known: expected one of rule, free"),
        ({"order": "any"}, "option order=any: expected one of fixed, searched"),
        ({"restarts": "0"}, "option restarts=0: expected a whole number, 1 or more"),
        ({"records": "two"}, "option records=two: expected a whole number"),
        ({"variation": "-1"}, "option variation=-1: expected a number, 0 or more"),
        ({"statistics": "-1"}, "option statistics=-1: expected a number, 0 or more"),
        ({"variation": "much"}, "option variation=much: expected a number"),
        ({"box": "1,0"}, "option box=1,0: expected known, none, or two numbers, the lower one first"),
        ({"box": "0,nan"}, "option box=0,nan: expected known"),
        ({"box": "white"}, "option box=white: expected known"),
        ({"updates": "first"}, "option updates=first: expected one of"),
        ({"speed": "2"}, "attack inversion has no option 'speed'"),
    ],
)
def test_bad_options_are_refused(option, words):
    with pytest.raises(ConfigError, match=words):
        ATTACK.with_options(option)
