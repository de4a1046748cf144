"""All that computes on a GPU, on a GPU that is not there (:mod:`tests.fake_cuda`): what mixes devices fails here.

Whole attacks and whole clients run, with ones in the place of numbers. What is not covered:

- ``attribute-baselines``, ``exact``, ``dager``, ``membership-canary`` and the defences noise, sparsify, recup compute
  on the CPU alone, whatever the device.
- The networks on pooled updates (private attributes, RecUP's zoo) are trained on the CPU on purpose.
- ``ara`` as a whole takes a quarter of a minute; its kernel :func:`match_gradients` runs here.
- cuDNN's own choices, TF32, streams, what is out of memory and what is not deterministic: no device is there.
- Where a number decides what runs next, only the branch runs to which ones lead.
- A layer of one type that is given tensors of another is not refused here, as a GPU would refuse it.
"""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from clients.app import POSITIVE
from clients.fedavg import FedAvgClient
from clients.fedmd import FedMDClient
from clients.fedsgd import FedSGDClient
from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.base.errors import ModelError
from fedattack.defences import DEFENCES, Batch
from fedattack.learning import (
    Distillation,
    LocalSGD,
    accuracy_of_models,
    batched,
    distil,
    distil_students,
    full_gradient,
    losses_of_models,
    outputs_of,
    per_record_loss,
    private_gradient,
    r2_of_models,
    shadows,
    train_local,
    train_private,
)
from fedattack.learning.attribute_updates import attribute_updates
from fedattack.learning.inputs import Inputs
from fedattack.learning.losses import mean_loss
from fedattack.record import Record
from fedattack.threats.attribute.gradient_matching import METHODS, Matching
from simulations.study import Study
from tests.attacks.test_contract import RUNS
from tests.fake_cuda import fake_cuda
from tests.threats.attribute.matched import match_gradients
from tests.threats.attribute.test_gradient_matching import mlp, victim
from tests.worlds.federation import write_property_run
from tests.worlds.reference import DEFAULTS

# PyTorch says so where a whole model of such tensors is copied.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")

CUDA = "cuda"
CLASSES = 3
X = np.random.default_rng(0).normal(size=(6, 1, 8, 8)).astype(np.float32)
Y = np.arange(6) % CLASSES
TRAINING = LocalSGD(epochs=1, batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.01)
ADAM = LocalSGD(epochs=1, batch_size=4, lr=0.1, weight_decay=0.01, optimizer="AdamW")


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(72, CLASSES))


def dense(outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, outputs))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(72, CLASSES))


def arrays_of(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: np.ones(tuple(value.shape), dtype=np.float32) for name, value in model.state_dict().items()}


@pytest.fixture
def cuda():
    with fake_cuda():
        yield


# The test of the tests: each of these a GPU refuses.
MISTAKES = {
    "sum": lambda there, here: there + here,
    "product": lambda there, here: torch.outer(there, here),
    "list": lambda there, here: torch.cat([there, here]),
    "choice": lambda there, here: torch.where(there > 0, there, here),
    "layer": lambda there, here: nn.Linear(3, 2)(there),
    "place without a device": lambda there, here: torch.zeros(3).index_add(0, torch.arange(3, device=CUDA), here),
    "place": lambda there, here: here[torch.arange(2, device=CUDA)],
    "generator": lambda there, here: torch.rand(3, device=CUDA, generator=torch.Generator().manual_seed(0)),
    "generator of another": lambda there, here: here.bernoulli_(0.5, generator=torch.Generator(CUDA)),
    "array": lambda there, here: there.numpy(),
    "array by numpy": lambda there, here: np.asarray(there),
}


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake):
    with pytest.raises((RuntimeError, TypeError)):
        MISTAKES[mistake](torch.ones(3, device=CUDA), torch.ones(3))


@pytest.mark.usefixtures("cuda")
def test_what_a_gpu_allows_is_allowed():
    there = torch.ones(3, device=CUDA)
    assert (there * torch.tensor(2.0)).device == there.device
    assert there[torch.arange(2)].device == there.device
    assert torch.rand(3, device=CUDA, generator=torch.Generator(CUDA).manual_seed(0)).device == there.device
    assert there.cpu().numpy().shape == (3,)
    assert float(there.sum()) == 1.0


