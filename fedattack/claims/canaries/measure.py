"""What canaries show of a recorded run: a lower bound on ε.

Each kind of canary has two bounds, at 97.5 % each, of which the higher one holds at 95 %: see
:mod:`fedattack.claims.canaries.clients` and :mod:`fedattack.claims.canaries.examples`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from fedattack.base.errors import ConfigError, NeedsError
from fedattack.claims.accounting import compute_epsilon
from fedattack.claims.canaries.clients import measure_clients
from fedattack.claims.canaries.examples import measure_examples
from fedattack.claims.canaries.file import CANARIES, EXAMPLES, Canaries, CanaryExamples
from fedattack.claims.canaries.gradients import Gradients
from fedattack.claims.canaries.result import CanaryResult
from fedattack.claims.claim import Claim
from fedattack.record import Record


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
    accountant = compute_epsilon(claim).run
    most = None if accountant is None else accountant.high
    if canaries.kind == "client":
        return measure_clients(record, canaries, claim, most)
    if examples is None or model is None:
        raise NeedsError("canary examples need the examples themselves, and the model; give both")
    if len(examples.y) != canaries.count:
        raise ConfigError(
            f"{CANARIES} speaks of {canaries.count:,} canaries, and {EXAMPLES} holds {len(examples.y):,}; give the two "
            "that were written together"
        )
    return measure_examples(record, examples, claim, most, Gradients(model, loss, examples, public), nodes or {})


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
