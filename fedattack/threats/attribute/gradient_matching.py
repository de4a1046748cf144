"""Gradient matching: find the attribute whose gradients are those that a client sent.

Lyu & Chen 2021, "A novel attribute reconstruction attack in federated learning", Algorithm 1. Each example's unknown
value is relaxed to shares of all values, and the example becomes its expected encoding. The shares are optimised until
the gradient of all examples together points where the client's did, in every round at once (cos-matching). The other
distance is the squared one, with L-BFGS (Zhu et al. 2019, "Deep leakage from gradients").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedattack.base.errors import ModelError
from fedattack.learning.importing import one_line
from fedattack.learning.soft_losses import soft_loss, soft_targets
from fedattack.learning.torch_utils import in_mode, to_tensor
from fedattack.threats.attribute.options import Relaxation

Arrays = Mapping[str, NDArray[Any]]
Method = Literal["cos", "l2"]
Weights = Literal["uniform", "shared", "round"]

METHODS: tuple[Method, ...] = ("cos", "l2")

_RATES = {"logits": 0.3, "labels": 0.3, "weights": 0.1}
# A value that first goes astray comes back soon only if Adam forgets the steep slopes of the start (0.999 does not).
_BETAS = (0.9, 0.99)
# A gradient and its own gradient keep about this many copies of a model alive.
_COPIES = 8
# Starts in one piece of work.
_MOST_ON_CPU, _MOST_ON_GPU = 4, 64
_LEAST_SHARE = 1e-6
# For L-BFGS: how many steps it remembers, and the slope, as a share of the objective at its start, at which it ends.
_MEMORY = 20
_UNLIMITED = 10**9
_FLAT = 1e-8


@dataclass(frozen=True)
class Victim:
    """One client: its examples without the attribute, and the gradients that the server saw."""

    x: NDArray[np.float32]  # (n, d) float32: model inputs, zero where they encode the attribute.
    y: NDArray[Any] | None  # (n,): labels or, for a regression, targets; ``None`` if the attacker does not know them.
    codes: NDArray[np.float32]  # (v, d) float32: what each value of the attribute adds to an input.
    # For each of T rounds the model that the client received, all parameters and buffers by name.
    states: Sequence[Arrays]
    # For each of T rounds the gradient that the client's update amounts to, by name of the parameter.
    gradients: Sequence[Arrays]
    prior: NDArray[np.float64] | None = None  # (v,): shares of the values; ``None`` if unknown.
    # (classes,): shares of the labels, used where ``y`` is ``None``; ``None`` if unknown.
    label_prior: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Matching:
    """How to match."""

    # ``cos``: mean cosine of the whole gradients over the rounds, by Adam. ``l2``: their squared distances summed over
    # the rounds, by L-BFGS.
    method: Method = "cos"
    steps: int = 200  # Of Adam, or at most of L-BFGS.
    # How many starts; the one with the best objective counts. With a known prior the first starts at its logarithm as
    # in the paper, the others with N(0, 1) added to it; without one all start at N(0, 1).
    restarts: int = 1
    temperature: float = 1.0  # γ of the softmax.
    # ``softmax`` as in the paper's Algorithm 1, or ``gumbel``: with fresh Gumbel noise in every step of Adam, as in
    # Jang et al. 2016. L-BFGS, which needs an objective that stays the same, never adds noise.
    relaxation: Relaxation = "softmax"
    # ``uniform``: all examples count alike, as in the paper. ``round``: each example's weight in each round is unknown
    # and found as well, as where a short last batch or several local steps give examples unlike weights. ``shared``:
    # the same, with one weight for all rounds, as where some examples may not be the client's.
    weights: Weights = "uniform"


@dataclass(frozen=True)
class Match:
    """What matching one victim's gradients gave."""

    # (n, v): the shares found, rows summing to one. They are where an optimiser stopped, not calibrated.
    beliefs: NDArray[np.float64]
    # For the best start: the mean cosine (1 is best), or the squared distance over the gradients' squared norm (0 is
    # best).
    objective: float
    weights: NDArray[np.float64]  # (T, n): the examples' weights, summing to one in each round.
    labels: NDArray[np.float64]  # (n, classes), or (n, outputs) for a regression: the labels that were given or found.
    # (n,): the value whose code is nearest to the expected one. That is the one with the largest share where there are
    # two values or these are one-hot; among more values on a line, a middle one is as well half of its neighbours, and
    # shares alone would not tell.
    decisions: NDArray[np.int64]


