"""FedSGD: clients send the gradient over all of their examples (McMahan et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedattack.learning import check_gradients
from simulations.frameworks.base import NO_SUMS, Framework

if TYPE_CHECKING:
    from simulations.server import Federation


def _serve(run: Federation) -> None:
    from strategies.fedsgd import FedSGD

    run.start(FedSGD(run.sampling, lr=run.study.settings.lr), protocol="fedsgd")


FRAMEWORK = Framework(
    name="fedsgd",
    sends="update",
    client="clients.fedsgd:FedSGDClient",
    serve=_serve,
    # One gradient over all examples: there are no local steps to say anything about.
    fixed={**NO_SUMS, "local-epochs": 1, "batch-size": 0, "momentum": 0.0},
    check_model=check_gradients,
)
