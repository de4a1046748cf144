"""Clients with and without a property: how their batches and their training are drawn, whatever is made of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.base.errors import NeedsError
from fedattack.learning.importing import one_line
from fedattack.learning.inputs import Examples, examples_of, one_after_another
from fedattack.learning.shadows import ShadowModel
from fedattack.learning.torch_utils import to_tensor
from fedattack.threats.property.disaggregation import Array
from fedattack.threats.property.krylov import KrylovSpace
from fedattack.threats.property.memory import room_beside_spaces, steps_within
from fedattack.threats.property.properties import Behaviour
from fedattack.threats.property.setting import DetectorSetting, Part, divide

Features = tuple[list[Array], list[Array]]
"""Projections (clients, k) with and without the property, one array for each size of client."""

# Streams of random numbers, apart from each other and from that of the division.
_BATCHES, _TRAINING = 2, 3


def _generator(*stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(int(np.random.SeedSequence(stream).generate_state(1)[0]))


class DrawnClients(ABC):
    """Clients of one round, with and without a property: the source of updates' means, covariance and projections.

    Parameters
    ----------
    setting
        What all rounds share.
    shadow
        The clients' model.
    start
        (size,): the round's common model.
    number
        The round, from which with the seed all draws follow.
    """

    def __init__(self, setting: DetectorSetting, shadow: ShadowModel, start: Tensor, number: int) -> None:
        self.setting = setting
        self.shadow = shadow
        self.start = start
        self.number = number
        self.rows = divide(len(setting.auxiliary), setting.seed)
        self.x = examples_of(setting.auxiliary.x)
        self.y = to_tensor(setting.auxiliary.y)
        self.steps = steps_within(setting.memory, shadow.size)

    @abstractmethod
    def spaces(self) -> Iterator[KrylovSpace]:
        """Yield the Krylov space of each question, made of the part "train"."""

    @abstractmethod
    def project(self, question: int, part: Part, directions: Tensor) -> Features:
        """Project the updates of clients, made of one part, onto directions (k, size)."""

    def room(self, questions: int) -> float:
        """Return the bytes that are left beside the Krylov spaces of some questions for what passes over rows keep."""
        return room_beside_spaces(self.setting.memory, self.shadow.size, self.steps, questions)

    def numbers(self, *stream: int) -> np.random.Generator:
        """Make a generator of one use's batches, the same in all rounds: clients keep their examples."""
        return np.random.default_rng((self.setting.seed, _BATCHES, *stream))

    def masks(self, *stream: int) -> torch.Generator:
        """Make a generator of one use's local training, another in each round, the same if the round is done again."""
        return self.masks_of(*stream)()

    def masks_of(self, *stream: int) -> Callable[[], torch.Generator]:
        """Return what makes that generator, again and again, and holds nothing of this object.

        What an object holds that holds the object again would fill the memory until Python looks for such circles.
        """
        return partial(_generator, self.setting.seed, _TRAINING, self.number, *stream)

    def behaviour(self, question: int, has: bool) -> Behaviour:
        """Say what a client with or without the property does with its batch."""
        if not has:
            return "descend"
        return self.setting.questions[question].behaviour

    def counts(self, total: int) -> list[int]:
        """How many of ``total`` clients to make of each size; at least two, so that there is a variance."""
        return [max(2, total // len(self.setting.sizes))] * len(self.setting.sizes)

    def batches(
        self, question: int, has: bool, part: Part, counts: Sequence[int], generator: np.random.Generator
    ) -> Iterator[NDArray[np.int64]]:
        """Draw (clients, size) example indices for each size of client."""
        asked, rows = self.setting.questions[question], self.rows[part]
        for count, size in zip(counts, self.setting.sizes, strict=True):
            try:
                drawn = asked.draw(has, count, size, rows, generator)
                allowed = np.concatenate([rows, len(self.x) + np.arange(asked.extra_count)])
                yield _checked_batches(drawn, (count, size), allowed)
            except NeedsError as cause:
                raise NeedsError(
                    f"property {asked.name}: {cause} (of {len(self.x)} auxiliary records, {len(rows)} are kept to "
                    f"{part} with)"
                ) from None
            except Exception as cause:  # the user's code may raise anything
                raise NeedsError(f"property {asked.name}: drawing batches failed ({one_line(cause)})") from cause

    def records(self, question: int, batches: NDArray[np.int64]) -> tuple[Examples, Tensor]:
        """Look the examples (clients, size, *shape) and labels of ``batches`` up."""
        # Extra examples are counted after the auxiliary ones.
        x, y = self.x, self.y
        extra = self.setting.questions[question].extra
        if extra is not None:
            x = one_after_another(x, examples_of(extra.x))
            y = torch.cat([y, to_tensor(extra.y)])
        index = torch.as_tensor(batches)
        return x[index], y[index]


def _checked_batches(drawn: object, shape: tuple[int, int], allowed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Check what a recipe drew: other examples than those allowed may be those that the detector is fitted on."""
    batches = np.asarray(drawn)
    if batches.shape != shape or batches.dtype.kind not in "iu":
        raise NeedsError(
            f"batches must be example indices of shape {shape}, (clients, examples each); got {batches.dtype} of shape "
            f"{batches.shape}"
        )
    batches = batches.astype(np.int64)
    # By a table: a sort of all batches, as of np.setdiff1d, takes longer than a Krylov step.
    known = np.zeros(allowed.max(initial=-1) + 2, dtype=bool)
    known[allowed] = True
    strange = batches[~known[np.clip(batches, -1, len(known) - 1)]]
    if len(strange):
        raise NeedsError(f"batches must be drawn from the rows given and from extra; got example {strange.min()}")
    return batches
