"""FedAvg: clients send the model that they trained (McMahan et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulations.frameworks.base import Framework
from simulations.seeds import CENTRAL_STREAM, derive_secret

if TYPE_CHECKING:
    from fedattack.record.format import View
    from simulations.server import Federation


def _serve(run: Federation) -> None:
    """Run FedAvg.

    With ``secagg`` that is the real protocol. Without it, clients that may have a property are recorded as a
    secure-aggregation server would have seen them: that is the view in which they are looked for. With ``isolate`` the
    server is active. With ``central-noise`` it adds noise to the mean of clipped updates.
    """
    from strategies.central import CentralFedAvg, CentralNoise
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
        )
    elif settings.isolate:
        run.start(IsolatingFedAvg(run.sampling, victims=settings.victim_count), server="isolating")
    elif settings.central_noise:
        seed = derive_secret(settings.seed, CENTRAL_STREAM)
        noise = CentralNoise(settings.central_noise, settings.central_clip, seed)
        run.start(CentralFedAvg(run.sampling, noise))
    else:
        view: View = "aggregate" if settings.client_property else "individual"
        run.start(SeededFedAvg(run.sampling), view=view)


FRAMEWORK = Framework(name="fedavg", sends="model", client="clients.fedavg:FedAvgClient", serve=_serve)
