"""Write what is true of a run, and what its attacker knows, before the run starts.

``python -m simulations.prepare CONFIGS.json`` reads a list of run configs and fills the folders ``knowledge`` and
``truth`` that each names. It runs apart from server and clients: the server must not know the truth, and the clients
only their part.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.threats import (
    AuxiliaryAttribute,
    Knowledge,
    KnownDefence,
    ModelKnowledge,
    PartialRecords,
    Targets,
    write_knowledge,
)
from fedattack.threats.knowledge import BUILT_IN
from fedattack.audit.truth import NOBODY, Attributes, ClientAttribute, HeldRecords, Privacy, write_truth
from fedattack.data import label_counts
from fedattack.defences import DP_SGD, SETTINGS, Batch, defence_of, in_words, update_privacy
from fedattack.defences.base import words
from fedattack.defences.guarantee import NOISY
from fedattack.defences.zoo import WIDTHS, save_zoo, train_zoo_on_records
from fedattack.errors import ConfigError, FedAttackError
from fedattack.learning import LocalSGD, check_gradients, check_private_model, pick_device, privacy_spent
from fedattack.learning.pooled_updates import Fit
from simulations.privacy import (
    NAMES,
    SENDS,
    changes_update,
    check_defence,
    defence_settings,
    is_private,
    noise_of,
    sampling_of,
)
from simulations.study import TARGET_STREAM, ZOO_STREAM, Study, derive_seed, singles

# Enough to know an accuracy to within a point, and quick to evaluate for every client and round.
_EVALUATION_RECORDS = 2000

# A client of more records is no target of gradient inversion, and the truth need not hold a copy of the whole dataset.
_FEW_RECORDS = 64

# Cosine from which two images are the same: single precision keeps seven digits.
_SAME = 1 - 1e-5

# The class of a client's records, as an attribute that RecUP-FL can protect.
_LABEL = "label"


def prepare(
    study: Study,
    *,
    training: LocalSGD,
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
    training
        How its clients train; an attacker who looks for a property or an attribute knows that.
    knowledge, truth
        Folders to write.
    privacy
        What the clients guarantee, if they are private.
    defence
        What they do to their updates, for an attacker who knows of it.
    notes
        What else the report is to say.
    """
    model = ModelKnowledge(
        spec=study.attacked_model,
        input_shape=study.data.input_shape,
        classes=study.data.classes,
        hidden=study.hidden,
        dropout=study.dropout,
        loss=study.loss,
    )
    if study.framework == "fedmd":
        for client in range(len(study.client_models)):
            study.build_client_model(client)
    model.build()  # a model that does not fit the data is better refused now than after the training
    draw = np.random.default_rng(derive_seed(study.seed, TARGET_STREAM))
    if study.client_property:
        known, holders = _with_property(study, model, training, draw)
    elif study.sensitive:
        known, holders = _with_attribute(study, model, training)
    elif study.private:
        known, holders = _with_private(study, model, training, defence)
    else:
        known, holders = _with_owners(study, model, training, draw)
    write_knowledge(knowledge, known)
    data = study.data
    labels, names = data.labels
    sample = np.sort(draw.permutation(len(data.y_test))[:_EVALUATION_RECORDS])
    write_truth(
        truth,
        clients=[str(client) for client in range(study.clients)],
        classes=list(names),
        counts=label_counts(labels, study.parts, len(names)),
        evaluation=(data.x_test[sample], data.y_test[sample]),
        targets=known.asked(),
        data=data.fingerprint,
        privacy=privacy,
        records=_few_records(study),
        notes=[*notes, *_overlap(study)],
        **holders,
    )


def _few_records(study: Study) -> HeldRecords | None:
    """Gather what clients of few records train on."""
    few = [client for client, part in enumerate(study.parts) if len(part) <= _FEW_RECORDS]
    if not few:
        return None
    held = [study.records_of(client) for client in few]
    return HeldRecords(
        x=np.concatenate([x for x, _ in held]),
        y=np.concatenate([y for _, y in held]),
        owners=tuple(str(client) for client, (_, y) in zip(few, held, strict=True) for _ in y),
    )


