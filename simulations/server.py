"""The ServerApp of the reference system."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedattack.errors import ConfigError, DataError
from fedattack.folder import read_resumption
from fedattack.observe import ObservedStrategy
from fedattack.record import Record
from fedattack.record.format import View
from simulations.order import OrderedGrid
from simulations.study import Study
from strategies.fedmd import observed_fedmd
from strategies.fedsgd import observed_fedsgd
from strategies.honest_but_curious import honest_but_curious
from strategies.isolating import isolating
from strategies.past import Past
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
    timeout: float
    past: Past | None = None

    def start(self, strategy: ObservedStrategy, initial: ArrayRecord | None = None) -> None:
        """Run a strategy that starts from the study's model, or from ``initial``, or goes on after the past."""
        rounds = self.rounds
        if self.past is not None:
            initial, rounds = strategy.catch_up(self.past, self.grid), rounds - self.past.done
        elif initial is None:
            initial = ArrayRecord(self.study.build_model().state_dict())
        strategy.start(
            self.grid,
            initial,
            num_rounds=rounds,
            timeout=self.timeout,
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
            timeout=run.timeout,
            past=run.past,
        )
        return
    record = str(config["record"])
    options: dict[str, Any] = {
        "fraction": run.fraction,
        "clients": study.clients,
        "seed": study.seed,
        "facts": run.facts,
        "past": run.past,
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
            past=run.past,
        )
    )


def run_fedmd(run: Federation) -> None:
    """Run FedMD, which has no common model, and no consensus before the first round.

    Raises
    ------
    ConfigError
        If it is to go on with a stopped run: the clients' models were in Flower's state, which ended with that run.
    """
    if run.past is not None:
        raise ConfigError("framework=fedmd: clients keep their models in Flower's state, which ended with the run")
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
    ordered = OrderedGrid(grid, study.clients)
    SERVERS[study.framework](
        Federation(
            grid=ordered,
            context=context,
            study=study,
            facts={key: config[key] for key in _SERVER_FACTS} | {"model": study.model_name},
            rounds=int(config["rounds"]),
            fraction=float(config["fraction"]),
            lr=float(config["lr"]),
            timeout=float(config["round-timeout"]),
            past=_past(config, study, ordered),
        )
    )


def _past(config: Mapping[str, Any], study: Study, grid: OrderedGrid) -> Past | None:
    """Find what there is to go on with; None where the run starts anew."""
    if not config["resume"]:
        return None
    names, data = read_resumption(Path(str(config["resume"])))
    if data != study.data.fingerprint:
        raise DataError("the data are not those of the stopped run; put its data back, or start a run of its own")
    grid.get_node_ids()
    known = {str(node): names[client] for node, client in grid.partitions.items() if client in names}
    if len(known) < study.clients:
        raise ConfigError("not every client has said which one it is, now and in the stopped run; resume it again")
    return Past.of(Record(str(config["record"])), known)
