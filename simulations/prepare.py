"""Write the truth about a run, and what its attacker knows, before the run starts.

``python -m simulations.prepare CONFIGS.json`` reads a list of run configs and fills the folders ``knowledge`` and
``truth`` that each names. It runs apart from server and clients: the server must not know the truth, and the clients
only their part.
"""

import json
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Knowledge, KnownDefence, write_knowledge
from fedattack.attacks.coding import find_coding
from fedattack.attacks.held_examples import HeldByClients
from fedattack.attacks.registry import find_answers
from fedattack.audit.truth import HeldRecords, Privacy, write_truth
from fedattack.base.errors import ConfigError, FedAttackError
from fedattack.base.failures import Failure
from fedattack.data import label_counts
from fedattack.learning import pick_device
from fedattack.runs.settings import read_settings
from simulations.claims import central_notes, write_canaries_of
from simulations.defences import defence_notes, known_defence, privacy_of
from simulations.departures import check_departure
from simulations.goals import goal_of
from simulations.overlap import overlap_notes
from simulations.seeds import TARGET_STREAM, generator
from simulations.study import Study
from simulations.zoos import make_zoos

# Enough to know an accuracy to within a point, and quick to evaluate for every client and round.
_EVALUATION_RECORDS = 2000

# A client of more records is no target of gradient inversion, and the truth need not hold a copy of the whole dataset.
_FEW_RECORDS = 64


def prepare(
    study: Study,
    *,
    knowledge: Path,
    truth: Path,
    privacy: Privacy | None = None,
    defence: KnownDefence | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Draw what is to be drawn of an attacker's knowledge, and write both folders.

    Parameters
    ----------
    study
        The run.
    knowledge, truth
        Folders to write.
    privacy
        What the clients guarantee, if they are private.
    defence
        What they do to their updates, for an attacker who knows of it.
    notes
        What else the report is to say.
    """
    settings, data = study.settings, study.data
    rng = generator(settings.seed, TARGET_STREAM)
    goal = goal_of(settings)
    # Canaries are nodes after all clients.
    canaries = [str(client) for client in range(settings.clients, settings.nodes)]
    coding = find_coding(np.concatenate([data.x_train, data.x_test]), data.columns)
    common = Knowledge(limits=data.limits, coding=coding, canaries=tuple(canaries), record=settings.record_id)
    if study.framework.trains_model:
        model = study.models.known()
        # Models that do not fit the data are better refused now than after the training.
        study.models.build_trained()
        model.build()
        common = replace(common, model=model, training=settings.training)
    known, answer = goal.pose(study, common, rng)
    if goal.knows_defence:
        known = replace(known, defence=defence)
    write_knowledge(knowledge, known)
    failed: dict[str, Failure] = {}
    answer = replace(answer, answers={**(answer.answers or {}), **_find_answers(study, known, failed)})
    unknown = [f"the truth about {name} cannot be found out: {failure.why}" for name, failure in failed.items()]
    labels, names = data.labels
    sample = np.sort(rng.permutation(len(data.y_test))[:_EVALUATION_RECORDS])
    write_truth(
        truth,
        clients=[str(client) for client in range(settings.clients)],
        classes=list(names),
        counts=label_counts(labels, study.division.parts, len(names)),
        evaluation=(data.x_test[sample], data.y_test[sample]),
        targets=known.asked(),
        data=data.fingerprint,
        privacy=privacy,
        records=_few_records(study),
        notes=[*notes, *overlap_notes(study), *unknown],
        canaries=canaries,
        record=settings.record_id,
        **vars(answer),
    )


def _find_answers(
    study: Study, known: Knowledge, failed: MutableMapping[str, Failure]
) -> dict[str, Mapping[str, NDArray[Any]]]:
    """Gather for judges what each client uses, such as rows of tables, by threat, of which `failed` is told, too."""
    examples = {str(client): study.records_of(client)[0] for client in range(study.settings.clients)}
    held = HeldByClients(known, None, study.framework.content, examples, tuple(examples))
    return find_answers(held, failed)


def _few_records(study: Study) -> HeldRecords | None:
    """Gather what clients of few examples train on."""
    few = [client for client, size in enumerate(study.sizes) if size <= _FEW_RECORDS]
    if not few:
        return None
    xs, ys = zip(*map(study.records_of, few), strict=True)
    owners: list[str] = []
    for client, y in zip(few, ys, strict=True):
        owners += [str(client)] * len(y)
    return HeldRecords(np.concatenate(xs), np.concatenate(ys), tuple(owners))


def prepare_run(run_config: Mapping[str, Any]) -> None:
    """Write all that a run config asks for before its run: model zoos, knowledge, truth and shards.

    Raises
    ------
    FedAttackError
        If the settings do not fit the data, or each other.
    """
    settings = read_settings(run_config)
    pick_device(settings.device)
    study = Study(settings)
    if study.framework.check is not None:
        study.framework.check(study.models)
    check_departure(study)
    if settings.secagg:
        _check_secure_aggregation(study)
    make_zoos(study)
    notes = [*defence_notes(study), *central_notes(settings)]
    prepare(
        study,
        knowledge=Path(settings.knowledge),
        truth=Path(settings.truth),
        privacy=privacy_of(study),
        defence=known_defence(study),
        notes=notes,
    )
    write_canaries_of(study)
    if settings.dealt:
        study.deal()


def _check_secure_aggregation(study: Study) -> None:
    settings = study.settings
    if settings.server == "isolating" or (settings.sensitive and settings.server != "inconsistent"):
        key = "sensitive" if settings.sensitive else "server=isolating"
        raise ConfigError(f"secagg and {key}: the server sees no single client's reply; set secagg=false")
    # Flower takes a second to import, and only this needs it.
    from strategies.honest_but_curious import Sampling
    from strategies.secure_aggregation import plan_secure_aggregation

    sampling = Sampling(settings.fraction, settings.nodes, settings.seed)
    plan_secure_aggregation(study.models.initial_arrays(), sampling=sampling, max_examples=max(study.sizes))


def main() -> None:
    """Run from the command line: one line and exit code 2 on bad input."""
    run_configs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        for run_config in run_configs:
            prepare_run(run_config)
    except FedAttackError as problem:
        print(problem, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
