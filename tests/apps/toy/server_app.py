"""A toy app: its server."""

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from toyapp.task import initial_arrays

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train in rounds."""
    config = context.run_config
    clients = int(config.get("num-clients", 2))
    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=config["fraction-evaluate"],
        min_train_nodes=clients,
        min_available_nodes=clients,
        arrayrecord_key="arrays",
        configrecord_key="config",
        weighted_by_key="num-examples",
    )
    strategy.start(
        grid=grid,
        initial_arrays=initial_arrays(),
        num_rounds=config["num-server-rounds"],
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
    )
