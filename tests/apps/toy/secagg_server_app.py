"""A toy app: its server, which sees sums alone."""

from flwr.common import Context, ndarrays_to_parameters
from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from toyapp.task import arrays_of, make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    strategy = FedAvg(
        fraction_fit=settings["fraction-fit"],
        fraction_evaluate=0.0,
        min_available_clients=4,
        initial_parameters=ndarrays_to_parameters(arrays_of(make_model())),
    )
    config = ServerConfig(num_rounds=settings["num-server-rounds"])
    context = LegacyContext(context=context, config=config, strategy=strategy)
    masked = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=1000, timeout=300.0)
    DefaultWorkflow(fit_workflow=masked)(grid, context)
