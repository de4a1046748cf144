"""Algorithm 3 of Driouich et al. 2022: least squares and a binary attribute.

The client's problem is decoded from its messages. Under its optimum each example's attribute has an estimate, and the
⌈ρm⌉ examples with the largest ones are marked, as many as have the second value.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from fedattack.base.errors import ModelError
from fedattack.learning import LocalSGD
from fedattack.threats.attribute.attribute_model import Array, AttributeModel, State
from fedattack.threats.attribute.by_loss import ByLoss, smallest_loss
from fedattack.threats.attribute.client_messages import ClientMessages
from fedattack.threats.attribute.local_optimum import (
    BinaryAttribute,
    LeastSquares,
    UpdateMap,
    best_attribute,
    decode_least_squares,
    decode_with_public,
)
from fedattack.threats.attribute.optimum import Optimum

_WHOLE = 0.1
"""Noise leaves the number of ones this close to a whole number, or it is not rounded."""

_UNKNOWNS = 2_000
"""No least-squares problem of a larger model is decoded: its matrix has the square of this many entries."""

_TRIED = 8
"""Examples on which it is tried whether a model is linear."""


def mark_largest(estimates: Array, ones: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return 1 for the ``ones`` largest estimates and 0 for the others (n,); equals are drawn (Algorithm 3, line 4)."""
    # lexsort takes its last key first: by estimate, and among equals by what was drawn.
    order = np.lexsort((generator.random(len(estimates)), -estimates))
    decisions = np.zeros(len(estimates), dtype=np.int64)
    decisions[order[:ones]] = 1
    return decisions


@dataclass(frozen=True)
class LinearAttribute:
    """A model whose one output is linear in its parameters, and to which a binary attribute always adds the same.

    The output for example i is (base_i + s_i·change)·θ, with s_i = 1 for the attribute's second value.
    """

    base: Array
    change: Array
    y: Array

    @classmethod
    def of(cls, model: AttributeModel) -> "LinearAttribute | None":
        """Find whether the model and the attribute are so; ``None`` if not."""
        if not model.gaussian or len(model.partial.domain) != 2 or model.size > _UNKNOWNS:
            return None
        base = _derivative(model, model.partial.complete(0))
        if base is None:
            return None
        other = _derivative(model, model.partial.complete(1))
        # The same difference for all examples, but for rounding.
        if other is None or np.ptp(other - base, axis=0).max() > 1e-6 * np.abs(other).max():
            return None
        return cls(base, (other - base).mean(axis=0), model.partial.y.astype(np.float64))

    def weight(self, flat: Array) -> float:
        """Return θ_s under some parameters (p,): by how much the second value changes the output."""
        return float(self.change @ flat)

    def estimates(self, flat: Array, rows: NDArray[np.int64]) -> Array:
        """Return s̃ (rows,) under some parameters (p,)."""
        return best_attribute(self.y[rows] - self.base[rows] @ flat, self.weight(flat))

    def attribute(self, rows: NDArray[np.int64]) -> BinaryAttribute:
        """Return some examples alone, as what is to be decoded with."""
        return BinaryAttribute(self.base[rows], self.change, self.y[rows])

    def share(self, H: Array) -> float | None:
        """Decode ρ from H (Proposition 2): from the attribute's mean, its mean square, or both, as far as they tell.

        With a 0/1 attribute the mean square is H_ss/2; with a bias H holds the mean as well, whatever the encoding.
        """
        first, step = self.base[0], self.change
        # H/2 is the mean over examples of the products of their derivatives. For a column j that never varies, such as
        # the bias, and one k that the attribute moves, that mean is first_j·(first_k + ρ·step_k). A column with itself
        # has first_k² for the first value and (first_k + step_k)² for the second. Both are linear in ρ.
        constant = (np.ptp(self.base, axis=0) == 0) & (step == 0) & (first != 0)
        moves = step != 0
        per_share = np.concatenate(
            [np.outer(first[constant], step[moves]).ravel(), ((first + step) ** 2 - first**2)[moves]]
        )
        at_zero = np.concatenate([np.outer(first[constant], first[moves]).ravel(), (first**2)[moves]])
        seen = np.concatenate([H[np.ix_(constant, moves)].ravel(), H.diagonal()[moves]]) / 2
        if not per_share.any():
            return None
        # The ρ with the least squares of errors.
        return float(per_share @ (seen - at_zero) / (per_share @ per_share))


