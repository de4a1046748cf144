"""Claims read off the objects of Flower, Opacus and this project, and what these objects do against what was read."""

import math
import warnings

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import mod as old_mods
from flwr.clientapp import mod as mods
from flwr.server import strategy as old
from flwr.serverapp import strategy as new
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from torch import nn

from fedattack.base.errors import ConfigError
from fedattack.claims import claim_of, compute_epsilon
from fedattack.defences.mods import DefenceMod, FlowerLocalDP
from fedattack.defences.noise import Noise
from fedattack.privacy import gaussian_epsilon
from tests.worlds.local_grid import FIRST_NODE, LocalGrid

DECLARED = {"epsilon": 8.0, "delta": 1e-5, "rounds": 20}


@pytest.mark.parametrize("kind", [mods.LocalDpMod, old_mods.LocalDpMod])
def test_flowers_local_mod(kind):
    claim = claim_of(kind(1.0, 1e-4, 10, 1e-5), rounds=5)
    assert (claim.clip, claim.sensitivity, claim.epsilon, claim.delta) == (1.0, 1e-4, 10.0, 1e-5)
    assert claim.epsilon_of == "message"
    assert compute_epsilon(claim).run.low > 1e9


@pytest.mark.parametrize("generation", [old, new])
@pytest.mark.parametrize("side", ["Server", "Client"])
def test_flowers_strategies_with_a_fixed_norm(generation, side):
    kind = getattr(generation, f"DifferentialPrivacy{side}SideFixedClipping")
    claim = claim_of(kind(generation.FedAvg(), 2.0, 0.5, 10), **DECLARED)
    assert claim.mechanism == "central-gaussian"
    assert (claim.multiplier, claim.clip, claim.clients, claim.weights) == (2.0, 0.5, 10, "examples")
    assert compute_epsilon(claim).run.low == pytest.approx(gaussian_epsilon(2.0, "add-remove", 20, 1e-5).low)
    with pytest.raises(ConfigError, match="does not say epsilon, delta, rounds: call"):
        claim_of(kind(generation.FedAvg(), 2.0, 0.5, 10))


@pytest.mark.parametrize("generation", [old, new])
@pytest.mark.parametrize("side", ["Server", "Client"])
def test_flowers_strategies_that_adapt_the_norm(generation, side):
    kind = getattr(generation, f"DifferentialPrivacy{side}SideAdaptiveClipping")
    strategy = kind(generation.FedAvg(), 1.0, 100)
    claim = claim_of(strategy, **DECLARED)
    assert (claim.mechanism, claim.clients, claim.count_noise) == ("central-adaptive", 100, 5.0)
    assert claim.clip_falls == pytest.approx(math.exp(-0.1))
    # Andrew et al. 2021: the update gets more noise, so that update and count have the multiplier together.
    assert claim.multiplier == pytest.approx((1 - 1 / 100) ** -0.5)


def test_the_norm_that_noise_follows_is_another_than_the_one_that_clipped():
    """The reason for ``clip-falls``: with all updates clipped, the norm falls before the noise is drawn."""
    LocalGrid(lambda *_: None, 1)  # messages exist only within a run
    strategy = new.DifferentialPrivacyServerSideAdaptiveClipping(
        new.FedAvg(), 1.0, 40, initial_clipping_norm=1.0, clipped_count_stddev=2.0
    )
    strategy.clipped_count_stddev = 0.0
    strategy.current_arrays = ArrayRecord({"w": Array(np.zeros(20_000, np.float32))})
    direction = np.zeros(20_000, np.float32)
    direction[0] = 100.0
    replies = []
    for _ in range(40):
        arrays = ArrayRecord({"w": Array(direction)})
        request = Message(RecordDict({"config": ConfigRecord()}), FIRST_NODE, "train")
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
        replies.append(Message(content, reply_to=request))
    np.random.seed(0)  # noqa: NPY002
    aggregated, _ = strategy.aggregate_train(1, replies)
    sent = aggregated["w"].numpy()
    claim = claim_of(strategy, **DECLARED)
    assert strategy.clipping_norm == pytest.approx(math.exp(-0.1))
    # One client moved the mean by 1/40 · C, and the noise is that of the smaller norm.
    assert sent[1:].std() == pytest.approx(claim.multiplier * claim.clip_falls / 40, rel=0.02)
    assert sent[0] == pytest.approx(1.0, abs=0.2)


def test_clipping_mods_add_no_noise():
    for mod in (mods.fixedclipping_mod, mods.adaptiveclipping_mod, old_mods.fixedclipping_mod):
        with pytest.raises(ConfigError, match="clips but adds no noise"):
            claim_of(mod, **DECLARED)


def accountant(method=SamplingMethod.NO_AMPLIFICATION, relation=NeighboringRelation.ADD_OR_REMOVE_ONE):
    return RdpAccountant(PrivacyConfig(1e-5, 100, relation, method))


def test_flowers_accountant():
    told = accountant()
    told.compose(GaussianPrivacyEvent(2.0, 10, 100), count=20)
    claim = claim_of(told)
    found = compute_epsilon(claim)
    assert (claim.rounds, claim.clients, claim.multiplier, claim.weights) == (20, 10, 2.0, "equal")
    # Rényi orders are an upper bound.
    assert found.run.high < claim.epsilon < 1.2 * found.run.high
    strategy = new.DifferentialPrivacyServerSideFixedClipping(new.FedAvg(), 2.0, 0.5, 10, accountant=told)
    assert claim_of(strategy, **DECLARED).weights == "equal"


