"""secaggexample: A Flower with SecAgg+ app."""

from flwr.common import Context, ndarrays_to_parameters
from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from secaggexample.task import Net, get_weights

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    # Define strategy
    strategy = FedAvg(
        fraction_fit=context.run_config["fraction-fit"],
        # Disable evaluation for demo
        fraction_evaluate=0.0,
        min_available_clients=4,
        initial_parameters=ndarrays_to_parameters(get_weights(Net())),
    )

    # Construct the LegacyContext
    context = LegacyContext(
        context=context,
        config=ServerConfig(num_rounds=context.run_config["num-server-rounds"]),
        strategy=strategy,
    )

    # Create fit workflow
    fit_workflow = SecAggPlusWorkflow(
        num_shares=context.run_config["num-shares"],
        reconstruction_threshold=context.run_config["reconstruction-threshold"],
        max_weight=context.run_config["max-weight"],
        timeout=context.run_config["timeout"],
    )

    # Create the workflow and execute
    workflow = DefaultWorkflow(fit_workflow=fit_workflow)
    workflow(grid, context)
