"""Membership inference: the attacker asks of each client whether it trained on a target record."""

from dataclasses import replace

import numpy as np

from fedattack.attacks import Knowledge, Targets
from fedattack.audit.truth import NOBODY
from fedattack.base.errors import DataError
from simulations.goals.base import Goal, TrueAnswer, auxiliary_of
from simulations.goals.source import held_targets
from simulations.origins import deal_origins
from simulations.records import singles
from simulations.study import Study


def _pose(study: Study, common: Knowledge, rng: np.random.Generator) -> tuple[Knowledge, TrueAnswer]:
    """Draw the targets, and say who owns them.

    The held ones are those of source inference. Those that nobody holds come from the test split and from training
    examples that nobody uses: both are drawn as the clients' examples are.
    """
    data, division, count = study.data, study.division, study.settings.nulls
    members, owners = held_targets(study, rng)
    single_train, single_test = singles(data)
    # Clients learn from public records, too, and so does the server.
    used = np.concatenate([division.everyone, division.auxiliary, study.public_rows])
    free = np.setdiff1d(single_train, used)
    if count > len(free) + len(single_test):
        raise DataError(
            f"nulls = {count}: {len(free) + len(single_test)} examples are left that nobody holds; lower nulls, "
            "auxiliary or records-per-client, or use more data"
        )
    # Places above the training examples stand for test examples.
    places = rng.choice(np.concatenate([free, len(data.y_train) + single_test]), size=count, replace=False)
    order = rng.permutation(len(members) + count)
    rows = np.concatenate([members, places])[order]
    x = np.concatenate([data.x_train, data.x_test])[rows]
    y = np.concatenate([data.y_train, data.y_test])[rows]
    known = replace(
        common,
        targets=Targets(x, y),
        public=None if study.framework.shares_model else study.public_x,
        auxiliary=auxiliary_of(study) if len(division.auxiliary) else None,
    )
    all_owners = [*owners, *[NOBODY] * count]
    origins = [""] * len(owners) + deal_origins(study, places)
    return known, TrueAnswer(owners=[all_owners[row] for row in order], origins=[origins[row] for row in order])


GOAL = Goal(chosen_by="nulls", pose=_pose, knows_defence=True)