def match_group(
    model: nn.Module,
    loss: str,
    group: Mapping[int, Victim],
    how: Matching,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[int, Match]:
    """Match, by index, the gradients of a group of :func:`groups_of`; victim i draws from (seed, i).

    Raises
    ------
    ModelError
        If the model cannot be differentiated twice under torch.func, or does not fit.
    """
    model = model.to(device)
    with in_mode(model, training=False):
        problem = _MatchingProblem(model, loss, [*group.values()], torch.device(device))
        try:
            return dict(zip(group, problem.solve(how, generators(seed, group)), strict=True))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ModelError(
                f"gradient matching: the model or the loss {loss!r} failed ({one_line(error)}); it must be "
                "differentiable twice by torch.func, on examples of the shape given"
            ) from error


class _MatchingProblem:
    """The gradients of some victims, padded to one shape: V victims, T rounds, n examples, v values.

    Padded examples weigh nothing, and padded rounds do not count.
    """

    def __init__(self, model: nn.Module, loss: str, victims: Sequence[Victim], device: torch.device) -> None:
        self._model, self._loss, self._victims, self._device = model, soft_loss(loss), victims, device
        self._kind = loss
        records = max(len(victim.x) for victim in victims)
        rounds = max(len(victim.states) for victim in victims)
        with torch.no_grad():
            outputs = model(torch.zeros((1, *victims[0].x.shape[1:]), device=device))
        self._outputs = outputs.reshape(1, -1).shape[1]
        norms = _squared_norms(victims, rounds)
        self._counted = (norms > 0).to(device)
        shares = norms / norms.sum(dim=1, keepdim=True)
        # Weighed by these, squared distances of unit gradients add up as those of the gradients themselves.
        self._shares = shares.float().to(device)
        # Gradients of about unit norm: the squares of a converged model's would underflow.
        self._scale = torch.where(norms > 0, norms, 1.0).rsqrt().float().to(device)

        self._rounds, self._records = rounds, records

        self._layer = _input_layer(model)
        self._bases: list[Tensor | None] = []
        inputs, codes, masks, states, gradients = [], [], [], [], []
        for victim in victims:
            basis = None
            if self._layer is not None:
                basis = _basis(victim, records)
            self._bases.append(basis)
            inputs.append(_within(victim.x, basis))
            codes.append(_within(victim.codes, basis))
            masks.append(torch.ones(len(victim.x), dtype=torch.bool))
            states.append(victim.states)
            gradients.append(victim.gradients)
        self._x, self._mask = _pad(inputs, records).to(device), _pad(masks, records).to(device)
        self._codes = torch.stack(codes).to(device)

        # Gradients name the parameters; what else a state has are buffers.
        names = victims[0].gradients[0].keys()
        self._parameters = self._stack_rounds(states, names)
        self._buffers = self._stack_rounds(states, victims[0].states[0].keys() - names)
        self._targets = scale_values(self._stack_rounds(gradients, names), self._scale)
        inside = sum(target.double().flatten(2).square().sum(2) for target in self._targets.values())
        # What of the gradients no record can explain; it belongs to their norms all the same.
        self._outside = (self._counted.double() - torch.as_tensor(inside)).clamp(min=0).float()

    def _stack_rounds(self, sequences: Sequence[Sequence[Arrays]], names: Iterable[str]) -> dict[str, Tensor]:
        """Return the arrays of every round of every victim by name, (V, T, …) each."""
        stacked = {}
        for name in names:
            rows = []
            for sequence, basis in zip(sequences, self._bases, strict=True):
                tensor = torch.stack([to_tensor(arrays[name]) for arrays in sequence])
                if tensor.is_floating_point():
                    tensor = tensor.float()
                if name == self._layer:
                    tensor = torch.stack([_within(of_round, basis) for of_round in tensor])
                rows.append(tensor)
            stacked[name] = _pad(rows, self._rounds).to(self._device)
        return stacked

    def solve(self, how: Matching, draws: Sequence[np.random.Generator]) -> list[Match]:
        solve = {"cos": self._adam, "l2": self._lbfgs}[how.method]
        results = {name: value.detach() for name, value in solve(how, draws).items()}
        matches = []
        for row, victim in enumerate(self._victims):
            objectives = results["objective"][row]
            # A cosine is to be large, a distance small.
            best = int(objectives.argmax())
            if how.method == "l2":
                best = int(objectives.argmin())
            n, rounds = len(victim.x), len(victim.states)
            beliefs = _unit(results["shares"][row, best, :n])
            codes = victim.codes.astype(np.float64)
            # ‖Σ_v share_v·code_v − code_w‖² for each value w.
            distances = np.square((beliefs @ codes)[:, None] - codes).sum(axis=2)
            matches.append(
                Match(
                    beliefs=beliefs,
                    decisions=distances.argmin(axis=1),
                    objective=float(objectives[best]),
                    weights=_unit(results["weights"][row, best, :rounds, :n]),
                    labels=results["labels"][row, best, :n].double().cpu().numpy(),
                )
            )
        return matches

    def _adam(self, how: Matching, draws: Sequence[np.random.Generator]) -> dict[str, Tensor]:
        variables = self._start(how, draws)
        free = [{"params": [value], "lr": _RATES[name]} for name, value in variables.items() if value.requires_grad]
        optimizer = torch.optim.Adam(free, betas=_BETAS)
        for _ in range(how.steps):
            like = variables["logits"]
            noise = None
            # softmax((logits + Gumbel noise)/γ) is a differentiable draw of a value (Jang et al. 2016; Algorithm 1,
            # line 9). The victim's own generator draws it, so that a group of any size gives the same.
            if how.relaxation == "gumbel":
                drawn = np.stack([draw.gumbel(size=like.shape[1:]) for draw in draws])
                noise = torch.from_numpy(drawn).to(like)
            # Adam goes up: the cosine is to be 1.
            objective = self._objective(variables, how, noise)["objective"]
            optimizer.zero_grad()
            # Starts and victims share no variables: the gradient of the sum holds each one's own.
            (-objective.sum()).backward()
            optimizer.step()
        return self._objective(variables, how, None)

    def _lbfgs(self, how: Matching, draws: Sequence[np.random.Generator]) -> dict[str, Tensor]:
        starts = self._start(how, draws)
        # One start after another: L-BFGS has one step length for all of its variables.
        ends = [self._descend(starts, restart, how) for restart in range(how.restarts)]
        joined = {}
        for name in ends[0]:
            joined[name] = torch.cat([end[name] for end in ends], dim=1)
        return joined

    def _descend(self, starts: dict[str, Tensor], restart: int, how: Matching) -> dict[str, Tensor]:
        variables = {}
        for name, value in starts.items():
            start = value.detach()[:, restart : restart + 1].clone()
            variables[name] = start.requires_grad_(value.requires_grad)
        free = [value for value in variables.values() if value.requires_grad]

        descend(lambda: self._objective(variables, how, None)["objective"].sum(), free, how.steps, end=_FLAT)
        return self._objective(variables, how, None)

    def _start(self, how: Matching, draws: Sequence[np.random.Generator]) -> dict[str, Tensor]:
        """Return the variables: logits (V, R, n, v), weights (V, R, T or 1, n), labels (V, R, n, …)."""
        values = self._codes.shape[1]
        logits, labels = [], []
        for victim, draw in zip(self._victims, draws, strict=True):
            logits.append(_draw_start(draw, (how.restarts, self._records, values), victim.prior))
            if victim.y is None:
                labels.append(_draw_start(draw, (how.restarts, self._records, self._outputs), victim.label_prior))
            else:
                known = _pad([soft_targets(self._kind, victim.y, self._outputs)], self._records)
                labels.append(known.expand(how.restarts, *known.shape[1:]).clone())
        unknown = self._victims[0].y is None
        rounds = 1
        if how.weights == "round":
            rounds = self._rounds
        shape = (len(self._victims), how.restarts, rounds, self._records)
        return {
            "logits": torch.stack(logits).to(self._device).requires_grad_(),
            "labels": torch.stack(labels).to(self._device).requires_grad_(unknown),
            "weights": torch.zeros(shape, device=self._device).requires_grad_(how.weights != "uniform"),
        }

    def _objective(self, variables: dict[str, Tensor], how: Matching, noise: Tensor | None) -> dict[str, Tensor]:
        logits = variables["logits"]
        if noise is not None:
            logits = logits + noise
        # Any real logits give shares that sum to one: nothing has to be projected.
        shares = (logits / how.temperature).softmax(dim=-1)
        labels = variables["labels"]
        if labels.requires_grad and self._kind == "cross-entropy":
            labels = labels.softmax(dim=-1)
        # exp(−∞) = 0 for padded examples.
        masked = variables["weights"].masked_fill(~self._mask[:, None, None], -torch.inf)
        weights = masked.softmax(dim=-1).expand(-1, -1, self._rounds, -1)
        # Scaled as the targets are: the gradient of a weighted sum of losses is the weighted sum of gradients.
        virtual = self._gradients(shares, labels, weights * self._scale[:, None, :, None])
        pairs = [(virtual[name], target[:, None]) for name, target in self._targets.items()]
        if how.method == "l2":
            inside = sum((gradient - target).flatten(3).square().sum(3) for gradient, target in pairs)
            # Pythagoras: the part of the target within the span that examples reach, and the part beyond it, are
            # orthogonal.
            distance = self._outside[:, None] + inside
            objective = (distance * self._shares[:, None]).sum(dim=2)
        else:
            counted = self._counted[:, None].float()
            along = sum((gradient * target).flatten(3).sum(3) for gradient, target in pairs)
            squared = torch.stack([gradient.flatten(3).square().sum(3) for gradient in virtual.values()]).sum(0)
            cosine = along / (squared + torch.finfo(torch.float32).tiny).sqrt()
            objective = (cosine * counted).sum(dim=2) / counted.sum(dim=2)
        return {"objective": objective, "shares": shares, "weights": weights, "labels": labels}

    def _gradients(self, shares: Tensor, labels: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Return the gradients of the virtual examples, (V, R, T, …) for each parameter."""
        # The expected encoding of each example under its shares (Algorithm 1, line 10).
        virtual = self._x[:, None] + shares @ self._codes[:, None]

        def total(parameters: Any, buffers: Any, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            outputs = functional_call(self._model, {**parameters, **buffers}, (x,))
            return (self._loss(outputs, y) * weight).sum()

        # Rounds have models of their own, and restarts share these; victims have all of their own.
        over_rounds = vmap(grad(total), in_dims=(0, 0, None, None, 0))
        over_restarts = vmap(over_rounds, in_dims=(None, None, 0, 0, 0))
        gradients: dict[str, Tensor] = vmap(over_restarts)(self._parameters, self._buffers, virtual, labels, weights)
        return gradients


def descend(
    objective: Callable[[], Tensor],
    free: Sequence[Tensor],
    steps: int,
    *,
    end: float = 0.0,
    evaluations: int | None = None,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
) -> None:
    """Move the ``free`` variables to where the objective is least, by at most so many steps of L-BFGS.

    With ``end``, a share of the objective at the start, the search ends where no slope is larger. After so many
    ``evaluations`` of the objective it ends with the line that it searches. ``bounds`` limit each number. SciPy
    searches, because PyTorch's L-BFGS skips curvature below a fixed size, and near the prior's start all of it is.
    """

    def evaluate(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        vector_to_parameters(torch.from_numpy(point).to(free[0]), free)
        value = objective()
        gradients = torch.autograd.grad(value, free)
        return value.item() / unit, parameters_to_vector(gradients).double().cpu().numpy() / unit

    # SciPy computes in float64 on the CPU, and the objective in float32 where the model is.
    start, unit = parameters_to_vector(free).detach().double().cpu().numpy(), 1.0
    if end:
        # Steps follow from the objective's own size, which is tiny where most values are as the prior has them.
        unit = max(evaluate(start)[0], torch.finfo(torch.float32).tiny)
    limits = {"maxiter": steps, "maxfun": evaluations or _UNLIMITED, "maxcor": _MEMORY, "ftol": 0.0, "gtol": end}
    best = minimize(evaluate, start, jac=True, method="L-BFGS-B", bounds=bounds, options=limits)
    vector_to_parameters(torch.from_numpy(best.x).to(free[0]), free)


def _squared_norms(victims: Sequence[Victim], rounds: int) -> Tensor:
    """Return the gradients' squared norms (V, T) in float64, 0 for padded rounds."""
    # In float64: squares of small gradients vanish in float32.
    norms = torch.zeros(len(victims), rounds, dtype=torch.float64)
    for row, victim in enumerate(victims):
        for number, gradient in enumerate(victim.gradients):
            norms[row, number] = sum(float(np.square(array, dtype=np.float64).sum()) for array in gradient.values())
    return norms


def generators(seed: int, numbers: Iterable[int]) -> list[np.random.Generator]:
    """Make a generator for each number, whatever the others are."""
    return [np.random.default_rng((seed, number)) for number in numbers]


def groups_of(
    victims: Sequence[Victim], how: Matching, memory: int, device: torch.device
) -> Iterator[dict[int, Victim]]:
    """Yield by index the victims attacked together: those that fit into memory, or single ones for L-BFGS."""
    most = _MOST_ON_GPU
    if device.type == "cpu":
        most = _MOST_ON_CPU
    # Each restart of a victim is one start.
    most //= how.restarts
    group: dict[int, Victim] = {}
    room = float(memory)
    for index, victim in enumerate(victims):
        size = entries(victim.gradients[0]) + victim.x.size
        bytes_ = 4.0 * _COPIES * size * len(victim.states) * how.restarts
        # L-BFGS takes each victim alone, since victims in one vector would share its steps.
        if group and (bytes_ > room or len(group) >= most or how.method == "l2"):
            yield group
            group, room = {}, float(memory)
        group[index] = victim
        room -= bytes_
    if group:
        yield group


def _draw_start(draw: np.random.Generator, shape: tuple[int, int, int], prior: NDArray[np.float64] | None) -> Tensor:
    start = draw.normal(size=shape)
    if prior is not None:
        # The first start is the prior's logarithm, whose softmax is the prior.
        start[0] = 0.0
        start += np.log(np.maximum(prior, _LEAST_SHARE))
    return torch.from_numpy(start).float()


def _input_layer(model: nn.Module) -> str | None:
    """Name the weights of a linear layer that takes the examples as they are."""
    if isinstance(model, nn.Linear):
        return "weight"
    if isinstance(model, nn.Sequential):
        for name, layer in model.named_children():
            if isinstance(layer, nn.Linear):
                return f"{name}.weight"
            # Any other layer would change the examples before the first weights meet them.
            if not isinstance(layer, nn.Flatten | nn.Identity):
                return None
    return None


def _basis(victim: Victim, records: int) -> Tensor | None:
    """Return orthonormal columns (d, n + v) that span the examples and the codes, if these are fewer than the inputs.

    A first linear layer sees examples through inner products alone, and its gradient is a combination of them. In
    coordinates of that span all products are the same, and a wide input costs no more than the examples that are there.
    """
    rows, width = records + len(victim.codes), victim.x.shape[1]
    if rows >= width:
        return None
    spanning = np.zeros((rows, width))
    spanning[: len(victim.x)] = victim.x
    spanning[records:] = victim.codes
    # Q of QR has orthonormal columns with the span of its argument; rows of zeros pad it to one shape for all victims.
    return torch.from_numpy(np.linalg.qr(spanning.T)[0]).float()


def _within(rows: NDArray[Any] | Tensor, basis: Tensor | None) -> Tensor:
    tensor = to_tensor(rows, dtype=torch.float32)
    if basis is None:
        return tensor
    return tensor @ basis


def entries(arrays: Arrays) -> int:
    """Return how many numbers arrays hold together."""
    return sum(array.size for array in arrays.values())


def scale_values(values: Mapping[str, Tensor], scale: Tensor) -> dict[str, Tensor]:
    """Multiply values with a scale that has their first axes alone."""
    return {name: value * along_first(scale, value) for name, value in values.items()}


def along_first(scale: Tensor, value: Tensor) -> Tensor:
    """Return a scale that has a value's first axes alone in a shape that broadcasts with the value."""
    return scale.reshape(*scale.shape, *[1] * (value.ndim - scale.ndim))


def _pad(tensors: Sequence[Tensor], length: int) -> Tensor:
    padded = tensors[0].new_zeros((len(tensors), length, *tensors[0].shape[1:]))
    for row, tensor in enumerate(tensors):
        padded[row, : len(tensor)] = tensor
    return padded


def _unit(rows: Tensor) -> NDArray[np.float64]:
    """Return rows in float64 that sum to one."""
    array = rows.double().cpu().numpy()
    return np.asarray(array / array.sum(axis=-1, keepdims=True))
