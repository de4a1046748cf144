"""What a goal is: what the attacker of a run wants to know."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Knowledge, Targets
from fedattack.audit.truth import Attributes, ClientAttribute
from simulations.study import Study


@dataclass(frozen=True)
class TrueAnswer:
    """What is true of what the attacker asks about; see :func:`fedattack.audit.truth.write_truth`."""

    owners: Sequence[str] | None = None
    origins: Sequence[str] | None = None
    positives: NDArray[np.bool_] | None = None
    attributes: Attributes | None = None
    private: Mapping[str, ClientAttribute] | None = None
    answers: Mapping[str, Mapping[str, NDArray[Any]]] | None = None


@dataclass(frozen=True)
class Goal:
    """What the attacker of a run wants to know.

    Attributes
    ----------
    chosen_by
        The field of the run's settings that chooses it where it is not empty; none for the goal of all other runs.
    pose
        Returns the attacker's knowledge and the answer: (study, what every attacker knows, generator) → both.
    knows_defence
        Whether the attacker knows of the clients' defence.
    """

    chosen_by: str | None
    pose: Callable[[Study, Knowledge, np.random.Generator], tuple[Knowledge, TrueAnswer]]
    knows_defence: bool = False


def auxiliary_of(study: Study) -> Targets:
    """Return the attacker's examples."""
    rows = study.division.auxiliary
    return Targets(study.data.x_train[rows], study.data.y_train[rows])
