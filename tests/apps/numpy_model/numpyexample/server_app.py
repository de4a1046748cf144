"""numpyexample: A Flower app in NumPy alone."""

from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from numpyexample.task import initial_model

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    clients = int(context.run_config["num-clients"])
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(array) for name, array in initial_model().items()}),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
