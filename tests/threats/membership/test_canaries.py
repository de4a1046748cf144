"""CanaryWeights: neurons that a single example moves, of clients alone and out of the sums of the real SecAgg+."""

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.attacks.departures import make_canaries
from fedattack.attacks.knowledge import ModelKnowledge
from fedattack.audit.judging import judge_attacks
from fedattack.audit.opened import open_runs
from fedattack.audit.truth import read_truth
from fedattack.base.errors import NeedsError
from fedattack.learning.departures import CanaryWeights, FirstLayers
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.folder import RunFolder
from tests.threats.membership.contract import SMALL
from tests.worlds.reference import run_preset

CANARY = ATTACKS["membership-canary"]
INPUTS = 40
LAYERS = FirstLayers("fc1.weight", "fc1.bias", "fc2.weight")


def alive(sent, x) -> np.ndarray:
    """Which neurons (n, neurons) examples move."""
    return x @ sent["fc1.weight"].T + sent["fc1.bias"] > 0


def weights(neurons: int, inputs: int = INPUTS) -> dict[str, np.ndarray]:
    shapes = {"fc1.weight": (neurons, inputs), "fc1.bias": (neurons,), "fc2.weight": (3, neurons), "fc2.bias": (3,)}
    return {name: np.ones(shape, dtype=np.float32) for name, shape in shapes.items()}


def examples(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, INPUTS)).astype(np.float32)


def test_each_neuron_is_alive_for_its_target_alone():
    targets, own = examples(20, 0), examples(40, 1)
    makes = CanaryWeights(LAYERS, targets, own, seed=0)
    first, second, third = (makes(weights(8), number) for number in (1, 2, 3))
    for sent, places in ((first, range(8)), (second, range(8, 16)), (third, [16, 17, 18, 19, 0, 1, 2, 3])):
        expected = np.zeros((20, 8), dtype=bool)
        expected[list(places), range(8)] = True
        np.testing.assert_array_equal(alive(sent, targets), expected)
        # An example of the server's own moves nothing, and hardly any that nobody has seen.
        assert not alive(sent, own).any()
        assert alive(sent, examples(1000, 2)).mean() < 0.05
    # All neurons that there are go to targets; where these are fewer, the rest is dead.
    assert not makes(weights(30), 1)["fc1.weight"][20:].any()


def test_a_target_that_is_there_twice_has_neurons_all_the_same():
    targets = np.repeat(examples(4, 0), 2, axis=0)
    sent = CanaryWeights(LAYERS, targets, examples(40, 1), seed=0)(weights(8), 1)
    np.testing.assert_array_equal(alive(sent, targets), np.kron(np.eye(4), np.ones((2, 2))) > 0)


def test_behind_sums_one_client_after_the_other_has_all_neurons():
    makes = CanaryWeights(LAYERS, examples(20, 0), examples(40, 1), seed=0)
    for number, place in ((1, 0), (2, 1), (3, 2), (4, 0)):
        lives = [makes(weights(8), number, part, 3)["fc1.weight"].any() for part in range(3)]
        assert lives == [part == place for part in range(3)]
    # After all clients the next targets are asked about.
    np.testing.assert_array_equal(
        alive(makes(weights(8), 4, 0, 3), examples(20, 0)).any(axis=1).nonzero()[0], range(8, 16)
    )


def test_without_targets_there_is_nothing_to_plant():
    known = ModelKnowledge("mlp", (INPUTS,), 3)
    with pytest.raises(NeedsError, match="needs target records"):
        make_canaries(known, examples(0, 0), examples(5, 0), 0)


@pytest.mark.parametrize("changes", [("framework=fedsgd",), ("framework=fedavg", "secagg=true", "rounds=3")])
@pytest.mark.slow
def test_members_are_found_and_nobody_else(tmp_path, changes):
    record = run_preset("canary", [*SMALL, *changes], 0, tmp_path)
    known = read_knowledge(tmp_path / "knowledge")
    scores = CANARY.run(record, known, device="cpu")
    scores.save(tmp_path / "scores" / "membership-canary.npz")
    truth = read_truth(tmp_path / "truth")
    clients = [truth.nodes[node] for node in scores.facts["clients"]]
    held = np.array(truth.owners)[:, None] == np.array(clients)
    values = scores.arrays["score/canary"]
    asked = ~np.isnan(values)
    assert asked.mean() > 0.9
    # A neuron whose target is not there is moved by nothing; behind sums what moves it is rounding.
    assert (values[asked & held] > 1e-3).mean() > 0.97
    assert (values[asked & ~held] < 1e-3).mean() > 0.99
    found = {item.metric: item for item in judge_attacks(open_runs(RunFolder(tmp_path)), setting={}, provenance={})}
    assert found["tpr-at-1pct-fpr"].verdict == "leak"
    assert found["tpr-at-1pct-fpr"].value > 0.95
    assert found["tpr-at-1pct-fpr"].null["value"] < 0.1


def test_an_honest_server_plants_none(tmp_path):
    record = run_preset("canary", [*SMALL, "server=passive"], 0, tmp_path)
    known = read_knowledge(tmp_path / "knowledge")
    # So it is not tried at all where nobody chooses, as in audits of apps.
    (reason,) = CANARY.find_obstacles(record, known)
    assert reason.what == "it needs a server that is canary, but this one is passive"
    with pytest.raises(NeedsError, match="it needs a server that is canary, but this one is passive"):
        CANARY.run(record, known, device="cpu")


def test_replies_that_lack_the_layer_are_left_out(tmp_path):
    record = run_preset("canary", [*SMALL, "framework=fedavg"], 0, tmp_path / "run")
    (round_,) = record
    writer = RecordWriter(tmp_path / "record", server="canary")
    replies = []
    for seen, alter in zip(round_.observations, (lambda bias: bias, lambda bias: bias * np.nan, None), strict=True):
        arrays = dict(seen.arrays)
        if alter is None:
            del arrays["fc1.bias"]
        else:
            arrays["fc1.bias"] = alter(arrays["fc1.bias"])
        replies.append(Reply(seen.node, "ok", arrays, seen.count))
    writer.write(Exchange(round_.number, dict(round_.common), replies))
    writer.close()
    scores = CANARY.run(Record(tmp_path / "record"), read_knowledge(tmp_path / "run" / "knowledge"), device="cpu")
    seen = {
        node: not np.isnan(column).all()
        for node, column in zip(scores.facts["clients"], scores.arrays["score/canary"].T, strict=True)
    }
    assert seen == {replies[0].node: True, replies[1].node: False, replies[2].node: False}
