"""Canary examples (Steinke et al. 2023): how clearly updates show which of them were trained on.

Each was included by a fair coin of its own. The score is what a client's update has of an example's gradient, by
regression on the gradients of all canaries of that client. The bound by guesses assumes nothing but the coins. The
bound by shape takes the scores as Gaussian.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedattack.base.errors import NeedsError
from fedattack.claims.canaries.bounds import CanaryScores, SampledNull
from fedattack.claims.canaries.directions import Arrays, models_of
from fedattack.claims.canaries.file import CanaryExamples
from fedattack.claims.canaries.gradients import CanaryUpdate, Gradients
from fedattack.record import Observation, Record, Round

# Other clients' updates that are taken out of an update at most, and how many numbers of these are held in memory.
_MOST_OTHERS = 20
_MOST_NUMBERS = 2**24
# Updates that a note names at most.
_MOST_NAMES = 5


def score_examples(
    record: Record, examples: CanaryExamples, gradients: Gradients, nodes: Mapping[str, str]
) -> CanaryScores:
    """Add up what all updates have of each canary; see :func:`fedattack.claims.canaries.measure.measure_canaries`.

    Raises
    ------
    NeedsError
        If no update is there, or none is finite.
    """
    left_out: list[str] = []
    total, seen = np.zeros(len(examples.y)), np.zeros(len(examples.y))
    for update in _read_updates(record, examples, nodes, left_out):
        total[update.rows] += gradients.scores(update)
        seen[update.rows] += 1
    if not seen.any():
        said = f"{record.path}: it holds no reply of a client with canaries, and no change of the common model"
        if left_out:
            said += f" but those that are not finite: {join_names(left_out)}"
        raise NeedsError(said)
    # A canary whose client never took part has a score of 0, and its coin is a guess.
    scores = np.asarray(total / np.sqrt(np.maximum(seen, 1)))
    inside, outside = scores[examples.included], scores[~examples.included]
    coins = scores, examples.included
    return CanaryScores(inside, outside, SampledNull(outside), coins=coins, left_out=left_out)


def join_names(names: Sequence[str]) -> str:
    """Name the first updates of those that were left out, and count the others."""
    listed = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    if more > 0:
        listed += f", and {more} more"
    return listed


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
        # A client may have taken part without canaries.
        if not len(rows) or reply.received is None:
            continue
        update = reply.update()
        if _is_finite(update):
            # Other clients' updates share what all have in common, which is taken out.
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