def _derivative(model: AttributeModel, x: NDArray[np.float32]) -> Array | None:
    """Return the derivative (n, p) of a single output by the parameters if it is linear in them, else ``None``."""
    module = copy.deepcopy(model.module).double().cpu().eval()
    examples = torch.from_numpy(x).double()

    def output(flat: Tensor, rows: slice = slice(None)) -> Tensor:
        result: Tensor = functional_call(module, model.tensors(flat), (examples[rows],))
        return result

    draw = torch.Generator().manual_seed(0)
    one, two = torch.randn(2, model.size, generator=draw, dtype=torch.float64)
    with torch.inference_mode():
        try:
            tried = [output(flat, slice(0, _TRIED)) for flat in (one, two, one + two)]
        except (IndexError, RuntimeError, TypeError, ValueError) as cause:
            raise ModelError(
                f"the model failed on examples of shape {x.shape[1:]} ({cause}); give the right model"
            ) from None
        # f(θ + θ') = f(θ) + f(θ') at random θ and θ': so a linear model is, and hardly another one.
        if tried[0].numel() != len(tried[0]) or not torch.allclose(tried[0] + tried[1], tried[2], rtol=1e-9, atol=1e-9):
            return None
        # The derivative by θ_k of what is linear is its value at the k-th unit vector.
        columns = [output(unit).reshape(-1) for unit in torch.eye(model.size, dtype=torch.float64)]
    return torch.stack(columns, dim=1).numpy()


class ByEstimates:
    """Decodes least squares, and marks the largest estimates; see :class:`fedattack.threats.attribute.optimum.FillIn`.

    Where something is not determined, it does as :class:`ByLoss` does.
    """

    weighs = True

    def __init__(
        self, model: AttributeModel, linear: LinearAttribute, maps: Mapping[str, UpdateMap], training: LocalSGD
    ) -> None:
        self._model = model
        self._linear = linear
        self._maps = maps
        self._training = training
        self._by_loss = ByLoss(model)

    def reconstruct(self, messages: ClientMessages, rows: NDArray[np.int64]) -> Optimum:
        """Decode a client's local optimum from messages alone, else with its public attributes, else extrapolate."""
        fit = self._maps[messages.name]
        decoded: list[Optimum] = []
        if self._training.lr:
            total = max(1, round(messages.examples or len(rows)))
            alone = self._decode_messages(fit, total, len(rows))
            # Public attributes help if they are those of all examples that the client trains on.
            if total == len(rows) and (alone is None or not alone.is_determined):
                with_public, is_exact = self._decode_with_public(messages, fit, rows)
                if with_public is not None and is_exact:
                    return with_public
                if with_public is not None:
                    decoded.append(with_public)
            if alone is not None:
                return alone
        return self._by_loss.choose_likeliest(messages, rows, decoded, fit.rank)

    def _decode_messages(self, fit: UpdateMap, total: int, known: int) -> Optimum | None:
        """Decode from messages alone, if the client makes full batches whose steps the paper's rule describes."""
        training = self._training
        if 0 < training.batch_size < total or (training.epochs > 1 and training.momentum):
            return None
        problem = decode_least_squares(fit, lr=training.lr, steps=training.epochs, weight_decay=training.weight_decay)
        if problem is None:
            return None
        return self._describe(problem, "messages", fit.rank, total, whole=total == known)

    def _decode_with_public(
        self, messages: ClientMessages, fit: UpdateMap, rows: NDArray[np.int64]
    ) -> tuple[Optimum | None, bool]:
        """Decode with the public attributes of all the client's examples, and say whether the result is exact."""
        training = self._training
        decoded = decode_with_public(
            np.stack(messages.received),
            messages.moves(),
            self._linear.attribute(rows),
            lr=training.lr,
            steps=training.steps(len(rows)),
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )
        if decoded is None:
            return None, False
        how = "messages and public attributes"
        return self._describe(decoded.problem, how, fit.rank, len(rows), whole=True), decoded.exact

    def _describe(self, problem: LeastSquares, how: str, rank: int, total: int, *, whole: bool) -> Optimum:
        share = self._linear.share(problem.H)
        if share is not None:
            # ρ is a number of examples, of so many in all.
            ones = share * total
            if abs(ones - round(ones)) < _WHOLE:
                share = round(ones) / total
            share = min(max(share, 0.0), 1.0)
        return Optimum(problem.optimum, how, rank, problem, share, whole)

    def decide(
        self,
        state: State | None,
        rows: NDArray[np.int64],
        losses: Array,
        optimum: Optimum,
        generator: np.random.Generator,
    ) -> tuple[NDArray[np.int64], float | None]:
        """Mark as many examples as have the second value (Algorithm 3, line 4)."""
        weight = estimates = None
        if state is not None:
            flat = self._model.flat(state)
            if np.isfinite(flat).all():
                weight = self._linear.weight(flat)
                estimates = self._linear.estimates(flat, rows)
        if estimates is None or optimum.share is None:
            return smallest_loss(losses, generator), weight
        return mark_largest(estimates, optimum.ones(len(rows)), generator), weight

    def decide_by_moments(
        self, rows: NDArray[np.int64], optimum: Optimum, generator: np.random.Generator
    ) -> tuple[NDArray[np.int64], Array] | None:
        """Decide by all that a decoded problem holds, if the client's examples are all known."""
        if optimum.problem is None or optimum.share is None or not optimum.whole:
            return None
        # What differs by less is the rounding of the messages, which must not order examples.
        estimates = self._linear.attribute(rows).estimates(optimum.problem).round(3)
        decisions = mark_largest(estimates, optimum.ones(len(rows)), generator)
        return decisions, np.stack([1 - estimates, estimates], axis=1)
