"""Private attributes: the attacker asks what all examples of a client have in common."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import AuxiliaryAttribute, Knowledge
from fedattack.audit.truth import ClientAttribute
from simulations.goals.base import Goal, TrueAnswer, auxiliary_of
from simulations.study import Study


def values_of_clients(study: Study, name: str) -> NDArray[np.int64]:
    """Return each client's value of a private attribute, (clients,)."""
    codes = study.private_columns[name].train
    return np.array([codes[part[0]] for part in study.division.parts], dtype=np.int64)


def _pose(study: Study, common: Knowledge, rng: np.random.Generator) -> tuple[Knowledge, TrueAnswer]:
    """Gather the attacker's knowledge, and say which values the clients have."""
    rows = study.division.auxiliary
    attributes, private = {}, {}
    for name, column in study.private_columns.items():
        attributes[name] = AuxiliaryAttribute(column.values, column.train[rows])
        private[name] = ClientAttribute(tuple(values_of_clients(study, name).tolist()), column.values)
    return replace(common, auxiliary=auxiliary_of(study), attributes=attributes), TrueAnswer(private=private)


GOAL = Goal(chosen_by="private", pose=_pose, knows_defence=True)
