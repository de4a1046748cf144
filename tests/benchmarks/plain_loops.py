"""Source inference, membership, inversion and attribute inference, each beside a plain loop that finds the same.

``python -m tests.benchmarks.plain_loops`` records small runs on bundled data. Ours and the loop take turns on one
thread. It prints the median processor time of a turn, their ratio, and what both found. A loop takes one client, one
example and one round after another, as the papers write it.

PROLIN's plain loop is in ``tests.benchmarks.prolin``. Peers' own code is in ``tests.benchmarks.peers`` and
``tests.benchmarks.inversion``.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor

from fedattack.attacks import ATTACKS, Knowledge
from fedattack.attacks.knowledge import ModelKnowledge, Targets
from fedattack.learning.importing import trust_given
from fedattack.learning.losses import mean_loss, per_record_loss
from fedattack.record import Record
from fedattack.threats.attribute.gradient_matching import Matching
from fedattack.threats.inversion.images import pair_images, peak_ratio, squared_error
from fedattack.threats.inversion.inversion import VARIATION
from tests.benchmarks import inversion
from tests.benchmarks.inversion import EVALUATIONS, Cell, Task
from tests.benchmarks.peers.attributes import STEPS, Case, matched
from tests.benchmarks.peers.rows import Method
from tests.benchmarks.peers.runs import recorded

IMAGES = 16
"""Images that are reconstructed, one in a batch."""

Found = dict[str, NDArray[np.float64]]
"""What an attack and its loop measure of a record, by the name of the score."""


@dataclass(frozen=True)
class Contest:
    """Two ways to one result, and how what they found is told."""

    name: str
    ours: Callable[[], Any]
    plain: Callable[[], Any]
    told: Callable[[Any, Any], str]


def tensors(state: Mapping[str, NDArray[Any]] | None) -> dict[str, Tensor]:
    """Return a state as tensors that PyTorch may write to."""
    return {name: torch.from_numpy(np.array(array)) for name, array in (state or {}).items()}


def asked(knowledge: Knowledge) -> tuple[ModelKnowledge, Targets]:
    """Return the model and the targets, which the presets have."""
    if knowledge.model is None or knowledge.targets is None:
        raise AssertionError("the presets have both")
    return knowledge.model, knowledge.targets


def source(record: Record, knowledge: Knowledge) -> Contest:
    """Evaluate all targets under all clients' models."""

    def ours() -> Found:
        return {"losses": ATTACKS["sia"].run(record, knowledge, device="cpu").arrays["losses"]}

    def plain() -> Found:
        known, targets = asked(knowledge)
        model, loss = known.build().eval(), per_record_loss(trust_given(known.loss))
        losses = np.full((len(record), len(targets), len(record.nodes)), np.nan)
        for number, round_ in enumerate(record):
            for reply in round_.observations:
                model.load_state_dict(tensors(reply.arrays))
                for row in range(len(targets)):
                    losses[number, row, record.nodes.index(reply.node)] = _loss(model, loss, targets, row)
        return {"losses": losses}

    return Contest("source inference, digits, 10 clients, 3 rounds", ours, plain, _apart)


