"""Property inference: the attacker asks which clients have something that others lack."""

from dataclasses import replace

import numpy as np

from fedattack.attacks import Knowledge, Targets
from simulations.goals.base import Goal, TrueAnswer, auxiliary_of
from simulations.study import Study


def _pose(study: Study, common: Knowledge, rng: np.random.Generator) -> tuple[Knowledge, TrueAnswer]:
    """Gather the attacker's knowledge, and say which clients have the property.

    Target records of membership, held and null, are shuffled. In a null run the attacker still expects the usual share.
    """
    data, targets, positives = study.data, study.division.targets, study.positives
    order = rng.permutation(len(targets))
    known = replace(
        common,
        auxiliary=auxiliary_of(study),
        property=study.settings.client_property,
        positive_share=study.settings.positive_share or Knowledge.positive_share,
    )
    if not len(targets):
        return known, TrueAnswer(positives=positives)
    rows = targets[order]
    known = replace(known, targets=Targets(data.x_train[rows], data.y_train[rows]))
    return known, TrueAnswer(positives=positives[order])


GOAL = Goal(chosen_by="client_property", pose=_pose)
