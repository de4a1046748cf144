"""What clients notice of servers that depart from the protocol, and of honest ones: nothing."""

import logging

import numpy as np
import pytest
from flwr.app import RecordDict
from flwr.client import NumPyClient

from fedattack.base.errors import DepartureError
from fedattack.defences.checked import Last, check_moved, check_received, digest_of
from fedattack.defences.wrapper import checked
from fedattack.learning import LocalSGD, build_model, full_gradient, train_local
from fedattack.learning.departures import FirstLayers, Fishing, Imprint, unlearning_model
from tests.worlds.reference import run_preset

LAYERS = FirstLayers("fc1.weight", "fc1.bias", "fc2.weight")


def network(seed: int = 0):
    return build_model("mlp", input_shape=(64,), classes=10, hidden=200, seed=seed)


def state(model):
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def batch(seed: int = 0, count: int = 64):
    draw = np.random.default_rng(seed)
    return draw.random((count, 64), dtype=np.float32), draw.integers(10, size=count)


def departed(server: str, seed: int):
    arrays = state(network(seed))
    if server == "inconsistent":
        return unlearning_model(network(seed), (64,), 10, LocalSGD(1, 8, 0.1), "cross-entropy")
    if server == "fishing":
        return Fishing("fc2.weight", "fc2.bias", seed % 10)(arrays, 1)
    parts = (3, 10) if server == "imprint by client" else (0, 1)
    return Imprint(LAYERS, batch(seed)[0], seed)(arrays, 1, *parts)


@pytest.mark.parametrize("server", ["inconsistent", "fishing", "imprint", "imprint by client"])
def test_each_departure_is_noticed_in_the_first_round(server):
    for seed in range(20):
        assert check_received([*departed(server, seed).values()])


def test_honest_models_and_their_training_are_not_noticed():
    last, model = None, network()
    for number in range(6):
        received = [*state(model).values()]
        assert check_received(received, last) == []
        train_local(model, *batch(number), epochs=3, batch_size=8, lr=0.1, seed=number)
        moved = [after - before for before, after in zip(received, state(model).values(), strict=True)]
        assert check_moved(moved, 64) == []
        last = Last(received, float(np.sqrt(sum(np.square(array).sum() for array in moved))))


def test_a_model_that_does_not_learn_and_one_example_are_noticed_by_what_moved():
    x, y = batch()
    gradient = [*full_gradient(network(), x, y, seed=0).arrays.values()]
    assert check_moved(gradient, 64) == []
    one = [*full_gradient(network(), x[:1], y[:1], seed=0).arrays.values()]
    assert "64 examples moved it as a single example does" in check_moved(one, 64)[0]
    assert check_moved(one, 1) == []
    still = [np.zeros_like(array) for array in gradient]
    assert check_moved(still, 64) == check_moved(still, 64, Last(still, 0.1)) == ["training moved no weight"]
    # Whoever does not train is told once.
    assert check_moved(still, 64, Last(still, 0.0)) == []


def test_another_model_is_a_jump():
    one, other = [*state(network(1)).values()], [*state(network(2)).values()]
    assert check_received(other, Last(one, 0.1)) == [
        "the model does not follow from the one before: training does not move a model that far"
    ]
    assert check_received(one, Last(one, 0.0)) == []


def test_numbers_beyond_rounding_are_named():
    arrays = [*state(network()).values()]
    arrays[1] = np.full_like(arrays[1], np.nan)
    assert "array 1 has numbers so large that rounding hides the training" in check_received(arrays)


def test_the_digest_tells_models_apart():
    arrays = [*state(network()).values()]
    assert digest_of(arrays) == digest_of([array.copy() for array in arrays])
    changed = [array.copy() for array in arrays]
    changed[0][0, 0] = np.nextafter(changed[0][0, 0], 1)
    assert digest_of(changed) != digest_of(arrays)
    assert digest_of([arrays[0].reshape(-1), *arrays[1:]]) != digest_of(arrays)


class Trains(NumPyClient):
    def fit(self, parameters, config):
        return [array + 0.01 * np.random.default_rng(0).normal(size=array.shape) for array in parameters], 64, {}


def test_a_wrapped_client_refuses_or_warns(caplog):
    memory, sent = RecordDict(), [*departed("imprint", 0).values()]
    honest = [*state(network()).values()]
    client = checked(Trains(), memory)
    assert client.fit(honest, {})[1] == 64
    with pytest.raises(DepartureError, match="neurons differ only in their bias"):
        client.fit(sent, {})
    with caplog.at_level(logging.WARNING, logger="fedattack"):
        assert checked(Trains(), RecordDict(), refuses=False).fit(sent, {})[1] == 64
    assert digest_of(sent)[:16] in caplog.text


def test_clients_of_the_reference_system_refuse(tmp_path):
    changes = ["clients=2", "rounds=2", "check-model=refuse", "departures=0"]
    # Flower's runtimes make an error message of it; the Grid of the tests does not.
    with pytest.raises(DepartureError, match="9 of 10 neurons have a bias and no weights"):
        run_preset("fishing", changes, 0, tmp_path / "active")
    record = run_preset("fishing", [*changes, "server=passive"], 0, tmp_path / "passive")
    assert {seen.status for item in record for seen in item.observations} == {"ok"}
