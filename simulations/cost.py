"""Measure what defences cost a run's first client: time and memory beyond its training.

``python -m simulations.cost JOB.json`` reads ``settings`` of a run without a defence and ``strengths`` by defence, and
prints what :func:`fedattack.tradeoff.cost.measure_cost` describes, less the ratios.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clients.app import kind_of
from fedattack.defences import DEFENCES, DP_SGD, Batch
from fedattack.defences.hook import collecting
from fedattack.errors import FedAttackError
from fedattack.tradeoff.cost import side_by_side, told
from simulations.prepare import make_zoos
from simulations.privacy import SENDS, defence_settings
from simulations.study import Study

_FIRST_ROUND = {"server-round": 1}
_TRAINING = "training"
# A defence of predictions has no parameter's name to go by.
_PREDICTIONS = "predictions"


def measure(settings: Mapping[str, Any], strengths: Mapping[str, float]) -> dict[str, Any]:
    """Compute an update, and apply each defence to it.

    Raises
    ------
    FedAttackError
        If the settings do not fit the data.
    """
    with tempfile.TemporaryDirectory() as zoo:
        return _measure(
            {**settings, "device": "cpu", "record": "", "truth": "", "knowledge": "", "dealt": "", "zoo": zoo},
            strengths,
        )


def _measure(config: Mapping[str, Any], strengths: Mapping[str, float]) -> dict[str, Any]:
    study = Study.of(config)
    sends_model = SENDS[study.framework] == "model"
    received = [] if study.framework == "fedmd" else list(study.initial_arrays().values())

    def training(**changes: Any) -> Callable[[], Any]:
        changed = {**config, **changes}
        return lambda: kind_of(study, 0)(study, 0, changed).fit(received, {**_FIRST_ROUND})

    with collecting(wanted=True) as handed:
        sent, records, _ = training()()
    names = handed.names or (_PREDICTIONS,)
    start = received if sends_model else [np.zeros_like(array) for array in sent]
    update = {
        name: (after - before).astype(np.float32)
        for name, before, after in zip(names, start, sent, strict=True)
        if after.dtype.kind == "f"
    }
    actions: dict[str, Callable[[], Any]] = {_TRAINING: training()}
    refused: dict[str, str] = {}
    for name, strength in strengths.items():
        changes = {"defence": name, "defence-strength": strength}
        try:
            if name == DP_SGD:
                action = training(**changes)
            else:
                make_zoos(study, {**config, **changes})
                action = _applying(name, defence_settings({**config, **changes}), update, handed.batch)
            action()
            actions[name] = action
        except FedAttackError as problem:
            refused[name] = str(problem)
    costs = side_by_side(actions)
    plain = costs.pop(_TRAINING)
    return {
        "entries": sum(array.size for array in update.values()),
        "records": records,
        _TRAINING: told(plain),
        "defences": {
            name: {"reason": refused[name]}
            if name in refused
            else told(costs[name], less=plain if name == DP_SGD else None)
            for name in strengths
        },
    }


def _applying(
    name: str, config: Mapping[str, Any], update: Mapping[str, Any], batch: Batch | None
) -> Callable[[], Any]:
    defence, draw = DEFENCES[name](config), np.random.default_rng(0)
    return lambda: defence.apply(update, draw, batch)


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
