"""practices: the server, which reports the largest ε that a client names."""

from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

from practices.task import Net, get_weights


def largest_epsilon(metrics):
    epsilon = max(m["epsilon"] for _, m in metrics)
    print(f"Spent: {epsilon:.2f}")
    return {"epsilon": epsilon}


def server_fn(context: Context) -> ServerAppComponents:
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_available_clients=10,
        initial_parameters=ndarrays_to_parameters(get_weights(Net())),
        fit_metrics_aggregation_fn=largest_epsilon,
    )
    config = ServerConfig(num_rounds=context.run_config["num-server-rounds"])

    return ServerAppComponents(config=config, strategy=strategy)


app = ServerApp(server_fn=server_fn)