def membership(record: Record, knowledge: Knowledge) -> Contest:
    """Measure losses, and the cosine of each target's gradient with each update; ours tests them as well."""

    def ours() -> Found:
        arrays = ATTACKS["membership"].run(record, knowledge, device="cpu").arrays
        return {name: arrays[f"score/{name}"] for name in ("average-cosine", "loss-series", "gradient-norm")}

    def plain() -> Found:
        known, targets = asked(knowledge)
        model, loss = known.build().eval(), per_record_loss(trust_given(known.loss))
        shape = (len(record), len(targets), len(record.nodes))
        cosines, losses = np.zeros(shape), np.zeros(shape)
        norms = np.zeros(shape[1:])
        for number, round_ in enumerate(record):
            common = tensors(round_.common)
            updates = {}
            for reply in round_.observations:
                sent = tensors(reply.arrays)
                updates[reply.node] = torch.cat([(sent[name] - common[name]).flatten() for name in common])
                model.load_state_dict(sent)
                column = record.nodes.index(reply.node)
                for row in range(len(targets)):
                    losses[number, row, column] = _loss(model, loss, targets, row)
                    if number == len(record) - 1:
                        norms[row, column] = _gradient(model, known, targets, row).norm()
            model.load_state_dict(common)
            for row in range(len(targets)):
                gradient = _gradient(model, known, targets, row)
                for node, update in updates.items():
                    cosine = torch.nn.functional.cosine_similarity(-gradient, update, dim=0)
                    cosines[number, row, record.nodes.index(node)] = cosine
        found = {"average-cosine": cosines.mean(axis=0), "loss-series": -losses.mean(axis=0)}
        return found | {"gradient-norm": -norms}

    return Contest("membership, digits, 10 clients, 3 rounds", ours, plain, _apart)


def inversions() -> Contest:
    """Search for images of digits behind single gradients, from the same starts and by the same steps."""
    images = load_digits().images[:, None].astype(np.float32) / 16
    # 8 x 8 pixels, each three times as wide and high, within a margin
    x = np.pad(np.kron(images, np.ones((1, 1, 3, 3), dtype=np.float32)), ((0, 0), (0, 0), (2, 2), (2, 2)))
    tasks = inversion.tasks_of(Cell("relu", 1, "fedsgd"), x, load_digits().target.astype(np.int64))[:IMAGES]

    def told(ours: list[NDArray[np.float32]], plain: list[NDArray[np.float32]]) -> str:
        return f"{_quality(ours, tasks):.1f} dB, the loop {_quality(plain, tasks):.1f} dB"

    name = f"inversion, {IMAGES} images behind a gradient each, {EVALUATIONS} evaluations"
    return Contest(name, lambda: inversion.ours(tasks), lambda: [plain_inversion(task) for task in tasks], told)


def plain_inversion(task: Task) -> NDArray[np.float32]:
    """Search for one batch as ours does (Geiping et al. 2020, with a logarithm of the distance), by PyTorch's Adam."""
    sent = torch.cat([part.flatten() for part in task.sent])
    sent = sent / sent.norm()
    x = (0.5 + task.start / 4).clamp(0, 1).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.3, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: float(((1 + np.cos(np.pi * done / EVALUATIONS)) / 2) ** 1.5)
    )
    least, best = np.inf, x.detach().clone()
    for _ in range(EVALUATIONS):
        moved = torch.cat([part.flatten() for part in task.movement(x)])
        ratio = (((moved / moved.norm() - sent) ** 2).sum() / 2 + 1e-16) / 0.006
        objective = ratio.log() if ratio < 1 else ratio - 1
        objective = objective + VARIATION["cos"] * inversion.total_variation(x)
        if objective.item() < least:
            least, best = objective.item(), x.detach().clone()
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    return best.numpy()


def attributes(case: Case) -> Contest:
    """Match the gradients of two clients' first five rounds (Lyu & Chen 2021)."""

    def told(ours: NDArray[np.float64], plain: NDArray[np.float64]) -> str:
        return f"{ours.mean():.1%} right, the loop {plain.mean():.1%}"

    return Contest(
        f"attributes, breast cancer, 2 clients, 5 rounds, {STEPS} steps",
        lambda: matched(case, Matching("cos", STEPS)),
        lambda: plain_matching(case),
        told,
    )


