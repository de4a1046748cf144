from dataclasses import replace

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, KnownDefence, read_knowledge
from fedattack.audit.truth import read_truth
from fedattack.base.errors import ConfigError, ModelError, NeedsError
from fedattack.defences import SETTINGS
from fedattack.learning.pooled_updates import Fit, Pooling
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.threats.group.private_attribute import ADVERSARIES
from tests.defences.updates import VALUES, planted_updates
from tests.worlds.private import write_private_run

ATTACK = ATTACKS["private-attribute"].with_options({"clients": "200", "epochs": "40", "adversaries": "stru-nn,svm"})
HELD = np.random.default_rng(0).permutation(np.arange(9) % 3)

FIT = Fit(epochs=4)


def trained(name, updates, labels, seed=0):
    """Train an adversary; returns what gives its beliefs about other updates."""
    pooling = Pooling.of(updates[0], features=20)
    classifier = ADVERSARIES[name](pooling.pool(updates), labels, VALUES, seed, FIT)
    return lambda asked: classifier(pooling.pool(asked))


def success(adversary, updates, labels):
    return (adversary(updates).argmax(axis=1) == labels).mean()


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.slow
def test_a_planted_attribute_is_found_and_a_shuffled_one_is_not(name):
    known, labels = planted_updates(300, seed=0)
    asked, truth = planted_updates(300, seed=1)
    assert success(trained(name, known, labels), asked, truth) > 0.7
    rng = np.random.default_rng(2)
    # One shuffle is right or wrong about many at once, so that several are needed.
    found = [success(trained(name, known, rng.permutation(labels)), asked, truth) for _ in range(8)]
    assert np.mean(found) == pytest.approx(1 / VALUES, abs=0.07)


@pytest.mark.parametrize("name", ADVERSARIES)
def test_beliefs_are_shares_and_come_from_the_seed(name):
    known, labels = planted_updates(90, seed=0)
    asked, _ = planted_updates(40, seed=1)
    first, again = (trained(name, known, labels)(asked) for _ in range(2))
    assert first.shape == (40, VALUES)
    np.testing.assert_allclose(first.sum(axis=1), 1)
    assert first.min() >= 0
    np.testing.assert_array_equal(first, again)
    if name != "svm":  # which draws nothing
        assert (trained(name, known, labels, seed=1)(asked) != first).any()


@pytest.mark.parametrize("name", ["svm", "random-forest"])
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_value_that_nobody_in_training_has_is_believed_of_nobody(name, missing):
    known, labels = planted_updates(90, seed=0)
    rows = np.flatnonzero(labels != missing)
    asked, truth = planted_updates(100, seed=1)
    found = trained(name, [known[row] for row in rows], labels[rows])(asked)
    assert (found[:, missing] == 0).all()
    assert (found.argmax(axis=1) == truth)[truth != missing].mean() > 0.7


def test_an_adaptive_adversary_undoes_a_defence_that_a_static_one_does_not():
    """Here the defence turns updates around: whoever trains on such updates does not mind."""
    known, labels = planted_updates(300, seed=0)
    asked, truth = planted_updates(200, seed=1)
    turned, asked = ([{name: -array for name, array in update.items()} for update in many] for many in (known, asked))
    assert success(trained("random-forest", turned, labels), asked, truth) > 0.6
    assert success(trained("random-forest", known, labels), asked, truth) < 0.45


@pytest.mark.parametrize("memory", [1, 4_000])
@pytest.mark.slow
def test_with_little_memory_the_same_is_found(tmp_path, memory):
    """Updates of shadow clients are then made again for adaptive adversaries, and few clients are trained together."""
    folder = write_private_run(tmp_path)
    record = Record(folder / "record")
    noisy = KnownDefence("fedattack", {**SETTINGS, "defence": "dp-gaussian", "defence-strength": 0.01})
    known = replace(read_knowledge(folder / "knowledge"), defence=noisy)
    having_little = type(ATTACK)(ATTACK.options.replace(memory=memory))
    usual, little = (chosen.run(record, known, seed=1, device="cpu") for chosen in (ATTACK, having_little))
    assert little.facts == usual.facts
    np.testing.assert_allclose(little.arrays["beliefs-level"], usual.arrays["beliefs-level"], atol=1e-4)


def shifted(settings):
    """A defence for the tests, after a check of what it is given: the inputs that show the value change places."""

    def defend(update, *, rng, model, x, y):
        assert x.shape == (4, 6)
        assert y.shape == (4,)
        assert {name for name, _ in model.named_parameters()} == {*update}
        weights = update["fc1.weight"]
        moved = np.roll(weights[:, 3:], settings["places"], axis=1)
        return {**update, "fc1.weight": np.concatenate([weights[:, :3], moved], axis=1)}

    return defend


