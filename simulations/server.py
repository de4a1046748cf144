"""The ServerApp of the reference system."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedattack.observe import ObservedStrategy
from fedattack.record.format import View
from simulations.order import OrderedGrid
from simulations.study import Study
from strategies.fedmd import observed_fedmd
from strategies.fedsgd import observed_fedsgd
from strategies.honest_but_curious import honest_but_curious
from strategies.isolating import isolating
from strategies.secure_aggregation import run_secure_aggregation

# What an honest server knows of its own run; everything else in the run config is the clients' or the auditor's.
_SERVER_FACTS = ("rounds", "fraction", "local-epochs", "batch-size", "lr", "momentum", "weight-decay")


@dataclass(frozen=True)
class Federation:
    """One run as its server needs it; ``grid`` lists the nodes in an order that is the same in every run of a seed."""

    grid: Grid
    context: Context
    study: Study
    facts: Mapping[str, Any]
    rounds: int
    fraction: float
    lr: float

    def start(self, strategy: ObservedStrategy, initial: ArrayRecord | None = None) -> None:
        """Run a strategy that starts from the study's model, or from ``initial``."""
        strategy.start(
            self.grid,
            ArrayRecord(self.study.build_model().state_dict()) if initial is None else initial,
            num_rounds=self.rounds,
            train_config=ConfigRecord({"lr": self.lr}),
        )


def run_fedavg(run: Federation) -> None:
    """Run FedAvg.

    With ``secagg`` that is the real protocol. Without it, clients that may have a property are recorded as a
    secure-aggregation server would have seen them: that is the view in which they are looked for. With ``isolate`` the
    server is active.
    """
    config, study = run.context.run_config, run.study
    if config["secagg"]:
        run_secure_aggregation(
            run.grid,
            run.context,
            str(config["record"]),
            initial=study.initial_arrays(),
            rounds=run.rounds,
            fraction=run.fraction,
            clients=study.clients,
            seed=study.seed,
            max_examples=study.max_examples,
            config={"lr": run.lr},
            facts=run.facts,
        )
        return
    record = str(config["record"])
    options: dict[str, Any] = {
        "fraction": run.fraction,
        "clients": study.clients,
        "seed": study.seed,
        "facts": run.facts,
    }
    if study.isolate:
        run.start(isolating(record, victims=study.victim_count, **options))
    else:
        view: View = "aggregate" if study.client_property else "individual"
        run.start(honest_but_curious(record, view=view, **options))


def run_fedsgd(run: Federation) -> None:
    """Run FedSGD."""
    run.start(
        observed_fedsgd(
            str(run.context.run_config["record"]),
            fraction=run.fraction,
            clients=run.study.clients,
            seed=run.study.seed,
            lr=run.lr,
            facts=run.facts,
        )
    )


def run_fedmd(run: Federation) -> None:
    """Run FedMD, which has no common model, and no consensus before the first round."""
    study, config = run.study, run.context.run_config
    facts = {key: value for key, value in run.facts.items() if key != "model"}
    strategy = observed_fedmd(
        str(config["record"]),
        fraction=run.fraction,
        clients=study.clients,
        seed=study.seed,
        shape=(len(study.public_x), study.data.classes),
        facts=facts | {"public-records": len(study.public_x), "digest-epochs": config["digest-epochs"]},
    )
    run.start(strategy, ArrayRecord())


SERVERS: Mapping[str, Callable[[Federation], None]] = {"fedavg": run_fedavg, "fedmd": run_fedmd, "fedsgd": run_fedsgd}
"""How each framework of :data:`simulations.study.FRAMEWORKS` is run."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the framework that the run config names, under observation."""
    config = context.run_config
    study = Study.of(config)
    SERVERS[study.framework](
        Federation(
            grid=OrderedGrid(grid, study.clients),
            context=context,
            study=study,
            facts={key: config[key] for key in _SERVER_FACTS} | {"model": study.model_name},
            rounds=int(config["rounds"]),
            fraction=float(config["fraction"]),
            lr=float(config["lr"]),
        )
    )
