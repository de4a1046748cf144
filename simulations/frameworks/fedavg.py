"""FedAvg: clients send the model that they trained (McMahan et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fedattack.base.errors import ConfigError
from simulations.frameworks.base import Framework
from simulations.seeds import CENTRAL_STREAM, derive_secret

if TYPE_CHECKING:
    from fedattack.record.format import View
    from simulations.server import ServedRun
    from strategies.secure_aggregation import SecureFedAvg


def _serve(run: ServedRun) -> None:
    """Run FedAvg.

    With ``secagg`` that is the real protocol. Without it, clients that may have a property are recorded as a
    secure-aggregation server would have seen them: that is the view in which they are looked for. The setting
    ``server`` says whether it is active. With ``central-noise`` it adds noise to the mean of clipped updates.
    """
    from strategies.central import CentralFedAvg, CentralNoise
    from strategies.departing import DepartingFedAvg
    from strategies.honest_but_curious import SeededFedAvg
    from strategies.isolating import IsolatingFedAvg
    from strategies.secure_aggregation import run_secure_aggregation

    study, settings = run.study, run.study.settings
    if settings.secagg:
        run_secure_aggregation(
            run.grid,
            run.context,
            settings.record,
            initial=study.models.initial_arrays(),
            rounds=settings.rounds,
            sampling=run.sampling,
            max_examples=max(study.sizes),
            config=run.train_config,
            facts=run.facts,
            timeout=settings.round_timeout,
            checkpoint=run.checkpoint,
            make=_strategy_of_sums(run),
            server=settings.server,
            record_id=settings.record_id,
        )
    elif settings.server == "isolating":
        run.start(IsolatingFedAvg(run.sampling, victims=settings.victim_count), server="isolating")
    elif settings.is_active:
        run.start(DepartingFedAvg(run.sampling, **run.departure), server=settings.server)
    elif settings.central_noise:
        seed = derive_secret(settings.seed, CENTRAL_STREAM)
        noise = CentralNoise(settings.central_noise, settings.central_clip, seed)
        run.start(CentralFedAvg(run.sampling, noise))
    else:
        view: View = "aggregate" if settings.client_property else "individual"
        run.start(SeededFedAvg(run.sampling), view=view)


def _strategy_of_sums(run: ServedRun) -> Callable[..., SecureFedAvg]:
    """Return what makes the strategy of a run behind SecAgg+.

    Raises
    ------
    ConfigError
        If an active server is to go on with a stopped run: nobody knows what came together of an unfinished round.
    """
    from fedattack.record.singled import Weighing
    from simulations.departures import make_departure, make_unlearning
    from strategies.departing import ImprintingSecureFedAvg
    from strategies.inconsistent import InconsistentFedAvg
    from strategies.secure_aggregation import SecureFedAvg, plan_secure_aggregation

    study, settings = run.study, run.study.settings
    if not settings.is_active:
        return SecureFedAvg
    if run.checkpoint is not None:
        raise ConfigError(f"server = {settings.server!r}: behind SecAgg+ a stopped run cannot be continued")
    if settings.server in ("imprint", "canary"):
        return partial(ImprintingSecureFedAvg, imprint=make_departure(study), departures=settings.departures)
    plan = plan_secure_aggregation(study.models.initial_arrays(), sampling=run.sampling, max_examples=max(study.sizes))
    return partial(
        InconsistentFedAvg,
        unlearning=make_unlearning(study),
        victims=settings.victim_count,
        weighing=Weighing.of(plan.describe()),
    )


FRAMEWORK = Framework(name="fedavg", sends="model", client="clients.fedavg:FedAvgClient", serve=_serve)