def _with_owners(
    study: Study, model: ModelKnowledge, training: LocalSGD, draw: np.random.Generator
) -> tuple[Knowledge, dict[str, Any]]:
    """Draw the targets of source inference, and say who owns them.

    ``study.targets`` training records of each client (fewer where it holds fewer), as in the SIA paper, Section 4.2,
    are mixed with as many records that no client holds, as far as the test split reaches, and shuffled. Records that
    occur more than once in the data are left out: they have no single owner.
    """
    data = study.data
    single_train, single_test = singles(data)
    chosen: list[NDArray[np.int64]] = []
    owners: list[str] = []
    for client, part in enumerate(study.parts):
        own = np.intersect1d(part, single_train)
        picked = draw.choice(own, size=min(study.targets, len(own)), replace=False)
        chosen.append(picked)
        owners += [str(client)] * len(picked)
    members = np.concatenate(chosen)
    null = draw.choice(single_test, size=min(len(members), len(single_test)), replace=False)
    order = draw.permutation(len(members) + len(null))
    x = np.concatenate([data.x_train[members], data.x_test[null]])[order]
    y = np.concatenate([data.y_train[members], data.y_test[null]])[order]
    owners += [NOBODY] * len(null)
    public = study.public_x if study.framework == "fedmd" else None
    known = Knowledge(model=model, targets=Targets(x, y), public=public, training=training)
    return known, {"owners": [owners[index] for index in order]}


def _overlap(study: Study) -> list[str]:
    """Say how many public records are some client's training data, too.

    Each dataset is scaled by its own statistics, so that images are compared without their brightness and contrast.
    """
    if not study.public:
        return []
    public, private = study.public_x, study.data.x_train[np.concatenate(study.parts)]
    if public.ndim == 4:
        public, private = _without_scale(public), _without_scale(private)
        same = sum(
            int((public[at : at + 100] @ private.T > _SAME).any(axis=1).sum()) for at in range(0, len(public), 100)
        )
    else:
        held = {record.tobytes() for record in private}
        same = sum(record.tobytes() in held for record in public)
    return [f"public set: {same} of {len(public)} records are also some client's training data"] if same else []