def test_flowers_accountant_takes_a_multiplier_of_c_for_one_of_2c():
    """Without replacement, where the wrappers do not use it: replacing moves a sum by 2C, and their z is σ/C."""
    told = accountant(SamplingMethod.WITHOUT_REPLACEMENT, NeighboringRelation.REPLACE_ONE)
    told.compose(GaussianPrivacyEvent(2.0, 10, 100), count=20)
    claim = claim_of(told)
    assert (claim.sampling, claim.sampling_method, claim.relation) == (0.1, "fixed-size", "replace")
    found = compute_epsilon(claim)
    assert found.run.high > 2 * claim.epsilon


def test_an_accountant_of_several_kinds_of_releases():
    told = accountant()
    with pytest.raises(ConfigError, match="0 kinds"):
        claim_of(told)
    told.compose(GaussianPrivacyEvent(2.0, 10, 100))
    told.compose(GaussianPrivacyEvent(1.0, 10, 100))
    with pytest.raises(ConfigError, match="2 kinds"):
        claim_of(told)


def test_opacus():
    from opacus import PrivacyEngine

    model = nn.Linear(3, 2)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.zeros(40, 3), torch.zeros(40, dtype=torch.long)), batch_size=10
    )
    with warnings.catch_warnings(action="ignore"):
        engine = PrivacyEngine(accountant="rdp")
        private, optimizer, batches = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=loader,
            noise_multiplier=1.5,
            max_grad_norm=0.7,
        )
        with pytest.raises(ConfigError, match="0 kinds"):
            claim_of(engine, **DECLARED)
        for _ in range(2):
            for x, y in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(private(x), y).backward()
                optimizer.step()
        with pytest.raises(ConfigError, match="does not say sampling_method: call"):
            claim_of(engine, epsilon=8.0, delta=1e-5)
        claim = claim_of(engine, epsilon=8.0, delta=1e-5, sampling_method="poisson")
        spent = engine.get_epsilon(1e-5)
    assert (claim.mechanism, claim.multiplier, claim.sampling) == ("dp-sgd", 1.5, 0.25)
    assert claim.steps == sum(count for _, _, count in engine.accountant.history)
    found = compute_epsilon(claim)
    assert found.run.high < spent < 1.3 * found.run.high
    assert claim_of(engine.accountant, epsilon=8.0, delta=1e-5, sampling_method="poisson") == claim
    with pytest.raises(ConfigError, match="does not say sampling, sampling_method, steps"):
        claim_of(optimizer, **DECLARED)
    read = claim_of(optimizer, sampling=0.25, sampling_method="poisson", steps=8, **DECLARED)
    assert read.clip == 0.7


def test_norms_of_opacus():
    from opacus.optimizers import AdaClipDPOptimizer, DPPerLayerOptimizer

    layer = nn.Linear(3, 2)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
    known = {"noise_multiplier": 1.0, "expected_batch_size": 10}
    told = {"sampling": 0.25, "sampling_method": "poisson", "steps": 8} | DECLARED
    assert claim_of(DPPerLayerOptimizer(sgd, max_grad_norm=[0.3, 0.4], **known), **told).clip == pytest.approx(0.5)
    adaptive = AdaClipDPOptimizer(
        sgd,
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=10.0,
        min_clipbound=0.1,
        unclipped_num_std=5.0,
        max_grad_norm=1.0,
        **known,
    )
    with pytest.raises(ConfigError, match="adaptive clipping counts the examples that it does not clip"):
        claim_of(adaptive, **told)


def test_defences_of_this_project():
    gaussian = claim_of(Noise("dp-gaussian", 2.0, 0.5), **DECLARED)
    assert (gaussian.mechanism, gaussian.deviation, gaussian.multiplier) == ("gaussian", 2.0, 4.0)
    assert claim_of(Noise("dp-laplace", 2.0, 0.5), **DECLARED).mechanism == "laplace"
    assert "lacks clip" in compute_epsilon(claim_of(Noise("dp-gaussian", 2.0, 0.0), **DECLARED)).lacks
    assert claim_of(FlowerLocalDP(2.0, 0.5, 1e-5), **DECLARED) == gaussian
    settings = {"defence": "dp-gaussian", "defence-strength": 2.0, "defence-clip": 0.5}
    assert claim_of(DefenceMod(settings=settings), **DECLARED) == gaussian
    with pytest.raises(ConfigError, match="adds no noise"):
        claim_of(DefenceMod(settings={"defence": "sparsify", "defence-strength": 0.5}), **DECLARED)
    with pytest.raises(ConfigError, match="run config"):
        claim_of(DefenceMod(), **DECLARED)


def test_other_objects_are_declared_by_hand():
    class LocalDpMod:
        clipping_norm = sensitivity = epsilon = delta = 1.0

    for other in (LocalDpMod(), print, 3):
        with pytest.raises(ConfigError, match="declare it by hand"):
            claim_of(other, **DECLARED)