def plain_matching(case: Case) -> NDArray[np.float64]:
    """Match one client's gradients after another's, round by round, and return what is right (n,)."""
    decisions = np.zeros(len(case.values), dtype=np.int64)
    model, loss = case.model.build().eval(), mean_loss(case.loss)
    for client in case.clients:
        victim = client.victim
        x, y, codes = (torch.from_numpy(np.asarray(part)) for part in (victim.x, victim.y, victim.codes))
        prior = np.maximum(trust_given(victim.prior), 1e-6)
        logits = torch.from_numpy(np.log(prior)).float().repeat(len(x), 1).requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=0.3, betas=(0.9, 0.99))
        for _ in range(STEPS):
            optimizer.zero_grad()
            for state, sent in zip(victim.states, victim.gradients, strict=True):
                model.load_state_dict(tensors(state))
                value = loss(model(x + logits.softmax(dim=1) @ codes), y)
                moved = torch.autograd.grad(value, [*model.parameters()], create_graph=True)
                wanted = [torch.from_numpy(sent[name]).flatten() for name, _ in model.named_parameters()]
                flat = torch.cat([part.flatten() for part in moved])
                (-torch.nn.functional.cosine_similarity(flat, torch.cat(wanted), dim=0)).backward()
            optimizer.step()
        decisions[client.rows] = logits.detach().argmax(dim=1).numpy()
    return case.right(decisions)


def _loss(model: torch.nn.Module, loss: Callable[[Tensor, Tensor], Tensor], targets: Targets, row: int) -> float:
    x, y = torch.from_numpy(targets.x[row : row + 1]), torch.from_numpy(targets.y[row : row + 1])
    with torch.inference_mode():
        return float(loss(model(x), y))


def _gradient(model: torch.nn.Module, known: ModelKnowledge, targets: Targets, row: int) -> Tensor:
    x, y = torch.from_numpy(targets.x[row : row + 1]), torch.from_numpy(targets.y[row : row + 1])
    value = mean_loss(trust_given(known.loss))(model(x), y)
    return torch.cat([part.flatten() for part in torch.autograd.grad(value, [*model.parameters()])])


def _apart(ours: Found, plain: Found) -> str:
    """Say by how much the two differ, as a share of the largest number."""
    parts = []
    for name, values in ours.items():
        apart = np.abs(values - plain[name]).max() / np.abs(plain[name]).max()
        parts.append(f"{name} {apart:.0e}")
    return f"apart by {', '.join(parts)}"


def _quality(images: list[NDArray[np.float32]], tasks: list[Task]) -> float:
    ratios = []
    for found, task in zip(images, tasks, strict=True):
        inside = np.clip(found, 0, 1)
        ratios.append(peak_ratio(squared_error(inside[pair_images(inside, task.x)], task.x)).mean())
    return float(np.mean(ratios))


def contests(scratch: ExitStack) -> Iterator[Contest]:
    """Record the runs, and list what is compared on them."""
    record, knowledge, _ = scratch.enter_context(recorded("sia-fedavg", ("rounds=3",), 0))
    yield source(record, knowledge)
    record, knowledge, _ = scratch.enter_context(recorded("membership", ("rounds=3", "auxiliary=0", "nulls=200"), 0))
    yield membership(record, knowledge)
    yield inversions()
    yield attributes(Case.of(*scratch.enter_context(recorded("ara-cos", (), 0))))


def main() -> None:
    """Print a line for each attack."""
    parser = argparse.ArgumentParser(description="Attacks beside plain loops; see the module's docstring.")
    parser.add_argument("--turns", type=int, default=3, help="of ours and of the loop (3)")
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    print(f"processor time, median of {turns} turns, one thread")
    with ExitStack() as scratch:
        for contest in contests(scratch):
            ours, plain = Method("ours", ""), Method("loop", "")
            for _ in range(turns):
                results = ours.run(contest.ours), plain.run(contest.plain)
            one, other = ours.typical_seconds() or 0.0, plain.typical_seconds() or 0.0
            print(f"{contest.name}: ours {one:.2f} s, plain loop {other:.2f} s, {other / one:.1f} times; ", end="")
            print(contest.told(*results), flush=True)


if __name__ == "__main__":
    main()
