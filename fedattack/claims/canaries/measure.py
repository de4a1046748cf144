"""What canaries show of a recorded run: a lower bound on ε, and how it stands beside the claim.

Both kinds of canaries are measured in one way: scores of those that took part are held against a null. Two bounds have
97.5 % each, so that the higher one holds at 95 %: one by the Gaussian shape of the scores, and one by their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from fedattack.base.errors import ConfigError, NeedsError
from fedattack.claims.accounting import compute_epsilon
from fedattack.claims.canaries.bounds import CanaryScores, bound_by_extremes, bound_by_ranks, bound_by_shape
from fedattack.claims.canaries.clients import score_clients
from fedattack.claims.canaries.examples import join_names, score_examples
from fedattack.claims.canaries.file import CANARIES, EXAMPLES, Canaries, CanaryExamples
from fedattack.claims.canaries.gradients import Gradients
from fedattack.claims.claim import Claim
from fedattack.claims.figures import in_figures
from fedattack.claims.finding import CANARIES as FINDING
from fedattack.claims.finding import UNCHECKED, ClaimFinding, choose_scope, judge_lower_bound, scope_of
from fedattack.claims.tester import LEVEL
from fedattack.privacy import Epsilon
from fedattack.privacy.gaussian import epsilon_of
from fedattack.record import Record

_ASSUMES = {
    "client": "the scores of canaries are independent draws of one distribution; other clients may send anything",
    "record": "the coins of the canaries were fair, and nobody but the auditor knew them",
}


@dataclass(frozen=True)
class CanaryResult:
    """What canaries show.

    Attributes
    ----------
    kind, count
        ``client`` or ``record``, and how many.
    bound_message, bound_run
        Lower bounds on ε at ``confidence``, of one released model (or message) and of the run; None if there is none.
    estimate
        A point estimate of the run's ε. It is above the truth about as often as below.
    confidence
        Of the bounds.
    accountant
        What arithmetic gives for the run, at most; None if the claim lacks numbers.
    cost
        What the canaries cost the model; None if that is not known.
    scores
        ``in``: of canaries that took part. ``out``: of examples that were left out, or directions that nobody sent.
    notes
        What a reader should know besides, a sentence each.
    by_order
        What ranks or guesses show alone of the run, where the bounds rest on a Gaussian shape; else None.
    """

    kind: Literal["client", "record"]
    count: int
    bound_message: float | None
    bound_run: float
    estimate: float
    confidence: float
    accountant: float | None
    cost: Mapping[str, float] | None
    scores: Mapping[str, list[float]]
    notes: tuple[str, ...] = ()
    by_order: float | None = None


def measure_canaries(
    record: Record,
    canaries: Canaries,
    claim: Claim,
    *,
    examples: CanaryExamples | None = None,
    model: Any = None,
    loss: str = "cross-entropy",
    nodes: Mapping[str, str] | None = None,
    public: tuple[NDArray[Any], NDArray[Any]] | None = None,
) -> CanaryResult:
    """Bound the ε of a recorded run from below by its canaries.

    Parameters
    ----------
    record
        Of the run; both views will do.
    canaries
        As ``canaries.toml`` has them.
    claim
        What is claimed; δ counts, and what is configured stands beside the bound.
    examples, model, loss
        Of canary examples: these, a torch module whose parameters have the record's names, and what clients minimise.
    nodes
        Of canary examples: the client behind each node. Without, or in the aggregate view, updates of the common model
        stand in for those of clients, which tell less.
    public
        Of canary examples: some examples and labels like those of clients that no client holds, such as of a test
        split. What an update has of their gradients says nothing of a canary, and is taken out.

    Raises
    ------
    NeedsError
        If the record has no round whose common model is known before and after, or examples come without a model.
    RecordError
        If it is damaged.
    ConfigError
        If the claim is not about what the canaries are.
    """
    _check_unit(canaries, claim)
    if canaries.kind == "client":
        return _measure(score_clients(record, canaries), canaries.count, claim)
    if examples is None or model is None:
        raise NeedsError("canary examples need the examples themselves, and the model; give both")
    if len(examples.y) != canaries.count:
        raise ConfigError(
            f"{CANARIES} speaks of {canaries.count:,} canaries, and {EXAMPLES} holds {len(examples.y):,}; give the two "
            "that were written together"
        )
    scores = score_examples(record, examples, Gradients(model, loss, examples, public), nodes or {})
    return _measure(scores, canaries.count, claim)


def _measure(scores: CanaryScores, count: int, claim: Claim) -> CanaryResult:
    """Bound ε by scores of canaries, whichever kind they are."""
    accountant = compute_epsilon(claim).run
    by_shape = bound_by_shape(scores.inside, scores.null, claim.delta)
    by_order = bound_by_ranks(scores.inside, scores.null, claim.delta)
    order, ceiling = "ranks", math.inf
    if scores.coins is not None:
        # The ranks are held against the Gaussian tail of examples that were left out: that is shape, too.
        by_shape = max(by_shape, by_order)
        by_order, ceiling = bound_by_extremes(*scores.coins, claim.delta)
        order = "guesses"
    message = _bound_message(scores, claim)
    rests_on_shape = by_shape >= by_order
    return CanaryResult(
        kind="client" if scores.coins is None else "record",
        count=count,
        bound_message=message,
        bound_run=max(by_shape, by_order),
        estimate=epsilon_of(scores.null.estimate_shift(scores.inside), claim.delta),
        confidence=LEVEL,
        accountant=None if accountant is None else accountant.high,
        cost=scores.cost,
        scores={"in": scores.inside.tolist(), "out": scores.outside.tolist()},
        notes=(_describe_bound(by_shape, by_order, order), *_list_notes(scores, claim, ceiling)),
        by_order=by_order if rests_on_shape or (scores.coins is None and claim.epsilon_of == "message") else None,
    )


def _bound_message(scores: CanaryScores, claim: Claim) -> float | None:
    """Bound the ε of one round, if all give away the same: together they are told apart by √rounds times its shift."""
    if scores.coins is not None or claim.draws:
        return None
    shift = scores.null.find_shift(scores.inside)
    # Equal shifts in R rounds add up to √R times one.
    return None if shift is None else epsilon_of(shift / math.sqrt(scores.rounds), claim.delta)


def _describe_bound(by_shape: float, by_order: float, order: str) -> str:
    """Say which of the two bounds counts, and why."""
    if by_shape == -math.inf:
        return f"the bound is by {order}, because the scores are not Gaussian, or too few to tell"
    if by_shape >= by_order:
        return (
            f"the bound is by the scores' Gaussian shape, which is assumed of the tails; by {order} it is "
            f"{by_order:.3g}"
        )
    return f"the bound is by {order}, which say more than the scores' shape"


def _list_notes(scores: CanaryScores, claim: Claim, ceiling: float) -> Iterator[str]:
    if scores.coins is not None:
        if scores.left_out:
            yield f"updates that hold numbers that are not finite are left out: {join_names(scores.left_out)}"
        yield f"by guesses, {len(scores.coins[0])} coins can show no more than ε = {ceiling:.3g}"
        return
    if scores.rounds != claim.rounds:
        yield (
            f"the record has {scores.rounds} rounds, and the claim is for {claim.rounds}: the bound is that of the "
            "record"
        )
    if claim.relation == "replace":
        yield (
            "a canary is compared with no update at all, which is half the distance that the claim's neighbours may "
            "have"
        )


def _check_unit(canaries: Canaries, claim: Claim) -> None:
    wanted = "client" if canaries.kind == "client" else "example"
    if claim.protects != wanted:
        raise ConfigError(
            f"the canaries are {wanted}s, and the claim is about one {claim.protects}; expected the same unit"
        )
    if wanted == "example" and claim.relation != "add-remove":
        raise ConfigError(
            "canary examples are there or not, and the claim is about replacing one; a claim for add-remove is needed"
        )


def canary_finding(claim: Claim, result: CanaryResult) -> ClaimFinding:
    """Hold the bound of canaries against the declared ε; the finding is ``claim.epsilon-canaries``."""
    value = choose_scope(claim, result.bound_message, result.bound_run)
    said = f"at {result.confidence:.0%}, {result.count:,} canaries show"
    if value is None:
        verdict, reason = UNCHECKED, f"{said} nothing of {scope_of(claim)} by itself, whose ε is claimed"
    else:
        shown = f"{said} that ε of {scope_of(claim)} is {in_figures(value)} or more"
        verdict, reason = judge_lower_bound(claim, value, shown)
    message = None if result.bound_message is None else Epsilon(result.bound_message, math.inf)
    return ClaimFinding(
        name=FINDING,
        declared=claim.epsilon,
        scope=claim.epsilon_of,
        value=value,
        message=message,
        run=Epsilon(result.bound_run, math.inf),
        verdict=verdict,
        reason=reason,
        notes=result.notes,
        assumes=(_ASSUMES[result.kind],),
    )


def canary_sentence(claim: Claim, finding: ClaimFinding, result: CanaryResult) -> str:
    """Say for people who are not statisticians what the canaries show."""
    if finding.value is None:
        return f"The canaries cannot show it: {finding.reason}."
    if not finding.value:
        return "The canaries in the run could not be detected."
    said = f"The canaries in the run were detected. At {100 * result.confidence:.0f} %, ε of {scope_of(claim)} is "
    said += f"{in_figures(finding.value)} or more"
    if result.by_order is None:
        return f"{said}."
    said += " if their scores are Gaussian, as they look"
    if claim.epsilon_of == "run":
        said += f"; their order alone shows {in_figures(result.by_order)}"
    return f"{said}."
