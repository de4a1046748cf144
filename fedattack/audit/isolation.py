"""What a server that isolates clients does to them, and what an honest client could notice of it."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from fedattack.audit.finding import NOT_APPLICABLE, PROPORTION, Finding
from fedattack.audit.intervals import rate_interval
from fedattack.audit.opened import Run
from fedattack.audit.quality import measure_of, quality_of_models
from fedattack.learning import pick_device
from fedattack.record import Record
from fedattack.record.format import Arrays
from fedattack.record.means import identical

ISOLATING = "active: it isolates clients by sending them their own model back instead of the average"


def judge_isolation(
    runs: Sequence[Run],
    *,
    setting: Mapping[str, Any],
    provenance: Mapping[str, Any],
    device: str = "auto",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Finding]:
    """Describe records of an isolating server, of each seed: neither finding is a leak by itself.

    ``isolation.noticed``: in what share of the rounds in which a victim could compare them the model that it got was
    the one that it had sent, to the bit. ``isolation.accuracy``: how good the victims' own models are after their last
    round, beside the common model.
    """
    shared: dict[str, Any] = {
        "attack": "isolation",
        "view": runs[0].record.view,
        "seeds": [run.seed for run in runs],
        "verdict": NOT_APPLICABLE,
        "setting": dict(setting),
        "provenance": dict(provenance),
    }
    # By seed: rounds in which a victim was sent its own model, rounds compared, and the victims' last models.
    repeated, compared, last_models = zip(*map(_echoes, map(attrgetter("record"), runs)), strict=True)
    findings = []
    # A seed without a victim has no rate.
    if all(compared):
        low, high = rate_interval(repeated, compared)
        findings.append(
            Finding(
                metric="noticed",
                label="Rounds in which a victim got back the very model that it had sent",
                value=sum(repeated) / sum(compared),
                low=low,
                high=high,
                n=sum(compared),
                reason="an honest client that keeps its last model can compare it bit by bit with the one that it "
                "receives: an average of several clients equals none of them, so one such round exposes the server",
                **shared,
            )
        )
    of_victims: list[float] = []
    common: list[float] = []
    for index, (run, last) in enumerate(zip(runs, last_models, strict=True)):
        victims, others = _quality(run, last, device)
        of_victims += victims
        common += others
        progress(index + 1, len(runs))
    if of_victims:
        measure = measure_of(next(run.truth for run in runs if run.truth is not None).evaluation[1])
        baselines = {}
        if common:
            baselines["the others' common model"] = float(np.mean(common))
        findings.append(
            Finding(
                metric="accuracy",
                label=f"{measure[:1].upper()}{measure[1:]} of the victims' own models on the test split",
                value=float(np.mean(of_victims)),
                low=None,
                high=None,
                units={"accuracy": PROPORTION}.get(measure, measure),
                n=len(of_victims),
                baselines=baselines,
                reason="what isolation costs the isolated clients: they learn from nobody else",
                **shared,
            )
        )
    return findings


def _quality(run: Run, last: Mapping[str, Arrays], device: str) -> tuple[list[float], list[float]]:
    """Evaluate the victims' last models, and the common model of the others; empty where they are not known."""
    # The quality is a description: without a truth or a model to build there is none, and no error.
    known = run.knowledge.model
    if run.truth is None or not len(run.truth.evaluation[1]) or known is None or not known.predicts or not last:
        return [], []
    model, (x, y), on = known.build(), run.truth.evaluation, pick_device(device)
    of_victims = quality_of_models(model, list(last.values()), x, y, device=on).tolist()
    # The common model is anybody's but the victims'; without others there is none.
    if len(last) == len(run.record.nodes):
        return of_victims, []
    after = run.record.final
    if after is None:
        return of_victims, []
    return of_victims, quality_of_models(model, [after], x, y, device=on).tolist()


def _echoes(record: Record) -> tuple[int, int, dict[str, Arrays]]:
    """Count how often a node that ever was sent its own model was sent it, of how many rounds; and its last models."""
    sent: dict[str, Arrays] = {}
    repeated: dict[str, int] = {}
    compared: dict[str, int] = {}
    # Rounds in their order: what a node received is compared with what it sent in an earlier round.
    for item in record:
        for seen in item.observations:
            if seen.node in sent and seen.received is not None:
                compared[seen.node] = compared.get(seen.node, 0) + 1
                # To the bit: an average over several clients hardly gives one client's own numbers.
                repeated[seen.node] = repeated.get(seen.node, 0) + identical(sent[seen.node], seen.received)
            if seen.status == "ok" and seen.arrays is not None:
                sent[seen.node] = seen.arrays
    last: dict[str, Arrays] = {}
    echoed, rounds = 0, 0
    for node, count in repeated.items():
        # A node that was never sent its own model is no victim, and counts nowhere.
        if count:
            echoed += count
            rounds += compared[node]
            last[node] = dict(sent[node])
    return echoed, rounds, last
