"""Scores of attacks on attributes that are made by hand."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedattack.attacks import ATTACKS, Scores


def make_scores(
    attack: str,
    decisions: Mapping[str, Any],
    *,
    values: tuple[str, ...] = ("no", "yes"),
    targets: str = "",
    **rest: Any,
) -> Scores:
    """Make scores of the decisions (n,) of methods; what is not given in ``rest`` says nothing."""
    answers = np.array([*decisions.values()])
    shape = (*answers.shape, len(values))
    told: dict[str, Any] = {"classifiers": {}}
    if attack == "aia":
        told = {"server": "passive", "clients": (), "losses": np.full(shape, np.nan)}
    elif attack == "ara":
        told = {"clients": (), "rounds": {}, "weights": {}, "prior": "unknown", "label": "known", "membership": "known"}
        told["objectives"] = np.zeros((len(answers), 0))
    told |= {"beliefs": np.full(shape, 1 / len(values)), **rest}
    found = ATTACKS[attack].found
    return Scores.of(attack, found(methods=tuple(decisions), values=values, targets=targets, decisions=answers, **told))
