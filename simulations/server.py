"""The ServerApp of the reference system."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from simulations.order import OrderedGrid
from simulations.study import Study
from strategies.honest_but_curious import honest_but_curious

# What an honest server knows of its own run; everything else in the run config is the clients' or the auditor's.
_SERVER_FACTS = ("rounds", "fraction", "local-epochs", "batch-size", "lr", "momentum", "weight-decay")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg under observation."""
    config = context.run_config
    study = Study.of(config)
    model = study.build_model()
    facts = {key: config[key] for key in _SERVER_FACTS} | {"model": study.model_name}
    strategy = honest_but_curious(
        str(config["record"]),
        fraction=float(config["fraction"]),
        clients=study.clients,
        seed=study.seed,
        facts=facts,
    )
    strategy.start(
        OrderedGrid(grid, study.clients),
        ArrayRecord(model.state_dict()),
        num_rounds=int(config["rounds"]),
        train_config=ConfigRecord({"lr": float(config["lr"])}),
    )
