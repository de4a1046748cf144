"""Other people's projects, each witnessed in all rounds: examples, labels, model and training are those of its code."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.apps.projects import BATCH_NORM, CLIENTS, LEGACY, LIGHTNING, MESSAGE_API, NUMPY, OPACUS, SECAGG, SKLEARN
from tests.witness.apps import hashes_of, load, run, seen, witnessed


def check_trained(witness, x, y) -> None:
    """Every training example and no other is there, with its label."""
    x, y = np.asarray(x), np.asarray(y)
    assert seen(witness.trained) == hashes_of(x)
    assert witness.trained.total == len(hashes_of(x))
    label_of = {row.tobytes(): label for row, label in zip(x, y, strict=True)}
    assert [label_of[row.tobytes()] for row in witness.trained.x] == witness.trained.y.tolist()
    assert witness.trained.counts == {label: count for label, count in enumerate(np.bincount(y)) if count}
    keys = [bytes(row) for row in witness.trained.hashes]
    assert keys == sorted(keys)


ALL = (MESSAGE_API, LEGACY, BATCH_NORM, SKLEARN, NUMPY, OPACUS, LIGHTNING)


@pytest.mark.parametrize("project", ALL, ids=lambda one: one.folder)
@pytest.mark.slow
def test_replies_and_random_states_are_the_same_bit_for_bit(project, tmp_path):
    if project is LIGHTNING:
        pytest.importorskip("lightning", reason="Lightning is not installed")
    plain, watched = run(project), witnessed(project, tmp_path)[0]
    if project is LEGACY:
        # Its server adds up replies in the order in which they come, so that its second model is never the same.
        plain, watched = ({key: calls[key] for key in calls if key[1] < 1} for calls in (plain, watched))
    assert len(plain) >= CLIENTS
    assert plain == watched


@pytest.mark.slow
def test_a_message_api_project_in_pytorch(tmp_path):
    _, witnesses = witnessed(MESSAGE_API, tmp_path)
    task = load(MESSAGE_API, "task")
    assert len(witnesses) == CLIENTS
    evaluated = 0
    for client, witness in witnesses.items():
        train, test = task.load_data(int(client), CLIENTS)
        check_trained(witness, *train)
        # Half of the clients evaluate in each round.
        assert seen(witness.evaluated) in (set(), hashes_of(test[0]))
        evaluated += len(witness.evaluated)
        model, training = witness.model, witness.training
        assert (model.spec, model.arguments, model.loss, model.why) == (
            "pytorchexample.task:Net",
            {},
            "cross-entropy",
            "",
        )
        assert (model.input_shape, model.classes) == ((1, 8, 8), 10)
        assert (training.optimizer, training.lr, training.momentum, training.weight_decay) == ("SGD", 0.1, 0.9, 0.0)
        count = len(train[0])
        assert training.steps == 10 * -(-count // 16)
        assert training.epochs == 10
        assert set(training.batch_sizes) == {16, count % 16} - {0}
        assert training.augmented is False
        assert not witness.notes
    assert evaluated


@pytest.mark.slow
def test_a_legacy_project(tmp_path):
    _, witnesses = witnessed(LEGACY, tmp_path)
    task = load(LEGACY, "task")
    for client, witness in witnesses.items():
        train, test = task.load_data(int(client))
        check_trained(witness, *train)
        assert seen(witness.evaluated) == hashes_of(test[0])
        assert (witness.model.spec, witness.model.loss) == ("digitsfl.task:Net", "cross-entropy")
        assert (witness.training.steps, witness.training.lr) == (10 * len(train[1]) // 10, 0.2)
        assert not witness.notes


@pytest.mark.slow
def test_a_model_that_a_function_makes(tmp_path):
    _, witnesses = witnessed(BATCH_NORM, tmp_path)
    task = load(BATCH_NORM, "task")
    for client, witness in witnesses.items():
        check_trained(witness, *task.load_data(int(client), CLIENTS)[0])
        assert (witness.model.spec, witness.model.arguments) == ("hospitals.task:make_model", {})
        assert witness.training.epochs == 8
        assert not [note for note in witness.notes if "state" in note]
        assert not len(witness.evaluated)


@pytest.mark.slow
def test_a_project_in_lightning(tmp_path):
    pytest.importorskip("lightning", reason="Lightning is not installed")
    _, witnesses = witnessed(LIGHTNING, tmp_path)
    task = load(LIGHTNING, "task")
    for client, witness in witnesses.items():
        train, other = task.load_data(int(client), CLIENTS)
        check_trained(witness, *train)
        assert seen(witness.evaluated) == hashes_of(other[0])
        model, training = witness.model, witness.training
        assert (model.spec, model.arguments) == ("lightningexample.task:LitDigits", {"hidden": 24})
        assert (model.loss, model.classes) == ("cross-entropy", 10)
        assert (training.optimizer, training.lr, training.epochs) == ("SGD", 0.1, 10)
        assert training.steps == len(train[1])
        assert not witness.notes


@pytest.mark.slow
def test_a_project_with_opacus(tmp_path):
    _, witnesses = witnessed(OPACUS, tmp_path)
    task = load(OPACUS, "task")
    for client, witness in witnesses.items():
        train, other = task.load_data(int(client), CLIENTS)
        check_trained(witness, *train)
        assert seen(witness.evaluated) == hashes_of(other[0])
        assert (witness.model.spec, witness.model.loss) == ("privateexample.task:Net", "cross-entropy")
        assert (witness.training.optimizer, witness.training.lr) == ("private SGD", 0.5)
        steps = len(train[1]) // 10
        assert dict(witness.private) == {
            "mechanism": "dp-sgd",
            "unit": "example",
            "noise_multiplier": 0.8,
            "clip": 1.0,
            "sampling": 1 / steps,
            "sampling_method": "poisson",
            "steps": 4 * steps,
            "learning_rate": 0.5,
            "batch_size": 10,
            "remarks": "the client seeds its noise with a number below 2^32: whoever tries them all finds the noise",
        }


@pytest.mark.slow
def test_a_scikit_learn_project(tmp_path):
    _, witnesses = witnessed(SKLEARN, tmp_path)
    task = load(SKLEARN, "task")
    for client, witness in witnesses.items():
        check_trained(witness, *task.load_data(int(client), CLIENTS)[0])
        # It measures its accuracy on what it trains on.
        assert witness.evaluated.total == 0
        model = witness.model
        assert (model.spec, model.arguments) == ("torch.nn:Linear", {"in_features": 64, "out_features": 10})
        assert (model.loss, model.input_shape, model.classes) == ("cross-entropy", (64,), 10)
        assert witness.training is None


def test_a_project_in_numpy_that_states_its_examples(tmp_path, monkeypatch):
    from fedattack.witness import evaluated_on, trained_on

    client = load(NUMPY, "client_app")
    task = load(NUMPY, "task")
    other = load_digits().data[:30]

    def train(model, data, config):
        x, y = data
        trained_on(x, y)
        evaluated_on(np.concatenate([x, other.astype(x.dtype)]))
        return task.train(model, data, config)

    monkeypatch.setattr(client, "train_fn", train)
    _, witnesses = witnessed(NUMPY, tmp_path)
    for index, witness in witnesses.items():
        check_trained(witness, *task.load_data(int(index))[0])
        assert seen(witness.evaluated) == hashes_of(other.astype(np.float32))
        assert set(witness.evaluated.y) == {-1}
        assert witness.model is None
    trained_on(other, None)  # nobody watches


@pytest.mark.slow
def test_under_secure_aggregation_what_the_client_trains_on_is_seen_all_the_same(tmp_path):
    _, witnesses = witnessed(SECAGG, tmp_path)
    task = load(SECAGG, "task")
    trained = [(task.load_data(int(client))[0], one) for client, one in witnesses.items() if len(one.trained)]
    assert len(trained) >= 3
    for data, witness in trained:
        check_trained(witness, *data)
        assert witness.model.spec == "secaggexample.task:Net"
        assert witness.mods == ("secaggplus_mod",)
        assert not witness.notes
