"""Scores of property inference that are made by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedattack.attacks import Scores
from fedattack.threats.property.prolin import METHODS, AnsweredQuestions


def make_scores(
    score: np.ndarray,
    clients: Sequence[str],
    *,
    named: np.ndarray | None = None,
    rounds: int = 1,
    windows: Sequence[int] = (1,),
    **rest: Any,
) -> Scores:
    """Make scores whose methods all have ``score`` (questions, clients), and name what is above zero, or ``named``.

    What is not given in ``rest`` says nothing.
    """
    count = len(score)
    named = score > 0 if named is None else named
    shape = (len(METHODS), count, len(windows), len(clients))
    per_round = np.ones((count, rounds))
    told: dict[str, Any] = {
        "questions": tuple(f"question {row}" for row in range(count)),
        "shown": (1,),
        "unseen": 50,
        **dict.fromkeys(("posterior", "posterior_low", "posterior_high"), np.zeros_like(score)),
        **dict.fromkeys(("overlap", "accuracy", "checked"), per_round),
        **rest,
    }
    return Scores.of(
        "prolin",
        AnsweredQuestions(
            clients=tuple(clients),
            rounds=tuple(range(1, rounds + 1)),
            windows=tuple(windows),
            methods=METHODS,
            property="who",
            mode="linear",
            targets="",
            unknown=(),
            sizes=(10,),
            share=0.1,
            lasting=(0.0,) * count,
            decisions=np.broadcast_to(named[None, :, None], shape),
            scores=np.broadcast_to(score[None, :, None], shape),
            sums=np.zeros((count, rounds)),
            participation=np.ones((rounds, len(clients))),
            **dict.fromkeys(("plus_mean", "plus_sd", "minus_mean", "minus_sd"), per_round[..., None]),
            **dict.fromkeys(("plus_sample", "minus_sample"), np.zeros((count, 1, 3))),
            **told,
        ),
    )
