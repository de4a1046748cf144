"""Measure what defences cost a run's first client: time and memory beyond its training.

``python -m simulations.cost JOB.json`` reads ``settings`` of a run without a defence and ``strengths`` by defence, and
prints what :func:`fedattack.grids.tradeoff.cost.measure_cost` describes, less the ratios.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import FedAttackError
from fedattack.defences import DEFENCES, DP_SGD, Batch
from fedattack.defences.hook import collecting
from fedattack.grids.tradeoff.cost import summarise_cost, time_side_by_side
from fedattack.runs.private import guarded_folder
from fedattack.runs.settings import RunSettings, read_settings
from simulations.study import Study
from simulations.zoos import make_zoos

_TRAINING = "training"
# A defence of predictions has no parameter's name to go by.
_PREDICTIONS = "predictions"

Action = Callable[[], Any]


def measure(run_config: Mapping[str, Any], strengths: Mapping[str, float]) -> dict[str, Any]:
    """Compute an update, and apply each defence to it.

    Raises
    ------
    FedAttackError
        If the settings do not fit the data.
    """
    with guarded_folder(Path(tempfile.gettempdir()), "fedattack-") as zoo:
        settings = read_settings(run_config)
        return _measure(
            settings.replace(device="cpu", record="", truth="", knowledge="", dealt="", zoo=str(zoo)), strengths
        )


def _measure(settings: RunSettings, strengths: Mapping[str, float]) -> dict[str, Any]:
    study = Study(settings)
    with collecting(wanted=True) as handed:
        sent, records, _ = _training(study)()
    update = _update(study, sent, handed.names or (_PREDICTIONS,))
    actions: dict[str, Action] = {_TRAINING: _training(study)}
    refused: dict[str, str] = {}
    for name, strength in strengths.items():
        try:
            defended = Study(settings.replace(defence=name, defence_strength=strength))
            if name == DP_SGD:
                action = _training(defended)
            else:
                make_zoos(defended)
                action = _applying(name, defended.settings, update, handed.batch)
            action()
            actions[name] = action
        except FedAttackError as problem:
            refused[name] = str(problem)
    costs = time_side_by_side(actions)
    plain = costs.pop(_TRAINING)
    defences: dict[str, Any] = {}
    for name in strengths:
        if name in refused:
            defences[name] = {"reason": refused[name]}
        else:
            defences[name] = summarise_cost(costs[name], less=plain if name == DP_SGD else None)
    return {
        "entries": sum(array.size for array in update.values()),
        "records": records,
        _TRAINING: summarise_cost(plain),
        "defences": defences,
    }


def _count_received(study: Study) -> list[NDArray[Any]]:
    """Return what the first client receives in the first round: no consensus, or the model."""
    return list(study.models.initial_arrays().values()) if study.framework.shares_model else []


def _training(study: Study) -> Action:
    received, client = _count_received(study), study.framework.load_client()
    return lambda: client(study, 0).fit(received, {"server-round": 1})


def _update(study: Study, sent: list[NDArray[Any]], names: tuple[str, ...]) -> dict[str, NDArray[np.float32]]:
    """Return what a defence changes of the arrays that the client sends."""
    start = _count_received(study) if study.framework.sends == "model" else [np.zeros_like(array) for array in sent]
    update = {}
    for name, before, after in zip(names, start, sent, strict=True):
        if after.dtype.kind == "f":
            update[name] = (after - before).astype(np.float32)
    return update


def _applying(name: str, settings: RunSettings, update: Mapping[str, Any], batch: Batch | None) -> Action:
    defence, rng = DEFENCES[name](settings.defence_settings), np.random.default_rng(0)
    return lambda: defence.apply(update, rng, batch)


def main() -> None:
    """Run from the command line: one line and exit code 2 on bad input."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        print(json.dumps(measure(job["settings"], job["strengths"])))
    except FedAttackError as problem:
        print(problem, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