def test_a_mistake_in_an_attack_is_caught(monkeypatch, tmp_path):
    """Targets stay where they were; the attack says that the model failed on them."""
    folder = RUNS["sia", "fedavg"](tmp_path)
    monkeypatch.setattr(batched, "_channels_last", lambda model, parameters, records: Inputs({"0": records.only.cpu()}))
    with fake_cuda(), pytest.raises(ModelError, match="device"):
        run_there(ATTACKS["sia"], folder)


def run_there(attack, folder):
    return attack.run(Record(folder / "record"), read_knowledge(folder / "knowledge"), seed=1, device=CUDA)


WHOLE = [
    (name, protocol, {})
    for name, attack in ATTACKS.items()
    if name not in ("ara", "attribute-baselines", "exact", "dager", "membership-canary")
    for protocol in attack.needs.protocols
]
VARIANTS = [
    ("inversion", "fedavg", {"method": "l2"}),
    ("prolin", "fedavg", {"shadows": "exact"}),
]
SHORT = {
    "inversion": {"iterations": "4", "restarts": "2"},
    "membership": {"shadows": "1"},
    "membership-aggregate": {"references": "1"},
    "private-attribute": {"clients": "20", "epochs": "1"},
}
SMALL = {"prolin": partial(write_property_run, asked="membership", rounds=1, sampled=3, clients=5, positives=(1,))}


@pytest.mark.parametrize(("name", "protocol", "options"), [*WHOLE, *VARIANTS])
@pytest.mark.slow
def test_attacks(name, protocol, options, tmp_path):
    folder = SMALL.get(name, RUNS[name, protocol])(tmp_path)
    attack = ATTACKS[name].with_options(SHORT.get(name, {}) | options)
    with fake_cuda():
        scores = run_there(attack, folder)
    assert scores.arrays


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_gradient_matching(method):
    case = victim(count=3, rounds=1)[0]
    with fake_cuda():
        match = match_gradients(mlp(8), "cross-entropy", [case], Matching(method, restarts=1, steps=1), device=CUDA)[0]
    assert match.decisions.shape == (3,)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("model", [convolutional, dense, normalised])
@pytest.mark.parametrize("training", [TRAINING, ADAM])
@pytest.mark.parametrize("maximise", [False, True])
def test_local_training(model, training, maximise):
    trained = model()
    train_local(trained, X, Y, **vars(training), maximise=maximise, seed=0, device=CUDA)
    assert {value.device.type for value in trained.state_dict().values()} == {"meta"}


@pytest.mark.usefixtures("cuda")
def test_gradients_of_clients():
    gradient = full_gradient(convolutional(), X, Y, weight_decay=0.01, seed=0, device=CUDA, chunk=4)
    assert set(gradient.arrays) == set(convolutional().state_dict())
    train_private(convolutional(), X, Y, **TRAINING.keywords(), noise=1.0, clip=1.0, seed=0, device=CUDA)
    assert private_gradient(dense(), X, Y, noise=1.0, clip=1.0, seed=0, device=CUDA)


@pytest.mark.usefixtures("cuda")
def test_evaluation():
    model = convolutional()
    states = [arrays_of(model)] * 2
    assert losses_of_models(model, states, X, Y, per_record_loss("cross-entropy"), device=CUDA).device.type == "cpu"
    assert accuracy_of_models(model, states, X, Y, device=CUDA).shape == (2,)
    assert outputs_of(model, X, device=CUDA).shape == (6, CLASSES)
    one = dense(1)
    assert r2_of_models(one, [arrays_of(one)], X, Y.astype(np.float32), device=CUDA).shape == (1,)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("model", [convolutional, dense])
