"""Attribute inference: the attacker knows the victims' examples but for one column, and asks what it holds."""

from dataclasses import replace

import numpy as np

from fedattack.attacks import Knowledge, PartialRecords
from fedattack.audit.truth import Attributes
from simulations.goals.base import Goal, TrueAnswer, auxiliary_of
from simulations.study import Study


def _pose(study: Study, common: Knowledge, rng: np.random.Generator) -> tuple[Knowledge, TrueAnswer]:
    """Gather the attacker's knowledge, and say what the column holds.

    The prior is the attribute's distribution in the training split. In a null run the truth is about the examples as
    they are, and not as they were shuffled for the training.
    """
    data, column = study.data, study.sensitive_column
    if column.domain is None:
        raise AssertionError("a sensitive column has a domain")
    codes = column.codes(data.x_train)
    parts = study.division.parts[: study.settings.victim_count]
    rows = np.concatenate(parts)
    owners = np.repeat([str(client) for client in range(len(parts))], list(map(len, parts)))
    x = data.x_train[rows]
    x[:, list(column.inputs)] = 0
    partial = PartialRecords(
        x=x,
        y=data.y_train[rows],
        clients=owners,
        columns=column.inputs,
        domain=column.domain,
        names=column.values,
        prior=np.bincount(codes, minlength=len(column.values)) / len(codes),
    )
    known = replace(common, auxiliary=auxiliary_of(study), partial=partial)
    return known, TrueAnswer(attributes=Attributes(codes[rows], column.values, tuple(owners.tolist()), column.name))


GOAL = Goal(chosen_by="sensitive", pose=_pose)
