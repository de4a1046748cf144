"""FedSGD: clients send the gradient over all of their examples (McMahan et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedattack.learning import check_gradients
from simulations.frameworks.base import NO_SUMS, Framework

if TYPE_CHECKING:
    from simulations.server import ServedRun


def _serve(run: ServedRun) -> None:
    from strategies.departing import DepartingFedSGD
    from strategies.fedsgd import FedSGD

    settings = run.study.settings
    if settings.is_active:
        strategy: FedSGD = DepartingFedSGD(run.sampling, lr=settings.lr, **run.departure)
    else:
        strategy = FedSGD(run.sampling, lr=settings.lr)
    run.start(strategy, protocol="fedsgd", server=settings.server)


_FIXED = {key: value for key, value in NO_SUMS.items() if key != "server"}

FRAMEWORK = Framework(
    name="fedsgd",
    sends="update",
    client="clients.fedsgd:FedSGDClient",
    serve=_serve,
    # One gradient over all examples: there are no local steps to say anything about.
    fixed={**_FIXED, "local-epochs": 1, "batch-size": 0, "momentum": 0.0},
    check=lambda models: check_gradients(models.build()),
)
