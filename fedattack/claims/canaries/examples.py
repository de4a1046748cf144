"""Canary examples (Steinke et al. 2023): a lower bound on ε from guesses which of them were trained on.

Each was included by a fair coin of its own. The score is what a client's update has of an example's gradient, by
regression on the gradients of all canaries of that client. The bound by guesses assumes nothing but the coins. The
bound by shape takes the scores as Gaussian.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import NeedsError
from fedattack.claims.canaries.bounds import Scores, bound_by_guesses, bound_by_two_samples, count_right_guesses
from fedattack.claims.canaries.file import CanaryExamples
from fedattack.claims.canaries.gradients import CanaryUpdate, Gradients
from fedattack.claims.canaries.models import Arrays, models_of
from fedattack.claims.canaries.result import BoundPair, CanaryResult
from fedattack.claims.claim import Claim
from fedattack.claims.tester import LEVEL
from fedattack.privacy.gaussian import epsilon_of
from fedattack.record import Observation, Record, Round

# Other clients' updates that are taken out of an update at most, and how many numbers of these are held in memory.
_MOST_OTHERS = 20
_MOST_NUMBERS = 2**24
# Updates that a note names at most.
_MOST_NAMES = 5


# How many guesses are tried, as shares of all coins; fixed before any score is seen.
_GUESSED = (0.1, 0.35, 1.0)


def bound_by_extremes(scores: Scores, included: NDArray[np.bool_], delta: float) -> tuple[float, float]:
    """Bound ε by guesses from the extremes of the scores, under Theorem 5.2 of Steinke et al. (2023).

    The theorem bounds how often so many guesses are right, if the run is (ε, δ)-DP and coins are fair. Several numbers
    of guesses share half of the error (Bonferroni); the bound by shape has the other half.

    Returns
    -------
    float, float
        The bound, and the highest one that so many coins could show.
    """
    bound, ceiling = 0.0, 0.0
    error = (1 - LEVEL) / 2 / len(_GUESSED)
    for share in _GUESSED:
        guesses, right = count_right_guesses(scores, included, share)
        bound = max(bound, bound_by_guesses(len(scores), guesses, right, delta, error))
        ceiling = max(ceiling, bound_by_guesses(len(scores), guesses, guesses, delta, error))
    return bound, ceiling


def measure_examples(
    record: Record,
    examples: CanaryExamples,
    claim: Claim,
    accountant: float | None,
    gradients: Gradients,
    nodes: Mapping[str, str],
) -> CanaryResult:
    """Bound ε by canary examples; see :func:`fedattack.claims.canaries.measure.measure_canaries`."""
    left_out: list[str] = []
    scores = score_examples(record, examples, gradients, nodes, left_out)
    inside, outside = scores[examples.included], scores[~examples.included]
    by_guess, ceiling = bound_by_extremes(scores, examples.included, claim.delta)
    bounds = BoundPair(bound_by_two_samples(inside, outside, claim.delta), by_guess, "guesses")
    notes = [bounds.describe()]
    if left_out:
        notes.append(f"updates that hold numbers that are not finite are left out: {_join_names(left_out)}")
    notes.append(f"by guesses, {len(scores)} coins can show no more than ε = {ceiling:.3g}")
    return CanaryResult(
        kind="record",
        count=len(examples.y),
        bound_message=None,
        bound_run=bounds.higher,
        estimate=_estimate_epsilon(inside, outside, claim.delta),
        confidence=LEVEL,
        accountant=accountant,
        cost=None,
        scores={"in": inside.tolist(), "out": outside.tolist()},
        notes=tuple(notes),
        by_order=bounds.by_order if bounds.rests_on_shape else None,
    )


def score_examples(
    record: Record,
    examples: CanaryExamples,
    gradients: Gradients,
    nodes: Mapping[str, str],
    left_out: list[str],
) -> Scores:
    """Add up what all updates have of each canary; ``left_out`` gets the names of updates that are not finite."""
    total, seen = np.zeros(len(examples.y)), np.zeros(len(examples.y))
    for update in _read_updates(record, examples, nodes, left_out):
        total[update.rows] += gradients.scores(update)
        seen[update.rows] += 1
    if not seen.any():
        said = f"{record.path}: no reply of a client with canaries, and no move of the common model, is there"
        if left_out:
            said += f" but those that are not finite: {_join_names(left_out)}"
        raise NeedsError(said)
    # A canary whose client never took part has a score of 0, and its coin is a guess.
    return np.asarray(total / np.sqrt(np.maximum(seen, 1)))


def _join_names(names: Sequence[str]) -> str:
    listed = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    if more > 0:
        listed += f", and {more} more"
    return listed


def _estimate_epsilon(inside: Scores, outside: Scores, delta: float) -> float:
    if min(len(inside), len(outside)) < 2 or not np.ptp(outside):
        return 0.0
    deviation = float(outside.std(ddof=1))
    apart = float(inside.mean() - outside.mean()) / deviation
    return epsilon_of(max(apart, 0.0), delta)


def _read_updates(
    record: Record, examples: CanaryExamples, nodes: Mapping[str, str], left_out: list[str]
) -> Iterator[CanaryUpdate]:
    """Read the updates of clients with canaries; those of the common model where clients are not known."""
    for round_ in record:
        if record.view == "individual" and nodes:
            yield from _read_replies(round_, examples, nodes, left_out)
        else:
            yield from _read_common(round_, examples, left_out)


def _read_common(round_: Round, examples: CanaryExamples, left_out: list[str]) -> Iterator[CanaryUpdate]:
    models = models_of(round_)
    if models is None:
        return
    before, after = models
    update = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for name, array in before.items():
            if np.issubdtype(array.dtype, np.floating):
                update[name] = (after[name].astype(np.float64) - array.astype(np.float64)).astype(np.float32)
    if _is_finite(update):
        yield CanaryUpdate(np.arange(len(examples.y)), before, update)
    else:
        left_out.append(f"the common model of round {round_.number}")


def _read_replies(
    round_: Round, examples: CanaryExamples, nodes: Mapping[str, str], left_out: list[str]
) -> Iterator[CanaryUpdate]:
    replies = [reply for reply in round_.observations if reply.status == "ok" and reply.received is not None]
    others = _read_others(replies)
    for reply in replies:
        client = nodes.get(reply.node, "")
        rows = np.flatnonzero(examples.client == client)
        if not len(rows) or reply.received is None:
            continue
        update = reply.update()
        if _is_finite(update):
            beside = [other for node, other in others if node != reply.node]
            yield CanaryUpdate(rows, reply.received, update, beside)
        else:
            left_out.append(f"that of client {client} in round {round_.number}")


def _read_others(replies: Sequence[Observation]) -> list[tuple[str, Arrays]]:
    """Read the first updates of a round, as many as fit into memory."""
    others: list[tuple[str, Arrays]] = []
    numbers = 0
    for reply in replies[:_MOST_OTHERS]:
        update = reply.update()
        numbers += sum(array.size for array in update.values())
        if numbers > _MOST_NUMBERS:
            break
        if _is_finite(update):
            others.append((reply.node, update))
    return others


def _is_finite(arrays: Arrays) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays.values())
