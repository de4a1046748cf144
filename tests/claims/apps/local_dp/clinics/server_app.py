"""clinics: the server."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from clinics.task import Net, accuracy, load_test

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""

    # Load global model
    model = Net()
    arrays = ArrayRecord(model.state_dict())

    # Initialize FedAvg strategy
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=10)

    # Start strategy, run FedAvg for `num_rounds`
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )

    # Say how good it is
    model.load_state_dict(result.arrays.to_torch_state_dict())
    print(f"Final accuracy: {accuracy(model, *load_test()):.3f}")
