"""Cases of runs that lie in no folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedattack.attacks import Knowledge, Scores
from fedattack.audit.judge import Case
from fedattack.audit.opened import Run
from fedattack.audit.truth import Truth
from fedattack.record.folder import Part

C = TypeVar("C", bound=Case[Any])


def make_case(
    kind: type[C],
    seed: int,
    scores: Scores,
    truth: Truth,
    record: Any,
    knowledge: Knowledge | None = None,
    beside: Sequence[Scores] = (),
) -> C:
    """Make the case of a run with these scores; ``beside`` are scores of attacks that are judged later."""
    by_attack = {each.attack: each for each in (scores, *beside)}
    run = Run(Part(Path(), ""), seed, record, knowledge or Knowledge(), truth, by_attack)
    # The record is taken as it is, whoever stands in its place.
    vars(run).update(seed=seed, record=record)
    return kind(run, scores.attack)


def change_case(case: C, **changes: Any) -> C:
    """Return a case with another ``seed``, ``truth``, ``record``, or with other ``scores`` or ``knowledge``."""
    same = {name: getattr(case, name) for name in ("seed", "scores", "truth", "record", "knowledge")}
    return make_case(type(case), **{**same, **changes})
