"""FedMD: clients have models of their own, and send predictions on public records (Li & Wang 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedattack.base.errors import ConfigError
from simulations.frameworks.base import NO_SUMS, Framework

if TYPE_CHECKING:
    from simulations.server import ServedRun


def _serve(run: ServedRun) -> None:
    """Run FedMD, which has no common model, and no consensus before the first round.

    Raises
    ------
    ConfigError
        If it is to go on with a stopped run: the clients' models were in Flower's state, which ended with that run.
    """
    from flwr.app import ArrayRecord

    from strategies.fedmd import PREDICTIONS, FedMD

    if run.checkpoint is not None:
        raise ConfigError("framework=fedmd: clients keep their models in Flower's state, which ended with the run")
    study = run.study
    records = len(study.public_x)
    run.start(
        FedMD(run.sampling, shape=(records, study.data.classes)),
        ArrayRecord(),
        # A reply of the first round, whose message has no array to take a name from, brings none.
        names=[PREDICTIONS],
        protocol="fedmd",
        facts=run.facts | {"public-records": records, "digest-epochs": study.settings.digest_epochs},
    )


FRAMEWORK = Framework(
    name="fedmd",
    sends="update",
    client="clients.fedmd:FedMDClient",
    serve=_serve,
    fixed={**NO_SUMS, "check-model": "none"},
    shares_model=False,
    array_names=("predictions",),
)
