"""clinics: the server, and one that takes sums by SecAgg+."""

from flwr.app import ArrayRecord, Context
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod, ServerApp
from flwr.serverapp.strategy import FedAvg

from clinics.privacy import WRAPPERS
from clinics.task import accuracy, load_test, make_model

# Create ServerApps
app = ServerApp()
legacy = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""

    # Load global model
    config = context.run_config
    model = make_model(config)

    # Initialize FedAvg strategy
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=10)
    if config["privacy"] in WRAPPERS:
        # Wrap it, and count what is spent
        privacy = PrivacyConfig(
            target_delta=1e-5,
            population_size=10,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
        )
        wrapper = WRAPPERS[config["privacy"]]
        strategy = wrapper(strategy, 2.0, 1.0, num_sampled_clients=10, accountant=RdpAccountant(privacy))

    # Start strategy, run FedAvg for `num_rounds`
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=config["num-server-rounds"],
    )

    # Say how good it is, and what was spent
    model.load_state_dict(result.arrays.to_torch_state_dict())
    print(f"Final accuracy: {accuracy(model, *load_test()):.3f}")
    if config["privacy"] in WRAPPERS:
        print(f"Spent: {strategy.privacy_spent().epsilon:.2f}")
    for metrics in result.train_metrics_clientapp.values():
        if "epsilon" in metrics:
            print(f"Spent: {metrics['epsilon']:.2f}")


@legacy.main()
def take_sums(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp with SecAgg+."""

    # Define strategy
    config = context.run_config
    weights = [value.numpy() for value in make_model(config).state_dict().values()]
    strategy = LegacyFedAvg(
        fraction_evaluate=0.0,
        min_available_clients=10,
        initial_parameters=ndarrays_to_parameters(weights),
    )

    # Construct the LegacyContext
    rounds = ServerConfig(num_rounds=config["num-server-rounds"])
    context = LegacyContext(context=context, config=rounds, strategy=strategy)

    # Create the workflow and execute
    fit = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=1000, timeout=300.0)
    DefaultWorkflow(fit_workflow=fit)(grid, context)
