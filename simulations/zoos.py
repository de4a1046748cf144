"""Model zoos of RecUP-FL that are trained before a run."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError
from fedattack.base.files import make_private
from fedattack.defences.base import words
from fedattack.defences.zoo import WIDTHS, save_zoo, train_zoo_on_records
from fedattack.learning import LocalSGD
from fedattack.learning.pooled_updates import Fit
from fedattack.record.folder import copy_zoos
from fedattack.runs.settings import RunSettings
from simulations.privacy import changes_update
from simulations.seeds import ZOO_STREAM, derive_seed
from simulations.study import Study

# The class of a client's records, as an attribute that RecUP-FL can protect.
_LABEL = "label"

Coded = tuple[tuple[str, ...], NDArray[np.int64]]
"""The values of an attribute, and the codes of the defender's examples (n,)."""


def uses_zoos(settings: RunSettings) -> bool:
    """Whether clients defend themselves with model zoos."""
    return settings.defence == "recup" and changes_update(settings)


def make_zoos(study: Study) -> None:
    """Train the zoos before the run, where the clients' defence needs some and the run names none.

    Raises
    ------
    ConfigError
        If there is nothing to train them for.
    """
    settings, framework = study.settings, study.framework
    if not uses_zoos(settings) or settings.recup_zoo or not settings.zoo:
        return
    if not framework.shares_model:
        raise ConfigError(
            f"defence = 'recup': no zoo is trained before a run of framework = {framework.name!r}, whose clients send "
            "predictions; set recup-zoo to one that was trained on such, or take another defence"
        )
    sends_gradients = framework.sends == "update"
    width = settings.recup_zoo_width
    x, y = _records_of_defender(study)
    arrays = study.models.initial_arrays()
    for name, (values, codes) in _choose_protected(study, x, y).items():
        zoo = train_zoo_on_records(
            study.models.build(),
            arrays,
            x,
            y,
            codes,
            LocalSGD(1, 0, settings.lr) if sends_gradients else settings.training,
            attribute=name,
            values=values,
            records=int(np.median(study.sizes)),
            rounds=settings.rounds,
            seed=derive_seed(settings.seed, ZOO_STREAM),
            loss=study.models.loss,
            gradients=sends_gradients,
            models=settings.recup_zoo_models,
            widths=[usual for usual in WIDTHS if usual <= width] or [width],
            fit=Fit(epochs=settings.recup_zoo_epochs),
        )
        make_private(Path(settings.zoo) / name)
        save_zoo(zoo, Path(settings.zoo) / name)


def zoos_of_run(settings: RunSettings) -> Path:
    """Return the folder of the clients' zoos, which are copied into the run's own if they are from elsewhere.

    A run folder refers to nothing outside of it, and so can be handed over.
    """
    if not settings.recup_zoo or not settings.zoo:
        return Path(settings.recup_zoo or settings.zoo)
    copy_zoos(Path(settings.recup_zoo), Path(settings.zoo))
    return Path(settings.zoo)


def _records_of_defender(study: Study) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the auxiliary records, or the test split where there are none."""
    data, rows = study.data, study.division.auxiliary
    if len(rows):
        return data.x_train[rows], data.y_train[rows]
    return data.x_test, data.y_test


def _choose_protected(study: Study, x: NDArray[np.float32], y: NDArray[Any]) -> dict[str, Coded]:
    """Choose the attributes to protect: those that are asked for, or those that the attacker is after."""
    settings, data, rows = study.settings, study.data, study.division.auxiliary
    known: dict[str, Coded] = {}
    for name, column in data.private.items():
        known[name] = column.values, column.train[rows] if len(rows) else column.test
    usual = [*study.private_columns]
    if settings.sensitive:
        sensitive = study.sensitive_column
        usual.append(sensitive.name)
        known[sensitive.name] = sensitive.values, sensitive.codes(x)
    if data.task == "classification":
        usual = usual or [_LABEL]
        known[_LABEL] = tuple(data.labels[1]), y
    wanted = words(settings.defence_settings, "recup-attributes") or usual
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise ConfigError(
            f"recup-attributes = {settings.recup_attributes!r}: {unknown[0] if unknown else 'nothing'} can be "
            f"protected without a zoo of one's own; expected some of {', '.join(known) or 'none, in a regression'}; "
            "or set recup-zoo"
        )
    return {name: known[name] for name in wanted}
