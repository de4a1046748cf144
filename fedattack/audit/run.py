"""Audit a run folder: scores and truth in, ``findings.json`` and ``run.json`` out."""

import hashlib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fedattack.audit.audited import audited_of, title_of, training_of
from fedattack.audit.control import Control, with_controls
from fedattack.audit.describe import (
    curves_of,
    list_damage,
    means_of,
    notes_of,
    observed_of,
    privacy_of,
    provenance_of,
    setting_of,
    threat_model_of,
)
from fedattack.audit.finding import Finding
from fedattack.audit.isolation import judge_isolation
from fedattack.audit.judging import judge_attacks
from fedattack.audit.listing import Listing
from fedattack.audit.opened import SENT, UNANSWERED, WITNESSED, Run
from fedattack.audit.quality import measure_quality, training_accuracy
from fedattack.audit.reached import reached_of
from fedattack.audit.sent import sent_of
from fedattack.audit.untried import untried_of
from fedattack.base.errors import DataError, FedAttackError, ModelError, NeedsError, RecordError
from fedattack.base.failures import Failure, failing_alone
from fedattack.base.files import write_json, write_sealed
from fedattack.record.folder import LEFT_OUT, RunFolder
from fedattack.record.marks import RecordMark

FINDINGS = "findings.json"
RUN = "run.json"

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many steps are done, and of how many."""


def audit_runs(
    folder: RunFolder,
    runs: Sequence[Run],
    *,
    device: str = "auto",
    progress: Progress | None = None,
    listed: Callable[[Sequence[Listing]], object] | None = None,
    failed: MutableMapping[str, Failure] | None = None,
    check: Callable[[Sequence[Finding]], object] | None = None,
) -> tuple[list[Finding], dict[str, Any]]:
    """Judge every attack that has scores, and write what was found to the run folder.

    Without the truth, findings are "not applicable": what the attack decided is in its scores, whether that is right
    cannot be known.

    Parameters
    ----------
    runs
        One for each seed, as the folder holds them.
    device
        Where models are evaluated.
    listed
        Is given what the judges list one by one, before the findings are written.
    failed
        Is told what fails alone, and why: an attack that cannot be judged, by its name, and other parts of the audit.
        All else is written, with these reasons. ``None`` to raise the first one.
    check
        Raises an error where it is given findings that nobody could show.

    Returns
    -------
    tuple
        The findings, and the facts of the run that ``run.json`` holds.

    Raises
    ------
    TrustError
        If models are to be evaluated, and the folder names code for them that is not trusted.
    FaultError
        If no attack could be judged, and one of them failed in a way that nobody foresaw.
    DataError
        If there are no scores, none of them can be judged, or the truth is damaged.
    RecordError
        If a record is missing or damaged.
    """
    # Without a caller that shows progress nobody is told.
    tell = progress or (lambda step, done, total: None)
    study = folder.study
    setting = setting_of(study, runs)
    provenance = provenance_of(study, runs, setting)
    listings: list[Listing] = []
    findings = judge_attacks(
        runs, setting=setting, provenance=provenance, listings=listings, failed=failed, check=check
    )
    # An audit in which every attack failed has nothing to say, and ends with the first failure.
    if failed and not findings and UNANSWERED not in study:
        name, first = next(iter(failed.items()))
        first.end(f"{name} could not be judged")
    unjudged = dict(failed or {})
    # Controls were made before, by the audit of an app, which notes them in the study.
    controls = {attack: Control(**control) for attack, control in study.get("controls", {}).items()}
    # Through an app's own step no replay of the true examples shows that the search follows the client.
    needed = ["inversion"] if runs[0].knowledge.model is None else []
    findings = with_controls(findings, controls, needed)
    if runs[0].record.server == "isolating":
        with failing_alone(failed, "what isolation does to clients"):
            findings += judge_isolation(
                runs,
                setting=setting,
                provenance=provenance,
                device=device,
                progress=partial(tell, "isolated models"),
            )
    observed = observed_of(runs)
    name, server = f"audit of {study.get('app', folder.path.name)}", runs[0].record.server
    facts = {
        "title": title_of(list(runs[0].scores), setting, name, server=server),
        "audited": audited_of(study, runs, setting),
        "untried": untried_of(runs, study.get("untried"), unjudged, study.get("remedies")),
        "threat_model": threat_model_of(runs),
        "means": means_of(runs, study.get("means", "")),
        "setting": setting,
        "provenance": provenance,
        "observed": observed,
        "reached": reached_of(runs[0].sent),
        "notes": notes_of(runs),
        # What was audited, by the hash of its index: `validate` holds the records against it.
        "records": {run.part.place: vars(RecordMark.of(run.record)) for run in runs},
    }
    if not findings and UNANSWERED in study:
        facts[UNANSWERED] = study[UNANSWERED]
        # What witnesses said stands first: it explains why nothing could be asked.
        facts["notes"] = list(dict.fromkeys([*study.get(WITNESSED, ()), *facts["notes"]]))
    if listed is not None:
        with failing_alone(failed, "the tables for reviewers"):
            listed(listings)
    with failing_alone(failed, "what clients send"):
        facts["sent"] = _describe_sent(runs[0], study)
    facts |= _truths(runs, observed["in_plaintext"], device, tell, failed)
    left_out = [*list_damage(runs), *study.get(LEFT_OUT, ())]
    # Failures that belong to an attack stand beside its question already.
    for what, failure in (failed or {}).items():
        if what not in unjudged:
            left_out.append(f"{what}: {failure.why}")
    if training := training_of(study, runs[0]):
        facts["training"] = training
    if left_out:
        facts[LEFT_OUT] = left_out
    write_json(folder.path / FINDINGS, list(map(Finding.to_dict, findings)))
    # run.json binds the findings: who changes these alone is noticed.
    facts["findings_sha256"] = hashlib.sha256((folder.path / FINDINGS).read_bytes()).hexdigest()
    # Written last: a folder without a run.json was not audited to its end.
    write_sealed(folder.path / RUN, facts)
    return findings, facts


def _describe_sent(run: Run, study: Mapping[str, Any]) -> dict[str, Any]:
    """Say what clients send, as witnesses saw it of the first run, and as its record shows it."""
    witnessed: Mapping[str, Any] = {"arrays": (), "unread": ""}
    if run.truth is not None:
        witnessed = {"arrays": run.truth.sent, "unread": run.truth.unread}
    elif UNANSWERED in study:
        witnessed = study.get(SENT, witnessed)
    return sent_of(run.sent, witnessed["arrays"], witnessed["unread"])


def _truths(
    runs: Sequence[Run],
    plaintext: Sequence[str],
    device: str,
    tell: Progress,
    failed: MutableMapping[str, Failure] | None,
) -> Mapping[str, Any]:
    """Return what the truth adds to the facts of the run: curves, guarantees, and who holds what."""
    facts: dict[str, Any] = {}
    quality, trained, private = [], [], []
    for seed in runs:
        if seed.truth is None:
            continue
        if seed.truth.privacy is not None:
            private.append(seed.truth.privacy)
        if seed.knowledge.asked() == seed.truth.targets:
            what, models = (seed.record, seed.knowledge, seed.truth), f"models of {seed.part.label}"
            # Whose replies are no models, may have no common one either; what clients send says so already.
            expected: tuple[type[FedAttackError], ...] = ()
            if seed.truth.unread:
                expected = (DataError, ModelError, NeedsError, RecordError)
            with failing_alone(failed, f"how good the {models} are"), suppress(*expected):
                quality.append(measure_quality(*what, device=device, progress=partial(tell, models)))
                trained.append(training_accuracy(*what, device=device))
    # Curves of some seeds alone would be compared as if they were of all.
    if len(quality) == len(trained) == len(runs):
        facts |= curves_of(runs, quality, trained)
    if len(private) == len(runs):
        with failing_alone(failed, "what noise promises"):
            facts["privacy"] = privacy_of(private, plaintext)
    truth = runs[0].truth
    if truth is not None:
        facts["holdings"] = {
            "clients": list(truth.clients),
            "classes": list(truth.classes),
            "counts": truth.counts.tolist(),
            "seed": runs[0].record.seed or 0,
        }
    return facts