def attacked(folder, attack=ATTACK):
    trusted = {f"{__name__}:{name}" for name in ("shifted", "mistaken")}
    return attack.run(Record(folder / "record"), read_knowledge(folder / "knowledge", trusted=trusted), device="cpu")


def right_without_signal(tmp_path):
    """Say of many clients in runs without a signal whether their values are named."""
    right = []
    for seed in range(4):
        folder = write_private_run(tmp_path / f"silent-{seed}", clients=90, rounds=1, signal=0.0, seed=seed)
        silent = attacked(folder)
        values = read_truth(folder / "truth").private["level"].values
        held = [values[int(node.removeprefix("node"))] for node in silent.facts["nodes"]]
        right.append(silent.arrays["beliefs-level"].argmax(axis=-1)[:, 0] == held)
    return right


@pytest.mark.slow
def test_the_attribute_of_every_client_is_named_in_every_round_and_without_a_signal_of_none(tmp_path):
    found = attacked(write_private_run(tmp_path / "signal"))
    assert found.facts["adversaries"] == ["stru-nn", "svm"]
    assert found.facts["rounds"] == [1, 2, 3]
    assert found.facts["nodes"] == [f"node{client}" for client in range(9)]
    beliefs = found.arrays["beliefs-level"]
    assert beliefs.shape == (2, 3, 9, 3)
    assert np.isnan(beliefs[:, 1, 0]).all(), "it was not sampled"
    seen = ~np.isnan(beliefs[..., 0])
    assert seen.sum() == 2 * (3 * 9 - 1)
    np.testing.assert_allclose(beliefs[seen].sum(axis=-1), 1)
    assert (beliefs.argmax(axis=-1) == HELD)[seen].mean() > 0.9
    assert np.mean(right_without_signal(tmp_path)) == pytest.approx(1 / 3, abs=0.08)


@pytest.mark.slow
def test_adaptive_adversaries_train_on_what_the_known_defence_makes_of_updates(tmp_path):
    """One that clients do not have makes them take each value for the next; one that does nothing changes little."""

    def told(places):
        defence = KnownDefence(f"{__name__}:shifted", {"places": places})
        return attacked(write_private_run(tmp_path / str(places), defence=defence))

    same, other = told(0), told(1)
    assert same.facts["adversaries"] == ["stru-nn", "svm", "stru-nn-adaptive", "svm-adaptive"]
    for found, low, high in ((same, 0.9, 1.0), (other, 0.0, 0.2)):
        beliefs = found.arrays["beliefs-level"]
        seen = ~np.isnan(beliefs[0, ..., 0])
        right = [(line.argmax(axis=-1) == HELD)[seen].mean() for line in beliefs]
        assert min(right[:2]) > 0.9
        assert low <= max(right[2:]) <= high


WRONG = {
    "dropped": lambda update: {"fc1.weight": update["fc1.weight"]},
    "added": lambda update: {**update, "more": np.zeros(3, np.float32)},
    "transposed": lambda update: {**update, "fc1.weight": update["fc1.weight"].T},
    "shortened": lambda update: {**update, "fc1.bias": update["fc1.bias"][:2]},
}


def mistaken(settings):
    """A defence for the tests, which returns other arrays than it was given."""
    return lambda update, *, rng, model, x, y: WRONG[settings["how"]](update)


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.slow
def test_a_defence_that_returns_other_arrays_is_refused(tmp_path, how):
    defence = KnownDefence(f"{__name__}:mistaken", {"how": how})
    folder = write_private_run(tmp_path / "run", defence=defence)
    with pytest.raises(ModelError, match="its parameters are not those that were pooled"):
        attacked(folder)


def test_rounds_adversaries_and_numbers_are_chosen_and_checked(tmp_path):
    folder = write_private_run(tmp_path)
    assert attacked(folder, ATTACK.with_options({"updates": "2,3"})).facts["rounds"] == [2, 3]
    for choice, message in (
        ({"clients": "none"}, "option clients=none: expected a whole number"),
        ({"adversaries": "knn"}, "option adversaries=knn: expected some of stru-nn"),
        ({"updates": "first"}, "option updates=first: expected one of pre1"),
    ):
        with pytest.raises(ConfigError, match=message):
            ATTACK.with_options(choice)
    with pytest.raises(NeedsError, match="holds none in updates=9"):
        attacked(folder, ATTACK.with_options({"updates": "9"}))


def test_a_server_that_sends_every_client_its_own_model_is_refused(tmp_path):
    known = read_knowledge(write_private_run(tmp_path) / "knowledge")
    arrays = {"fc1.weight": np.zeros((3, 6), np.float32), "fc1.bias": np.zeros(3, np.float32)}
    writer = RecordWriter(tmp_path / "other", server="isolating")
    writer.write(Exchange(1, arrays, [Reply("a", "ok", arrays, 4)]))
    writer.close(final=arrays)
    with pytest.raises(NeedsError, match="is isolating"):
        ATTACK.run(Record(tmp_path / "other"), known)
