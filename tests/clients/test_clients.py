import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from torch import nn

from clients import app
from clients.fedavg import FedAvgClient, dump_arrays
from clients.fedsgd import FedSGDClient
from clients.poisoning import AscendingClient, InvertingClient
from fedattack.base.errors import ConfigError
from fedattack.learning import private_gradient, train_local
from simulations.study import Study
from tests.worlds.local_grid import FIRST_NODE, LocalGrid
from tests.worlds.reference import DEFAULTS

CONFIG = {
    **DEFAULTS,
    "clients": 20,
    "records-per-client": 12,
    "batch-size": 5,
    "local-epochs": 2,
    "lr": 0.1,
    "device": "cpu",
    "property": "inversion",
}


def normed(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model with buffers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))


def trained(kind, config=CONFIG) -> tuple[Study, dict, dict, int, dict]:
    """A study, and model, reply, count and metrics of its client 3 in round 2."""
    study = Study.of(config)
    start = dump_arrays(study.models.build())
    names = list(study.models.build().state_dict())
    sent, count, metrics = kind(study, 3).fit([array.copy() for array in start], {"server-round": 2})
    return study, dict(zip(names, start, strict=True)), dict(zip(names, sent, strict=True)), count, metrics


@pytest.mark.parametrize("model", ["sia-mlp", "tests.clients.test_clients:normed"])
def test_the_inverting_client_sends_the_model_minus_its_faithful_update(model):
    config = CONFIG | {"model": model}
    study, start, sent, count, metrics = trained(InvertingClient, config)
    _, _, honest, honest_count, honest_metrics = trained(FedAvgClient, config)
    learned = {name for name, _ in study.models.build().named_parameters()}
    assert (count, metrics) == (honest_count, honest_metrics)
    for name, array in sent.items():
        assert array.dtype == start[name].dtype
        if name not in learned:
            np.testing.assert_array_equal(array, honest[name])
            continue
        update = honest[name].astype(np.float64) - start[name]
        assert np.abs(update).max() > 0
        inverse = start[name].astype(np.float64) - update
        np.testing.assert_array_equal(array, inverse.astype(np.float32))


def test_a_client_may_send_statistics_of_its_classes_beside_its_model():
    config = CONFIG | {"property": "", "statistics": True}
    study, _, sent, _, metrics = trained(FedAvgClient, config)
    _, _, alone, _, others = trained(FedAvgClient, config | {"statistics": False})
    for name, array in sent.items():
        np.testing.assert_array_equal(array, alone[name])
    x, y = study.records_of(3)
    for label in range(10):
        own = x[y == label].reshape(-1, 64).astype(np.float64)
        assert metrics.pop(f"class-{label}-count") == len(own)
        means = [metrics.pop(f"class-{label}-mean-{column}") for column in range(64)]
        np.testing.assert_allclose(means, own.mean(axis=0) if len(own) else np.zeros(64), atol=1e-12)
    assert metrics == others
    # What helps: classes of few examples are sent as empty, or there is noise, the same in each round.
    counts = np.bincount(y, minlength=10)
    least = int(np.unique(counts[counts > 0])[-1])
    few = trained(FedAvgClient, config | {"statistics-least": least})[-1]
    for label in range(10):
        is_sent = counts[label] >= least
        assert few[f"class-{label}-count"] == is_sent * counts[label]
        assert any(few[f"class-{label}-mean-{column}"] for column in range(64)) == is_sent
    noisy = [trained(FedAvgClient, config | {"statistics-noise": 0.1})[-1] for _ in range(2)]
    assert noisy[0] == noisy[1]
    apart = [noisy[0][f"class-{label}-count"] - counts[label] for label in range(10)]
    assert 0.03 < np.std(apart) < 0.3
    with pytest.raises(ConfigError, match="statistics with framework = 'fedsgd'"):
        Study.of(config | {"framework": "fedsgd", "local-epochs": 1, "batch-size": 0})


def test_the_ascending_client_climbs_the_loss_of_its_own_records():
    study, start, sent, count, metrics = trained(AscendingClient)
    rows = study.division.parts[3]
    x, y = study.data.x_train[rows], study.data.y_train[rows]
    model = study.models.build()
    done = train_local(model, x, y, epochs=2, batch_size=5, lr=0.1, maximise=True, seed=study.client_seed(3, 2))
    for left, right in zip(sent.values(), dump_arrays(model), strict=True):
        np.testing.assert_array_equal(left, right)
    assert (count, metrics) == (12, {"train-loss": done.loss})

    def loss(arrays) -> float:
        model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
        return float(nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).detach())

    honest = trained(FedAvgClient)[2]
    assert loss(sent) > loss(start) > loss(honest)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("membership", FedAvgClient), ("inversion", InvertingClient), ("ascent", AscendingClient)],
)
def test_the_study_decides_who_has_the_property(name, kind):
    study = Study.of(CONFIG | {"property": name, "targets": 1})
    kinds = [app.kind_of(study, client) for client in range(20)]
    positive = study.positives.any(axis=0)
    assert positive.sum() == 2
    assert [item is kind for item in kinds] == [kind is FedAvgClient or bool(has) for has in positive]
    null = Study.of(CONFIG | {"property": name, "positives": 0.0})
    assert {app.kind_of(null, client) for client in range(20)} == {FedAvgClient}
    honest = Study.of(CONFIG | {"property": ""})
    assert {app.kind_of(honest, client) for client in range(20)} == {FedAvgClient}


def test_a_private_fedsgd_client_sends_a_noisy_gradient_and_no_loss():
    config = CONFIG | {
        "framework": "fedsgd",
        "property": "",
        "local-epochs": 1,
        "batch-size": 0,
        "weight-decay": 0.01,
        "dp-noise": 0.5,
        "dp-clip": 0.3,
    }
    study, start, sent, count, metrics = trained(FedSGDClient, config)
    rows, model = study.division.parts[3], study.models.build()
    model.load_state_dict({name: torch.tensor(array) for name, array in start.items()})
    noisy = private_gradient(
        model, study.data.x_train[rows], study.data.y_train[rows], noise=0.5, clip=0.3, seed=study.noise_seed(3, 2)
    )
    assert (count, metrics) == (12, {})
    for name, array in sent.items():
        np.testing.assert_allclose(array, noisy[name] + 0.01 * start[name], rtol=1e-5, atol=1e-8)
    _, _, plain, _, told = trained(FedSGDClient, config | {"dp-noise": 0.0})
    assert [*told] == ["train-loss"]
    assert max(np.abs(plain[name] - array).max() for name, array in sent.items()) > 1e-3


@pytest.mark.parametrize("secagg", [True, False])
def test_the_run_config_decides_whether_a_client_takes_part_in_secagg(secagg):
    """At every call: one process serves several runs."""
    content = RecordDict({"secaggplus_configs": ConfigRecord({"stage": "nonsense"})})
    message = LocalGrid(app.app, 1).create_message(content, "train", FIRST_NODE, "1")
    config = CONFIG | {"secagg": secagg}
    context = Context(run_id=1, node_id=1, node_config={"partition-id": 0}, state=RecordDict(), run_config=config)
    passed = []

    def call_next(message, context):
        passed.append(message)
        return message

    if secagg:
        with pytest.raises(ValueError, match="nonsense"):
            app.secure_aggregation(message, context, call_next)
    else:
        app.secure_aggregation(message, context, call_next)
    assert len(passed) == (not secagg)