def _without_scale(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return images as rows of length 1, with mean 0 and one deviation in each channel."""
    centred = images - images.mean(axis=(2, 3), keepdims=True)
    rows = (centred / np.maximum(centred.std(axis=(2, 3), keepdims=True), 1e-6)).reshape(len(images), -1)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), dtype=np.float32)


def _with_property(
    study: Study, model: ModelKnowledge, training: LocalSGD, draw: np.random.Generator
) -> tuple[Knowledge, dict[str, Any]]:
    """Gather what an attacker knows who looks for a property, and say which clients have it.

    Target records of membership, held and null, are shuffled. In a null run the attacker still expects the usual share.
    """
    data = study.data
    order = draw.permutation(len(study.target_rows))
    rows = study.target_rows[order]
    known = Knowledge(
        model=model,
        targets=Targets(data.x_train[rows], data.y_train[rows]) if len(rows) else None,
        auxiliary=Targets(data.x_train[study.auxiliary_rows], data.y_train[study.auxiliary_rows]),
        training=training,
        property=study.client_property,
        positive_share=study.positive_share or Knowledge.positive_share,
    )
    return known, {"positives": study.positives[order] if len(rows) else study.positives}


def _with_attribute(study: Study, model: ModelKnowledge, training: LocalSGD) -> tuple[Knowledge, dict[str, Any]]:
    """Gather what an attacker knows who has the victims' records but for one column, and say what that column holds.

    The prior is the attribute's distribution in the training split. In a null run the truth is about the records as
    they are, and not as they were shuffled for the training.
    """
    data, column = study.data, study.sensitive_column
    codes = column.codes(data.x_train)
    parts = study.parts[: study.victim_count]
    rows = np.concatenate(parts)
    owners = [str(client) for client, part in enumerate(parts) for _ in part]
    x = data.x_train[rows]
    x[:, list(column.inputs)] = 0
    if column.domain is None:
        raise AssertionError("a sensitive column has a domain")
    partial = PartialRecords(
        x=x,
        y=data.y_train[rows],
        clients=np.array(owners),
        columns=column.inputs,
        domain=column.domain,
        names=column.values,
        prior=np.bincount(codes, minlength=len(column.values)) / len(codes),
    )
    auxiliary = Targets(data.x_train[study.auxiliary_rows], data.y_train[study.auxiliary_rows])
    known = Knowledge(model=model, training=training, auxiliary=auxiliary, partial=partial)
    return known, {"attributes": Attributes(codes[rows], column.values, tuple(owners), column.name)}


def _with_private(
    study: Study, model: ModelKnowledge, training: LocalSGD, defence: KnownDefence | None
) -> tuple[Knowledge, dict[str, Any]]:
    """Gather what an attacker knows who infers clients' private attributes, and say which values these have."""
    data, rows, columns = study.data, study.auxiliary_rows, study.private_columns
    known = Knowledge(
        model=model,
        training=training,
        auxiliary=Targets(data.x_train[rows], data.y_train[rows]),
        attributes={name: AuxiliaryAttribute(column.values, column.train[rows]) for name, column in columns.items()},
        defence=defence,
    )
    private = {
        name: ClientAttribute(tuple(study.values_of_clients(name).tolist()), column.values)
        for name, column in columns.items()
    }
    return known, {"private": private}


def known_defence(study: Study, config: Mapping[str, Any]) -> KnownDefence | None:
    """Say what an attacker knows who knows of the clients' defence; ``None`` without one.

    Of clients that spend a privacy budget it knows the noise of the one in the middle.
    """
    if is_private(config):
        noise = float(np.median([noise_of(config, len(part)) for part in study.parts]))
        settings = {"defence": DP_SGD, "noise": noise, "dp-clip": config["dp-clip"], "loss": study.loss}
        return KnownDefence(BUILT_IN, settings | {"training": vars(training_of(config))})
    if not changes_update(config):
        return None
    files = {}
    settings = {key: config[key] for key in SETTINGS}
    if config["defence"] == "recup":
        zoo = Path(defence_settings(config)["recup-zoo"])
        if config["recup-zoo"] and config["zoo"]:
            # A run folder refers to nothing outside of it, and so can be handed over.
            zoo = _copied(zoo, Path(config["zoo"]))
        settings["recup-zoo"] = ""
        files["recup-zoo"] = os.path.relpath(zoo, config["knowledge"])
    return KnownDefence(BUILT_IN, settings, files)


def _copied(zoos: Path, to: Path) -> Path:
    for described in zoos.glob("*/zoo.json"):
        folder = to / described.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        for file in (described, described.with_suffix(".safetensors")):
            shutil.copyfile(file, folder / file.name)
    return to


def make_zoos(study: Study, config: Mapping[str, Any]) -> None:
    """Train the model zoos of RecUP-FL before the run, where it is the clients' defence and names none.

    Raises
    ------
    ConfigError
        If there is nothing to train them for.
    """
    if config["defence"] != "recup" or not changes_update(config) or config["recup-zoo"] or not config["zoo"]:
        return
    if study.framework == "fedmd":
        raise ConfigError(
            "defence = 'recup': no zoo is trained before a run of framework = 'fedmd', whose clients send predictions; "
            "set recup-zoo to one that was trained on such, or take another defence"
        )
    sends_gradients = SENDS[study.framework] == "update"
    aux = study.auxiliary_rows
    data, arrays = study.data, study.initial_arrays()
    x, y = (data.x_train[aux], data.y_train[aux]) if len(aux) else (data.x_test, data.y_test)
    for name, (values, codes) in _protected(study, config, x, y).items():
        zoo = train_zoo_on_records(
            study.build_model(),
            arrays,
            x,
            y,
            codes,
            LocalSGD(1, 0, float(config["lr"])) if sends_gradients else training_of(config),
            attribute=name,
            values=values,
            records=int(np.median([len(part) for part in study.parts])),
            rounds=int(config["rounds"]),
            seed=derive_seed(study.seed, ZOO_STREAM),
            loss=study.loss,
            gradients=sends_gradients,
            models=int(config["recup-zoo-models"]),
            widths=[width for width in WIDTHS if width <= config["recup-zoo-width"]] or [config["recup-zoo-width"]],
            fit=Fit(epochs=int(config["recup-zoo-epochs"])),
        )
        save_zoo(zoo, Path(config["zoo"]) / name)


def _protected(
    study: Study, config: Mapping[str, Any], x: NDArray[np.float32], y: NDArray[Any]
) -> dict[str, tuple[tuple[str, ...], NDArray[np.int64]]]:
    """Return the values of each attribute to protect, and the codes of the defender's records (n,)."""
    data, aux = study.data, study.auxiliary_rows
    known: dict[str, tuple[tuple[str, ...], NDArray[np.int64]]] = {
        name: (column.values, column.train[aux] if len(aux) else column.test) for name, column in data.private.items()
    }
    usual = [*study.private_columns]
    if study.sensitive:
        column = study.sensitive_column
        usual.append(column.name)
        known[column.name] = (column.values, column.codes(x))
    if data.task == "classification":
        usual = usual or [_LABEL]
        known[_LABEL] = (tuple(data.labels[1]), y)
    asked = words(config, "recup-attributes") or usual
    unknown = [name for name in asked if name not in known]
    if unknown or not asked:
        raise ConfigError(
            f"recup-attributes = {str(config['recup-attributes'])!r}: {unknown[0] if unknown else 'nothing'} can be "
            f"protected without a zoo of one's own; expected some of {', '.join(known) or 'none, in a regression'}; "
            "or set recup-zoo"
        )
    return {name: known[name] for name in asked}


def privacy_of(study: Study, config: Mapping[str, Any]) -> Privacy | None:
    """Account for each client's DP-SGD or noise on the update; ``None`` without them.

    Raises
    ------
    ConfigError
        If noise and budget are both set, or the budget cannot be met.
    ModelError
        If the model does not allow DP-SGD.
    """
    if config["defence"] in NOISY and float(config["defence-strength"]):
        local = update_privacy(config, rounds=int(config["rounds"]))
        return Privacy(
            clip=float(config["defence-clip"]),
            delta=local.delta,
            rounds=int(config["rounds"]),
            noise=(float(config["defence-strength"]),) * study.clients,
            epsilon_round=(local.epsilon_round,) * study.clients,
            epsilon_run=(local.epsilon_run,) * study.clients,
            mechanism=str(config["defence"]),
        )
    if not is_private(config):
        return None
    fedmd = study.framework == "fedmd"
    for model in map(study.build_client_model, range(len(study.client_models))) if fedmd else [study.build_model()]:
        check_private_model(model)
    rounds, delta = int(config["rounds"]), float(config["dp-delta"])
    sizes = [len(part) for part in study.parts]
    noise = [noise_of(config, size) for size in sizes]
    spent = [
        privacy_spent(sigma, sampling_of(config, size), rounds=rounds, delta=delta)
        for sigma, size in zip(noise, sizes, strict=True)
    ]
    return Privacy(
        clip=float(config["dp-clip"]),
        delta=delta,
        rounds=rounds,
        noise=tuple(noise),
        epsilon_round=tuple(item.epsilon_round for item in spent),
        epsilon_run=tuple(item.epsilon_run for item in spent),
    )


def defence_notes(study: Study, config: Mapping[str, Any]) -> list[str]:
    """Say in the report what its numbers do not: what a defence does not promise, and who does not know of it.

    Raises
    ------
    ConfigError, ModelError
        If the defence cannot be applied.
    """
    check_defence(config)
    private, changed = is_private(config), changes_update(config)
    notes = []
    if changed:
        _try_defence(study, config)
        told = in_words(update_privacy(config, rounds=int(config["rounds"])))
        notes.append(f"defence {config['defence']}: {told}")
    if study.client_property and (private or changed):
        notes.append(
            "the attack's shadow updates do not model the clients' defence: an attacker who knows of it may find more"
        )
    return notes


def _try_defence(study: Study, config: Mapping[str, Any]) -> None:
    """Apply the defence to an update of zeros: what clients would answer with errors is better refused now."""
    defence, arrays = defence_of(defence_settings(config)), study.initial_arrays()
    if study.framework == "fedmd":
        arrays = dict.fromkeys(NAMES["fedmd"], np.zeros((len(study.public_x), study.data.classes), dtype=np.float32))
    if defence is not None:
        zeros = {name: np.zeros(array.shape, np.float32) for name, array in arrays.items() if array.dtype.kind == "f"}
        x, y = study.records_of(0)
        defence.apply(zeros, np.random.default_rng(study.seed), Batch(x[:1], y[:1], study.build_model()))


def _check_secure_aggregation(study: Study, fraction: float) -> None:
    # Flower takes a second to import, and only this needs it.
    from strategies.secure_aggregation import plan_secure_aggregation

    plan_secure_aggregation(
        study.initial_arrays(), fraction=fraction, clients=study.clients, max_examples=study.max_examples
    )


def training_of(config: Mapping[str, Any]) -> LocalSGD:
    """Say how clients train."""
    return LocalSGD(
        epochs=int(config["local-epochs"]),
        batch_size=int(config["batch-size"]),
        lr=float(config["lr"]),
        momentum=float(config["momentum"]),
        weight_decay=float(config["weight-decay"]),
    )


def main() -> None:
    """Run from the command line: one line and exit code 2 on bad input."""
    configs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        for config in configs:
            pick_device(str(config["device"]))
            study = Study.of(config)
            if study.framework == "fedsgd":
                check_gradients(study.build_model())
            if config["secagg"] and (study.isolate or study.sensitive):
                key = "isolate" if study.isolate else "sensitive"
                raise ConfigError(f"secagg and {key}: the server sees no single client's reply; set secagg=false")
            if config["secagg"]:
                _check_secure_aggregation(study, float(config["fraction"]))
            make_zoos(study, config)
            notes = defence_notes(study, config)
            prepare(
                study,
                training=training_of(config),
                knowledge=Path(config["knowledge"]),
                truth=Path(config["truth"]),
                privacy=privacy_of(study, config),
                defence=known_defence(study, config),
                notes=notes,
            )
            if study.dealt:
                study.deal()
    except FedAttackError as problem:
        print(problem, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