def test_distillation(model):
    how = Distillation(epochs=1, batch_size=4)
    outputs = np.zeros((2, 6, CLASSES), dtype=np.float32)
    distil(model(), X, outputs[0], how, seed=0, device=CUDA)
    students = distil_students(model(), arrays_of(model()), X, outputs, how, seed=0, device=CUDA)
    assert len(students) == 2


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("model", [convolutional, dense, normalised])
@pytest.mark.parametrize("training", [TRAINING, ADAM])
def test_shadow_updates(model, training):
    shadow = shadows.ShadowModel(model(), X[0], mean_loss("cross-entropy"), device=CUDA)
    start = shadow.flatten(arrays_of(model()))
    x, y = torch.as_tensor(X), torch.as_tensor(Y)
    clients = x.expand(2, *x.shape), y.expand(2, *y.shape)
    updates = shadow.updates(start, *clients, training, generator=torch.Generator().manual_seed(0))
    assert (updates.shape, updates.device.type) == ((2, shadow.size), "meta")
    assert shadow.mean_gradient(start, x, y, generator=torch.Generator().manual_seed(0)).shape == (shadow.size,)
    if shadow.separable:
        each = shadow.record_gradients(start, x, y, generator=torch.Generator().manual_seed(0))
        assert each.shape == (6, shadow.size)


@pytest.mark.usefixtures("cuda")
def test_updates_of_an_attribute():
    values = np.array([0, 1] * 3)
    made = attribute_updates(
        dense(), arrays_of(dense()), X, Y, values, TRAINING, clients=4, records=2, seed=0, device=CUDA
    )
    assert len([*made]) == 4


CONFIG = DEFAULTS | {"clients": 3, "size": 200, "seed": 0, "device": CUDA}
CLIENTS = {
    "fedavg": (FedAvgClient, {}),
    "private": (FedAvgClient, {"dp-noise": 1.0}),
    "fedsgd": (FedSGDClient, {"framework": "fedsgd", "batch-size": 0}),
    "private fedsgd": (FedSGDClient, {"framework": "fedsgd", "batch-size": 0, "dp-noise": 1.0}),
    "fedmd": (FedMDClient, {"framework": "fedmd"}),
    "inversion": (POSITIVE["inversion"], {}),
    "ascent": (POSITIVE["ascent"], {}),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_clients(kind):
    made, changes = CLIENTS[kind]
    study = Study.of(CONFIG | changes)
    arrays = [np.ones((len(study.public_x), study.data.classes), dtype=np.float32)]
    if kind != "fedmd":
        arrays = list(study.models.initial_arrays().values())
    with fake_cuda():
        sent, count, _ = made(study, 0).fit(arrays, {"server-round": 1})
    assert [array.shape for array in sent] == [array.shape for array in arrays]
    assert count > 0


@pytest.mark.usefixtures("cuda")
@pytest.mark.slow
def test_soteria():
    model = convolutional().to(CUDA)
    defence = DEFENCES["soteria"]({"defence-strength": 0.5, "soteria-layer": ""})
    update = arrays_of(model)
    assert defence.apply(update, np.random.default_rng(0), Batch(X, Y, model)).keys() == update.keys()


# Arrays of other types and layouts, on what takes them: all is float32 within.
LAYOUTS = {
    "float16": lambda: torch.as_tensor(X).half(),
    "bfloat16": lambda: torch.as_tensor(X).bfloat16(),
    "float64": lambda: torch.as_tensor(X).double(),
    "channels last": lambda: torch.as_tensor(X).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_types_and_layouts(layout):
    x, model = LAYOUTS[layout](), convolutional()
    train_local(model, x, Y, **vars(TRAINING), seed=0, device=CUDA)
    full_gradient(convolutional(), x, Y, seed=0, device=CUDA)
    loss = per_record_loss("cross-entropy")
    halved = {name: torch.as_tensor(array).to(x.dtype) for name, array in arrays_of(model).items()}
    losses = losses_of_models(convolutional(), [halved], x, Y, loss, device=CUDA)
    assert (losses.shape, losses.dtype) == ((1, 6), torch.float64)
    assert outputs_of(convolutional(), x, device=CUDA).dtype == np.float32
    distil(convolutional(), x, np.zeros((6, CLASSES)), Distillation(epochs=1), seed=0, device=CUDA)
    shadow = shadows.ShadowModel(convolutional(), X[0], mean_loss("cross-entropy"), device=CUDA)
    assert shadow.flatten(halved).dtype == torch.float32
