"""Algorithm 4 of Driouich et al. 2022: the value with the smallest loss under a client's local optimum.

It takes any model, any loss and an attribute of any values. The optimum is extrapolated.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedattack.threats.attribute.attribute_model import Array, AttributeModel, State
from fedattack.threats.attribute.client_messages import ClientMessages
from fedattack.threats.attribute.imputation import draw_largest
from fedattack.threats.attribute.local_optimum import extrapolate
from fedattack.threats.attribute.optimum import Optimum

_PASSES = 50
"""Passes of expectation and maximisation, by which the variance of squared errors is found."""


def smallest_loss(losses: Array, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return the value with the smallest loss for each example (Algorithm 4, line 2).

    ``losses`` is (n, v). Returns (n,) indices of values: equals are drawn, and −1 where no loss is finite.
    """
    finite = np.where(np.isfinite(losses), losses, np.inf)
    return np.where(np.isfinite(losses).any(axis=1), draw_largest(-finite, generator), -1)


def beliefs_of(losses: Array, prior: Array, *, gaussian: bool) -> tuple[Array, float]:
    """Return what a model says of the attribute, and how well it explains the labels.

    Bayes' rule with the likelihood exp(−loss), or, for squared errors, a normal one whose variance is the likeliest.

    ``losses`` (n, v) are of each example with each value, ``prior`` (v,) the shares of the values; ``gaussian`` says
    whether the losses are squared errors. Returns beliefs (n, v), rows summing to one (the prior where losses are not
    finite), and the mean log likelihood of the labels, up to a constant; −inf if a loss is not finite.
    """
    with np.errstate(divide="ignore"):
        log_prior = np.log(prior)
    usable = np.isfinite(losses).all(axis=1)
    beliefs = np.tile(prior, (len(losses), 1))
    if not usable.any():
        return beliefs, -math.inf
    finite = losses[usable]
    tiny = np.finfo(float).tiny
    # With σ² = 1/2, loss/(2σ²) is the loss itself: one formula serves all losses.
    variance, passes = 0.5, 1
    if gaussian:
        variance, passes = max(float(finite.min(axis=1).mean()), tiny), _PASSES
    for _ in range(passes):
        # p(value | label) ∝ p(value)·exp(−loss/2σ²), with the largest term taken out so that nothing overflows.
        logits = log_prior - finite / (2 * variance)
        top = logits.max(axis=1, keepdims=True)
        weights = np.exp(logits - top)
        total = weights.sum(axis=1, keepdims=True)
        posterior = weights / total
        evidence = float(np.mean(top + np.log(total)))
        if gaussian:
            # The density of a normal distribution has a factor 1/σ. The likeliest σ² is the expected squared error.
            evidence -= 0.5 * math.log(variance)
            variance = max(float((posterior * finite).sum(axis=1).mean()), tiny)
    beliefs[usable] = posterior
    if not usable.all():
        evidence = -math.inf
    return beliefs, evidence


class ByLoss:
    """Fills in the value with the smallest loss; see :class:`fedattack.threats.attribute.optimum.FillIn`."""

    weighs = False

    def __init__(self, model: AttributeModel) -> None:
        self._model = model

    def reconstruct(self, messages: ClientMessages, rows: NDArray[np.int64]) -> Optimum:
        """Extrapolate a client's optimum."""
        return self.choose_likeliest(messages, rows)

    def choose_likeliest(
        self,
        messages: ClientMessages,
        rows: NDArray[np.int64],
        decoded: Sequence[Optimum] = (),
        rank: int | None = None,
    ) -> Optimum:
        """Choose among extrapolations, and what was decoded, the one under which the client's labels are the likeliest.

        The model that the client returned last is among them.
        """
        returned, *others = extrapolate(np.stack(messages.received), messages.moves(), messages.precision)
        proposals = [*decoded, Optimum(returned, "last returned", rank)]
        proposals += [Optimum(parameters, "extrapolated", rank) for parameters in others]
        states = [self._model.state(proposal.parameters, messages.last) for proposal in proposals]
        evidence = []
        for losses in self._model.losses(states, rows):
            evidence.append(beliefs_of(losses, self._model.prior, gaussian=self._model.gaussian)[1])
        # The first of equals: what was decoded before the last returned model, and that before extrapolations.
        return proposals[int(np.argmax(evidence))]

    def decide(
        self,
        state: State | None,
        rows: NDArray[np.int64],
        losses: Array,
        optimum: Optimum,
        generator: np.random.Generator,
    ) -> tuple[NDArray[np.int64], float | None]:
        """Take the values with the smallest loss; the attribute has no one weight."""
        return smallest_loss(losses, generator), None

    def decide_by_moments(
        self, rows: NDArray[np.int64], optimum: Optimum, generator: np.random.Generator
    ) -> tuple[NDArray[np.int64], Array] | None:
        """Return nothing: no problem is decoded."""
        return None
