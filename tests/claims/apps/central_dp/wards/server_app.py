"""wards: the server, which adds the noise."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from wards.task import Net, accuracy, load_test

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""

    # Load global model
    model = Net()
    arrays = ArrayRecord(model.state_dict())
    clients = context.run_config["num-sampled-clients"]

    # Initialize FedAvg strategy
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=clients)

    # Wrap it, and count what is spent
    privacy = PrivacyConfig(
        target_delta=context.run_config["target-delta"],
        population_size=clients,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=SamplingMethod.NO_AMPLIFICATION,
    )
    strategy = DifferentialPrivacyServerSideFixedClipping(
        strategy,
        noise_multiplier=context.run_config["noise-multiplier"],
        clipping_norm=context.run_config["clipping-norm"],
        num_sampled_clients=clients,
        accountant=RdpAccountant(privacy),
    )

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
    print(f"Spent: {strategy.privacy_spent().epsilon:.2f}")
