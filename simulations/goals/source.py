"""Source inference: the attacker asks to which client a target record belongs."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Knowledge, Targets
from fedattack.audit.truth import NOBODY
from simulations.goals.base import Goal, TrueAnswer
from simulations.origins import deal_origins
from simulations.records import singles
from simulations.study import Study


def held_targets(study: Study, rng: np.random.Generator) -> tuple[NDArray[np.int64], list[str]]:
    """Draw the training examples that are asked about, and say who holds each.

    There are ``targets`` of each client, fewer where it holds fewer, as in the SIA paper, Section 4.2. Examples that
    occur more than once in the data are left out: they have no single owner.
    """
    single_train, _ = singles(study.data)
    is_single = np.zeros(len(study.data.y_train), dtype=np.bool_)
    is_single[single_train] = True
    chosen = []
    owners = []
    for client, part in enumerate(study.division.parts):
        candidates = np.unique(part[is_single[part]])
        targets = rng.choice(candidates, size=min(study.settings.targets, len(candidates)), replace=False)
        chosen.append(targets)
        owners += [str(client)] * len(targets)
    return np.concatenate(chosen), owners


def _pose(study: Study, common: Knowledge, rng: np.random.Generator) -> tuple[Knowledge, TrueAnswer]:
    """Draw the targets, and say who owns them.

    As many examples that no client holds are mixed with the held ones, as far as the test split reaches.
    """
    data = study.data
    members, owners = held_targets(study, rng)
    _, single_test = singles(data)
    null = rng.choice(single_test, size=min(len(members), len(single_test)), replace=False)
    origins = [""] * len(owners) + deal_origins(study, len(data.y_train) + null)
    owners += [NOBODY] * len(null)
    order = rng.permutation(len(owners))
    x = np.concatenate([data.x_train[members], data.x_test[null]])[order]
    y = np.concatenate([data.y_train[members], data.y_test[null]])[order]
    public = None if study.framework.shares_model else study.public_x
    known = replace(common, targets=Targets(x, y), public=public)
    return known, TrueAnswer(owners=[owners[row] for row in order], origins=[origins[row] for row in order])


GOAL = Goal(chosen_by=None, pose=_pose)
