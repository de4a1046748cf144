"""What a round of PROLIN costs and how good its detectors are, against a lean plain loop, in one run on one machine.

``python -m tests.benchmarks.prolin`` takes the paper's setting on 10,000 MNIST records: LeNet, 6,000 auxiliary records,
10 records a client, 12,000 shadow updates and a logistic regression for the plain loop. Each detector is judged on the
same freshly trained shadow clients of records that no detector saw. Beside these stands the quality of the four methods
on synthetic sums. ``--targets 10 --rounds 1 50 200`` is the full size and takes hours.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import nn

from fedattack.attacks import ModelKnowledge, Targets
from fedattack.base.machine import MEMORY, read_size
from fedattack.learning import LocalSGD, train_local
from fedattack.learning.losses import mean_loss
from fedattack.learning.shadows import ShadowModel
from fedattack.threats.property.detectors import fit_detectors
from fedattack.threats.property.disaggregation import Joint, least_squares, posterior, weighted_ridge
from fedattack.threats.property.options import Mode
from fedattack.threats.property.properties import draw_records, membership
from fedattack.threats.property.setting import DetectorSetting
from tests.threats.property.test_disaggregation import f1, synthetic

DATA = Path(__file__).parents[3] / "shared" / "data" / "mnist10k.npz"
LENET = ModelKnowledge(spec="lenet-mnist", input_shape=(1, 28, 28), classes=10)
TRAINING = LocalSGD(epochs=1, batch_size=10, lr=0.01)
CLIENTS, SAMPLED, EACH = 50, 10, 10
AUXILIARY = 6_000
MODES: tuple[Mode, ...] = ("linear", "exact")
FRESH = 1_000


@dataclass(frozen=True)
class Parts:
    """MNIST-10k: what the attacker has, what the clients train on, and records that nobody else has."""

    auxiliary: Targets
    clients: Targets
    targets: Targets
    unseen: Targets


def load(targets: int, each: int, auxiliary: int = AUXILIARY) -> Parts:
    with np.load(DATA, allow_pickle=False) as file:
        x, y = file["x"].astype(np.float32)[:, None], file["y"].astype(np.int64)
    x = (x - x.mean()) / x.std()
    order = np.random.default_rng(0).permutation(len(y))
    ends = np.cumsum([auxiliary, CLIENTS * each, targets])
    return Parts(*(Targets(x[rows], y[rows]) for rows in np.split(order, ends)))


def global_models(
    clients: Targets, rounds: list[int], known: ModelKnowledge = LENET
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the common model that clients receive in some rounds of FedAvg; ``size`` numbers each."""
    model = known.build()
    each = len(clients) // CLIENTS
    shapes = {name: value.shape for name, value in model.named_parameters()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        common = torch.cat([value.detach().reshape(-1) for value in known.build().parameters()])
    draw = np.random.default_rng(1)
    for number in range(1, max(rounds) + 1):
        if number in rounds:
            yield number, common.numpy().copy()
        sent = []
        for client in draw.choice(CLIENTS, SAMPLED, replace=False).tolist():
            parts = common.split([shape.numel() for shape in shapes.values()])
            model.load_state_dict(
                {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
            )
            rows = slice(client * each, (client + 1) * each)
            train_local(model, clients.x[rows], clients.y[rows], seed=number * CLIENTS + client, **vars(TRAINING))
            sent.append(torch.cat([value.detach().reshape(-1) for value in model.parameters()]))
        common = torch.stack(sent).mean(dim=0)


@dataclass(frozen=True)
class Linear:
    """Decides for the property where ⟨weights, Δ⟩ + offset > 0."""

    weights: NDArray[np.float32]
    offset: float

    def accuracy(self, plus: NDArray[np.float32], minus: NDArray[np.float32]) -> float:
        """Return the share of clients with and without the property that are told rightly."""
        right = ((plus @ self.weights + self.offset > 0).mean(), (minus @ self.weights + self.offset <= 0).mean())
        return float(sum(right) / 2)


def plain_loop(
    start: NDArray[np.float32], auxiliary: Targets, target: Targets, each: int, seed: int
) -> tuple[Linear, float]:
    """Draw 12,000 shadow updates one by one and train on 80 % of them; also returns the updates' processor seconds.

    Nothing is wasted: records lie in memory as tensors, a local step needs no optimiser, and the last one leaves the
    model as it is.
    """
    began = time.process_time()
    model = LENET.build().train()
    nn.utils.vector_to_parameters(torch.from_numpy(start), model.parameters())
    parameters = list(model.parameters())
    x = torch.cat([torch.from_numpy(auxiliary.x), torch.from_numpy(target.x)])
    y = torch.cat([torch.from_numpy(auxiliary.y), torch.from_numpy(target.y)])
    draw = np.random.default_rng(seed)
    drawn = draw_records(2 * len(auxiliary), each, np.arange(len(auxiliary)), draw)
    labels = torch.arange(len(drawn)) % 2
    drawn[labels == 1, 0] = len(auxiliary)
    batches = torch.from_numpy(draw.permuted(drawn, axis=1))
    updates = torch.zeros((len(batches), len(start)))
    common = torch.from_numpy(start)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for rows, update in zip(batches, updates, strict=True):
            for part in rows.split(TRAINING.batch_size):
                if each > TRAINING.batch_size:
                    nn.utils.vector_to_parameters(common + update, parameters)
                loss = nn.functional.cross_entropy(model(x[part]), y[part])
                gradients = torch.autograd.grad(loss, parameters)
                update.sub_(torch.cat([item.reshape(-1) for item in gradients]), alpha=TRAINING.lr)
        made = time.process_time() - began
        split = int(0.8 * len(batches))
        return logistic_regression(updates[:split], labels[:split]), made


def logistic_regression(updates: torch.Tensor, labels: torch.Tensor) -> Linear:
    """Fit scikit-learn's, stopped after 30 steps: here as accurate as six passes of Adam, in a third of the time."""
    mean, scale = updates.mean(dim=0), updates.std(dim=0) + 1e-8
    updates.sub_(mean).div_(scale)  # in place: a copy would cost a gigabyte and seconds
    fitted = LogisticRegression(C=1e-2, max_iter=30).fit(updates.numpy(), labels.numpy())
    weights = fitted.coef_[0] / scale.numpy()
    return Linear(weights.astype(np.float32), float(fitted.intercept_[0] - mean.numpy() @ weights))


def of_mode(
    start: NDArray[np.float32],
    auxiliary: Targets,
    target: Targets,
    each: int,
    mode: Mode,
    number: int,
    memory: float = MEMORY,
) -> Linear:
    """Fit fedattack's own detector."""
    asked = [membership(auxiliary, target)]
    setting = DetectorSetting(LENET, TRAINING, auxiliary, asked, mode, (each,), number, "cpu", memory=memory)
    (detector,) = fit_detectors(setting, start, np.ones(1), number, check=False)
    return Linear(detector.weights, detector.offset)


def fresh_updates(
    start: NDArray[np.float32], unseen: Targets, target: Targets | None, each: int, seed: int
) -> NDArray[np.float32]:
    """Train clients exactly, on records that no detector saw, and all of them on ``target`` if there is one."""
    shadow = ShadowModel(LENET.build(), unseen.x[0], mean_loss(LENET.loss))
    batches = draw_records(FRESH, each, np.arange(len(unseen)), np.random.default_rng(seed))
    x, y = torch.from_numpy(unseen.x[batches]), torch.from_numpy(unseen.y[batches])
    if target is not None:
        x[:, 0], y[:, 0] = torch.from_numpy(target.x[0]), int(target.y[0])
    generator = torch.Generator().manual_seed(seed)
    return shadow.updates(torch.from_numpy(start), x, y, TRAINING, generator=generator).numpy()


def compare_detectors(targets: int, rounds: list[int], modes: Sequence[Mode], each: int, memory: float) -> None:
    """Print processor seconds and accuracy of one round's detector by the plain loop and by our modes, in turns."""
    parts = load(targets, each)
    print(
        f"\none round's detector: {LENET.spec}, {AUXILIARY} auxiliary records, {each} a client; {targets} targets, "
        f"median processor time, {torch.get_num_threads()} threads, accuracy on {2 * FRESH} fresh exact updates of "
        f"unseen records"
    )
    ours = "".join(f"{mode:18}" for mode in modes) + "  ".join(f"plain/{mode}" for mode in modes)
    print(f"round  plain loop (updates + regression)   {ours}")
    # what is computed first pays for torch's start
    warm = Targets(parts.auxiliary.x[:500], parts.auxiliary.y[:500])
    for number, start in global_models(parts.clients, rounds):
        lacking = fresh_updates(start, parts.unseen, None, each, 1)
        of_mode(start, warm, Targets(parts.targets.x[:1], parts.targets.y[:1]), each, "linear", 1)
        seconds: dict[str, list[float]] = {name: [] for name in ("plain", "updates", *modes)}
        right: dict[str, list[float]] = {name: [] for name in ("plain", *modes)}
        for row in range(targets):
            target = Targets(parts.targets.x[row : row + 1], parts.targets.y[row : row + 1])
            having = fresh_updates(start, parts.unseen, target, each, 2 + row)
            began = time.process_time()
            detector, made = plain_loop(start, parts.auxiliary, target, each, row)
            seconds["plain"].append(time.process_time() - began)
            seconds["updates"].append(made)
            right["plain"].append(detector.accuracy(having, lacking))
            for mode in modes:
                began = time.process_time()
                detector = of_mode(start, parts.auxiliary, target, each, mode, number, memory)
                seconds[mode].append(time.process_time() - began)
                right[mode].append(detector.accuracy(having, lacking))
        s = {name: float(np.median(values)) for name, values in seconds.items()}
        a = {name: float(np.mean(values)) for name, values in right.items()}
        print(
            f"{number:5}  {s['plain']:6.1f} s ({s['updates']:4.1f} + {s['plain'] - s['updates']:4.1f})  "
            f"{a['plain']:.3f}      "
            + "".join(f"{s[mode]:5.2f} s  {a[mode]:.3f}    " for mode in modes)
            + "  ".join(f"{s['plain'] / s[mode]:6.1f} times" for mode in modes),
            flush=True,
        )


def compare_methods(seeds: int) -> None:
    """Print the mean F1 of the methods on synthetic aggregates."""
    print(
        f"\nmean F1 over {seeds} synthetic runs, d' = 2, 5 of {CLIENTS} positive, {SAMPLED} a round; named "
        f"where nobody is"
    )
    print("rounds   OLS    REG    PROLIN  posterior   PROLIN names   posterior names")
    for rounds in (100, 200, 300):
        found: dict[str, list[float]] = {name: [] for name in ("OLS", "REG", "PROLIN", "posterior")}
        named: dict[str, list[float]] = {name: [] for name in ("PROLIN", "posterior")}
        for seed in range(seeds):
            for positive in (5, 0):
                A, G, v, densities, truth = synthetic(seed, rounds=300, positive=positive, mean=2, sd=2)
                A, G, v, densities = A[:rounds], G[:rounds], v[:rounds], densities.of(rounds, np.arange(CLIENTS))
                expected = weighted_ridge(A, G, v)
                chances = posterior(A, G, densities, 0.1, np.ones((1, rounds)), generator=np.random.default_rng(seed))
                decided = {
                    "OLS": least_squares(A, G) > 0,
                    "REG": expected > 0,
                    "PROLIN": Joint(A, G, v, densities, expected).solve(expected > 0)[0],
                    "posterior": chances[0] > 0.5,
                }
                for name, flags in decided.items():
                    if positive:
                        found[name].append(f1(flags, truth))
                    elif name in named:
                        named[name].append(float(flags.mean()))
        means = "   ".join(f"{np.mean(values):.3f}" for values in found.values())
        print(f"{rounds:6}   {means}       {np.mean(named['PROLIN']):6.2%}         {np.mean(named['posterior']):6.2%}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Cost and quality of PROLIN's parts.")
    parser.add_argument("--targets", type=int, default=3, help="target records to average over (10 in full)")
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 50, 200], help="stages of training")
    parser.add_argument("--records", type=int, default=EACH, help="of a client")
    parser.add_argument("--modes", choices=MODES, nargs="+", default=MODES, help="of the detectors")
    parser.add_argument("--memory", type=read_size, default=MEMORY, help="of a detector, such as 300MB")
    parser.add_argument("--seeds", type=int, default=20, help="synthetic runs")
    parser.add_argument("--only", choices=("detectors", "methods"), help="one part alone")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    parts: dict[str, Callable[[], None]] = {
        "detectors": lambda: compare_detectors(
            chosen.targets, chosen.rounds, chosen.modes, chosen.records, chosen.memory
        ),
        "methods": lambda: compare_methods(chosen.seeds),
    }
    for name, part in parts.items():
        if chosen.only not in (None, name):
            continue
        if name == "detectors" and not DATA.exists():
            print(f"\n{name}: skipped, because {DATA.name} is not in {DATA.parent}", file=sys.stderr)
            continue
        part()


if __name__ == "__main__":
    main()
