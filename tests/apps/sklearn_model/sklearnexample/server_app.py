"""sklearnexample: A Flower / sklearn app."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sklearnexample.task import create_model, get_model_params

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    model = create_model(context.run_config["penalty"])
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(get_model_params(model)),
        num_rounds=context.run_config["num-server-rounds"],
    )
