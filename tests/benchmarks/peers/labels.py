"""Counts of labels beside LeakPro's rules, on the same gradients and models: the mean absolute error of counts.

LeakPro has two: iDLG for batches, which takes the labels of the lowest gradients once each, and that of Dimitrov et al.
2022, which for one step is that of Geng et al. 2021. Both are given the model, and neither has examples of its own.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from fedattack.attacks.last_layer import compute_outputs, find_last_layer, interpolate
from fedattack.learning import LocalSGD, build_model, full_gradient, train_local
from fedattack.threats.labels.rules import (
    apply_llg,
    find_terms,
    mean_shares,
    restore_labels,
    round_counts,
    solve_shares,
)
from tests.benchmarks.inversion import stand_in
from tests.benchmarks.peers.getting import LEAKPRO, PeerMissingError
from tests.benchmarks.peers.rows import Row, beside, by_value, missing_row

CLASSES, EXAMPLES, AUXILIARY, BATCHES = 10, 50, 300, 30

# How rules are mixed was chosen on updates of seeds below.
_FIRST_SEED = 1_000

LR = 0.1
_RULES = "attacks.gia_attacks.modular.components.label_inference"

State = dict[str, NDArray[Any]]
Count = Callable[["Update"], NDArray[np.int64]]


@dataclass(frozen=True)
class Setting:
    """How a client trains, and how far the model was trained before."""

    title: str
    before: int
    training: LocalSGD | None


SETTINGS = (
    Setting("gradients, new model", 0, None),
    Setting("gradients, after 2 epochs", 2, None),
    Setting("gradients, after 20 epochs", 20, None),
    Setting("models, 1 epoch, new model", 0, LocalSGD(1, 8, LR)),
    Setting("models, 5 epochs, new model", 0, LocalSGD(5, 8, LR)),
    Setting("models, 5 epochs, after 2 epochs", 2, LocalSGD(5, 8, LR)),
)


@dataclass(frozen=True)
class Update:
    """What one client sent: the model before and after, or its gradient, beside what the attacker has."""

    model: nn.Module
    start: State
    end: State
    gradient: State
    training: LocalSGD | None
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    true: NDArray[np.int64]

    @property
    def steps(self) -> int:
        """Steps that the client took."""
        return 1 if self.training is None else self.training.steps(EXAMPLES)


def make_updates(setting: Setting, count: int) -> Iterator[Update]:
    """Train clients on digits whose labels are drawn from a Dirichlet distribution of 0.5."""
    bunch = load_digits()
    x, y = (bunch.data / 16).astype(np.float32), bunch.target.astype(np.int64)
    for number in range(_FIRST_SEED, _FIRST_SEED + count):
        draw = np.random.default_rng(number)
        order = draw.permutation(len(y))
        own, public, rest = order[:AUXILIARY], order[AUXILIARY:700], order[700:]
        model = build_model("mlp", input_shape=(64,), classes=CLASSES, hidden=64, seed=number)
        if setting.before:
            train_local(model, x[public], y[public], epochs=setting.before, batch_size=16, lr=LR, seed=number)
        weights = draw.dirichlet(np.full(CLASSES, 0.5))[y[rest]] + 1e-9
        rows = draw.choice(rest, EXAMPLES, replace=False, p=weights / weights.sum())
        start = end = _state(model)
        if setting.training is None:
            gradient: State = full_gradient(model, x[rows], y[rows], seed=0).arrays
        else:
            train_local(model, x[rows], y[rows], seed=number, **setting.training.keywords())
            end = _state(model)
            reach = LR * setting.training.reach(EXAMPLES)
            gradient = {name: (start[name] - end[name]) / reach for name in start}
            model.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
        true = np.bincount(y[rows], minlength=CLASSES)
        yield Update(model, start, end, gradient, setting.training, x[own], y[own], true)


def _state(model: nn.Module) -> State:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def count_solved(update: Update, *, drawn: bool = False) -> NDArray[np.int64]:
    """Count by ours, from examples or from drawn inputs."""
    last, steps = find_last_layer(update.model), update.steps
    x = update.x
    if drawn:
        x = np.random.default_rng(0).normal(size=(200, 64)).astype(np.float32)
    path = []
    for share in np.linspace(0, (steps - 1) / steps, min(steps, 5)):
        seen = compute_outputs(update.model, last, interpolate(update.start, update.end, float(share)), x)
        if seen is None:
            raise AssertionError("the layer is called once for each example")
        path.append(seen)
    gradient, llg = last.join(update.gradient), count_llg(update) / EXAMPLES
    shares = mean_shares(path, gradient, llg) if drawn else solve_shares(path, update.y, gradient)
    if update.training is not None and update.training.epochs > 1:
        shares = (shares + llg) / 2
    return round_counts(shares, EXAMPLES)


def count_llg(update: Update, *, terms: bool = False) -> NDArray[np.int64]:
    """Count by LLG, or with both terms from examples by LLG+."""
    last = find_last_layer(update.model)
    sums = update.gradient[last.weight].astype(np.float64).sum(axis=1)
    if not terms:
        return apply_llg(sums, EXAMPLES)
    seen = compute_outputs(update.model, last, update.start, update.x)
    if seen is None:
        raise AssertionError("the layer is called once for each example")
    return apply_llg(sums, EXAMPLES, *find_terms(seen, update.y, EXAMPLES))


def count_idlg(update: Update) -> NDArray[np.int64]:
    """Count by iDLG, label by label."""
    return np.bincount(restore_labels(update.model, update.gradient, EXAMPLES), minlength=CLASSES)


OURS: dict[str, Count] = {
    "ours, solved": count_solved,
    "ours, from drawn inputs": lambda update: count_solved(update, drawn=True),
    "LLG": count_llg,
    "LLG+": lambda update: count_llg(update, terms=True),
    "iDLG": count_idlg,
}


def leakpro_rules(peers: Path | None) -> dict[str, Count]:
    """Return LeakPro's rules.

    Raises
    ------
    PeerMissingError
        If they cannot be had or imported.
    """
    place = LEAKPRO.find(peers)
    parents = _RULES.split(".")[:-1]
    packages = [".".join(parents[: depth + 1]) for depth in range(len(parents))]
    stand_in(place / "leakpro", [*packages, "attacks.gia_attacks.modular.core"], "leakpro")
    try:
        rules = importlib.import_module(f"leakpro.{_RULES}")
    except ImportError as cause:
        raise PeerMissingError(f"LeakPro's rules cannot be imported: {cause}") from None

    def count(update: Update, rule: Any, scale: float) -> NDArray[np.int64]:
        gradients = [
            torch.from_numpy(np.asarray(array, dtype=np.float32)) * scale for array in update.gradient.values()
        ]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            labels = rule.infer_labels(gradients, update.model, EXAMPLES).labels
        return np.bincount(labels.numpy(), minlength=CLASSES)

    def by_statistics(update: Update) -> NDArray[np.int64]:
        if update.training is None:
            return count(update, rules.GengLabelInference(), 1.0)
        training = update.training
        rule = rules.DimitrovLabelInference(training.epochs, training.batch_size, LR)
        # It takes what moved the model, over the learning rate.
        return count(update, rule, float(update.steps))

    return {
        "LeakPro, Geng and Dimitrov": by_statistics,
        "LeakPro, iDLG": lambda update: count(update, rules.IDLGLabelInference(), 1.0),
    }


def rows(peers: Path | None, count: int = BATCHES) -> Iterator[Row]:
    """Yield the mean absolute error of each rule in each setting, and by how much that of ours is above it."""
    rules = dict(OURS)
    missing = ""
    try:
        rules |= leakpro_rules(peers)
    except PeerMissingError as cause:
        missing = str(cause)
    for setting in SETTINGS:
        updates = [*make_updates(setting, count)]
        errors: dict[str, list[float]] = {}
        for name, rule in rules.items():
            errors[name] = [float(np.abs(rule(update) - update.true).mean()) for update in updates]
        for name, of_rule in errors.items():
            value, low, high = by_value(of_rule, (0.0, np.inf))
            row: Row = {"setting": setting.title, "method": name, "unit": "examples", "budget": f"{count} updates"}
            row |= {"value": value, "low": low, "high": high, "seconds": None}
            if name != "ours, solved":
                apart = [mine - theirs for mine, theirs in zip(errors["ours, solved"], of_rule, strict=True)]
                row |= beside("ours, solved less this", apart)
            yield row
        if missing:
            yield missing_row(setting.title, "LeakPro", missing)
