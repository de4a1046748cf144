"""What the detectors of all rounds share, and how the auxiliary records are divided among their parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.knowledge import ModelKnowledge, Targets
from fedattack.base.machine import MEMORY
from fedattack.learning import LocalSGD
from fedattack.threats.property.options import Mode
from fedattack.threats.property.properties import Property

Part = Literal["train", "choose", "test"]

PARTS: tuple[Part, ...] = ("train", "choose", "test")
"""What auxiliary records are for: spans of directions, the choice of one, and its densities."""

SHARES: dict[Part, float] = {"train": 0.7, "choose": 0.1, "test": 0.2}
"""How the auxiliary records are divided. The paper trains on 80 % and takes the densities from the other 20 %; the part
to choose with comes out of the 80."""

# Dropout masks drawn for each record outside the auxiliary ones, which is in every batch with the property.
_MASKS: dict[Part, int] = {"train": 512, "choose": 32, "test": 128}
# Points of the mean client's path at which gradients are taken.
_POINTS = 3

# The division's own stream of random numbers.
_DIVISION = 1


@dataclass(frozen=True)
class DetectorSetting:
    """What the detectors of all rounds share.

    Attributes
    ----------
    model, training
        The clients' architecture, loss and local training.
    auxiliary
        The attacker's own examples.
    questions
        Properties to detect.
    mode
        ``linear`` or ``exact``.
    sizes
        (groups,): numbers of training examples that clients have.
    seed, device
        Of all draws; where to compute.
    memory
        Bytes that the work on one round may hold, beside the auxiliary examples and what torch takes.
    """

    model: ModelKnowledge
    training: LocalSGD
    auxiliary: Targets
    questions: Sequence[Property]
    mode: Mode
    sizes: tuple[int, ...]
    seed: int
    device: str
    memory: float = MEMORY


def divide(records: int, seed: int) -> dict[Part, NDArray[np.int64]]:
    """Divide the auxiliary records, the same for all rounds."""
    order = np.random.default_rng((seed, _DIVISION)).permutation(records)
    ends = np.cumsum([round(share * records) for share in SHARES.values()])
    train, choose, test = np.split(order, ends[:2])
    return {"train": train, "choose": choose, "test": test}


def count_masks(part: Part, random: bool) -> int:
    """Return how many dropout masks are drawn for an example; one where the model has no dropout."""
    if not random:
        return 1
    return _MASKS[part]


def count_points(setting: DetectorSetting) -> int:
    """Return at how many points of the mean client's path gradients are taken."""
    return min(_POINTS, setting.training.steps(max(setting.sizes)))
