"""The ServerApp of the reference system."""

from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedattack.record.format import View
from simulations.order import OrderedGrid
from simulations.study import Study
from strategies.honest_but_curious import honest_but_curious
from strategies.isolating import isolating
from strategies.secure_aggregation import run_secure_aggregation

# What an honest server knows of its own run; everything else in the run config is the clients' or the auditor's.
_SERVER_FACTS = ("rounds", "fraction", "local-epochs", "batch-size", "lr", "momentum", "weight-decay")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg under observation.

    With ``secagg`` that is the real protocol. Without it, clients that may have a property are recorded as a
    secure-aggregation server would have seen them: that is the view in which they are looked for. With ``isolate`` the
    server is active.
    """
    config = context.run_config
    study = Study.of(config)
    facts = {key: config[key] for key in _SERVER_FACTS} | {"model": study.model_name}
    ordered = OrderedGrid(grid, study.clients)
    rounds, fraction, lr = int(config["rounds"]), float(config["fraction"]), float(config["lr"])
    if config["secagg"]:
        run_secure_aggregation(
            ordered,
            context,
            str(config["record"]),
            initial=study.initial_arrays(),
            rounds=rounds,
            fraction=fraction,
            clients=study.clients,
            seed=study.seed,
            max_examples=study.max_examples,
            config={"lr": lr},
            facts=facts,
        )
        return
    options: dict[str, Any] = {"fraction": fraction, "clients": study.clients, "seed": study.seed, "facts": facts}
    if study.isolate:
        strategy = isolating(str(config["record"]), victims=study.victim_count, **options)
    else:
        view: View = "aggregate" if study.client_property else "individual"
        strategy = honest_but_curious(str(config["record"]), view=view, **options)
    strategy.start(
        ordered,
        ArrayRecord(study.build_model().state_dict()),
        num_rounds=rounds,
        train_config=ConfigRecord({"lr": lr}),
    )
