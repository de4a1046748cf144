"""A column of numbers that the server lacks: which number fits a client's model, or its updates, best.

Diana et al. 2024, "Attribute inference attacks for federated regression tasks", decode the model that a client would
have trained alone, and fill in what this model makes likeliest. Here the column is a number: each number of a grid is
tried (:mod:`fedattack.threats.attribute.by_loss`), and the estimate is the mean of what is then believed of them.
The other method is gradient matching, whose relaxation between the least and the largest number is a number, too.

The paper's attribute has two values, and its local model is decoded to the last digit for least squares. Here the model
is extrapolated from what the client sent, whatever the loss.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.base import Attack, Progress, Seen
from fedattack.attacks.knowledge import Knowledge, PartialRecords
from fedattack.base.errors import NeedsError
from fedattack.base.stored import Axes, Name
from fedattack.record import Record
from fedattack.threats.attribute import aia, ara
from fedattack.threats.attribute.filled_in import FilledIn
from fedattack.threats.attribute.options import GradientMatchingOptions, ModelBasedOptions, NumberOptions

MAIN = "reconstructed"
"""The method that was fixed in advance as the one that counts."""

# Steps of progress, of which each of the two attacks has a half.
_WHOLE = 100

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class EstimatedNumbers:
    """The numbers of n examples, estimated by several methods.

    Attributes
    ----------
    clients
        The clients that are asked about.
    methods
        What estimates them.
    targets
        Fingerprint of the examples that are asked about.
    estimates
        (methods, n): NaN for no answer.
    """

    clients: tuple[Name, ...]
    methods: tuple[Name, ...]
    targets: Name
    estimates: Annotated[NDArray[np.float64], Axes("methods", "records", nan=True)]


class NumbersOfColumn(Attack):
    """Numbers under three models, global, last returned and reconstructed, and by gradient matching."""

    options = NumberOptions()
    found = EstimatedNumbers
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss",
        "for gradients, how clients train: learning rate, epochs, batch size",
        "clients' examples and labels except one column, its least and largest number, and whose they are",
    )

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say where the column is no number."""
        if knowledge.partial is None or knowledge.partial.span is not None:
            return []
        return [f"it asks for a number, and this column has {len(knowledge.partial.domain)} values"]

    def attack(self, seen: Seen) -> EstimatedNumbers:
        """Estimate by models, and by gradients where updates can be used."""
        partial = seen.partial
        if partial.span is None:
            raise AssertionError("checked by run")
        first = replace(seen, progress=_halve(seen.progress, 0))
        by_models = aia.ModelBased(ModelBasedOptions(memory=self.options.memory)).attack(first)
        estimates = _estimate(by_models, partial)
        # It is about two values.
        del estimates["moments"]
        try:
            estimates |= self._match_gradients(seen, partial, partial.span)
        except NeedsError as cause:
            seen.notes.append(f"gradients were not matched: {cause}")
            seen.progress(_WHOLE, _WHOLE)
        return EstimatedNumbers(
            clients=tuple(dict.fromkeys(partial.clients.tolist())),
            methods=tuple(estimates),
            targets=partial.fingerprint,
            estimates=np.stack([*estimates.values()]),
        )

    def _match_gradients(self, seen: Seen, partial: PartialRecords, span: Floats) -> dict[str, Floats]:
        """Match gradients by a mixture of the least and the largest number, which is any number between these.

        Raises
        ------
        NeedsError
            If updates hold no gradients that are known.
        """
        training = seen.knowledge.training
        if training is None:
            raise NeedsError("it is not known how clients train")
        if training.optimizer != "SGD":
            raise NeedsError(f"clients train by {training.optimizer}, and gradients are read from updates of SGD")
        ends = replace(partial, domain=span.astype(np.float32)[:, None], names=("least", "largest"), prior=None)
        options = GradientMatchingOptions(**self.options.model_dump())
        knowledge = replace(seen.knowledge, partial=ends)
        of_ends = replace(seen, knowledge=knowledge, progress=_halve(seen.progress, 1))
        return _estimate(ara.GradientMatching(options).attack(of_ends), ends)


def _halve(progress: Progress, half: int) -> Progress:
    """Return what says how far the first (0) or the second (1) of two attacks is, as a part of both."""

    def say(done: int, total: int) -> None:
        progress(_WHOLE // 2 * half + _WHOLE // 2 * done // max(1, total), _WHOLE)

    return say


def _estimate(found: FilledIn, partial: PartialRecords) -> dict[str, Floats]:
    """Return by method the mean of what is believed of the values, (n,); NaN for no answer."""
    values = partial.domain[:, 0].astype(np.float64)
    means = found.beliefs @ values
    return dict(zip(found.methods, np.where(found.decisions < 0, np.nan, means), strict=True))
