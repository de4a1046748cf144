"""FedXgb: clients send trees of XGBoost, which the server joins (Flower's FedXgbBagging)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedattack.base.errors import ConfigError
from fedattack.base.extra import check_extra
from simulations.frameworks.base import NO_SUMS, Framework

if TYPE_CHECKING:
    from simulations.architectures import Architectures
    from simulations.server import ServedRun

# XGBoost's trees for more classes have several outputs, which the attack does not read.
_TWO = 2


def _serve(run: ServedRun) -> None:
    from flwr.app import Array, ArrayRecord

    from strategies.fedxgb import TREES, SeededFedXgbBagging

    nothing = ArrayRecord({TREES: Array(np.zeros(0, dtype=np.uint8))})
    run.start(SeededFedXgbBagging(run.sampling), nothing)


def _check(models: Architectures) -> None:
    check_extra("framework = 'fedxgb'", "xgboost")
    task = models.task
    if task.task == "classification" and task.classes != _TWO:
        raise ConfigError(
            f"framework = 'fedxgb' takes numbers or two classes, and {task.name} has {task.classes}; take another"
        )


FRAMEWORK = Framework(
    name="fedxgb",
    sends="update",
    client="clients.fedxgb:FedXgbClient",
    serve=_serve,
    # Flower joins one tree of each reply. It is grown on all examples, and is no array that a defence knows.
    fixed={
        **NO_SUMS,
        "local-epochs": 1,
        "batch-size": 0,
        "momentum": 0.0,
        "defence": "none",
        "check-model": "none",
        "sensitive": "",
    },
    content="trees",
    check=_check,
)
