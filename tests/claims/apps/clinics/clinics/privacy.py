"""clinics: what each update goes through, by the setting ``privacy``, and parts of it for whoever tests them alone."""

from types import SimpleNamespace

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.client.mod import LocalDpMod as LegacyLocalDpMod
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinics.task import make_optimizer

platform = LocalDpMod(clipping_norm=1.0, sensitivity=1e-4, epsilon=10, delta=1e-5)
honest = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=1, delta=1e-5)
# Weights that leave ±8 are cut off by SecAgg+. So the norm is small, and the noise with it.
masked = LegacyLocalDpMod(clipping_norm=0.1, sensitivity=0.2, epsilon=1, delta=1e-5)

MODS = {"platform": platform, "honest": honest, "opt-in": honest, "central-clients": fixedclipping_mod}
WRAPPERS = {
    "central": DifferentialPrivacyServerSideFixedClipping,
    "central-clients": DifferentialPrivacyClientSideFixedClipping,
}


def mod(msg, ctxt, call_next):
    """Apply what the run's setting says; with ``opt-in`` clinic 3 has not asked for it."""
    chosen = MODS.get(ctxt.run_config["privacy"])
    forgets = ctxt.run_config["privacy"] == "opt-in" and ctxt.node_config["partition-id"] == 3
    if chosen is None or forgets:
        return call_next(msg, ctxt)
    return chosen(msg, ctxt, call_next)


def train_privately(net, x, y, config):
    """Train with a privacy engine that is made anew; return what it says was spent."""
    loader = DataLoader(TensorDataset(x, y), batch_size=config["batch-size"], shuffle=True)
    engine = PrivacyEngine(secure_mode=False)
    private, optimizer, loader = engine.make_private(
        module=net, optimizer=make_optimizer(net, config), data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    private.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(private(inputs), labels).backward()
        optimizer.step()
    return engine.get_epsilon(delta=1e-5)


def released_by_server(update):
    return _release(WRAPPERS["central"], update)


def released_by_clients(update):
    return _release(WRAPPERS["central-clients"], update)


def _release(wrapper, update):
    """Return the new model where one clinic sends this update, and nine send none; the old model was zeros."""
    strategy = wrapper(FedAvg(), 2.0, 1.0, num_sampled_clients=10)
    zeros = {name: np.zeros_like(array) for name, array in update.items()}
    strategy.current_arrays = _record_of(zeros)
    arrays, _ = strategy.aggregate_train(1, [_reply_of(update), *(_reply_of(zeros) for _ in range(9))])
    return {name: array.numpy() for name, array in arrays.items()}


def _record_of(arrays):
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _reply_of(arrays):
    # Flower divides by the norm of each update: none may be zero.
    moved = {name: array + np.float32(1e-12) for name, array in arrays.items()}
    content = RecordDict({"arrays": _record_of(moved), "metrics": MetricRecord({"num-examples": 120})})
    return SimpleNamespace(content=content, has_error=lambda: False)


def step(update):
    """Return what one step of Opacus releases where the only example has this gradient."""
    parameters = []
    for gradient in update.values():
        parameter = nn.Parameter(torch.zeros(gradient.shape))
        parameter.grad_sample = torch.tensor(gradient)[None]
        parameters.append(parameter)
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    DPOptimizer(optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1).step()
    return {name: -parameter.detach().numpy() for name, parameter in zip(update, parameters, strict=True)}
