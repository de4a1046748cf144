"""A toy app: its server, of Flower's first generation."""

from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from toyapp.task import arrays_of, make_model


def weighted_average(metrics):
    examples = [num_examples for num_examples, _ in metrics]
    return {"accuracy": sum(n * m["accuracy"] for n, m in metrics) / sum(examples)}


def server_fn(context: Context):
    strategy = FedAvg(
        fraction_fit=context.run_config["fraction-fit"],
        fraction_evaluate=1.0,
        min_available_clients=2,
        initial_parameters=ndarrays_to_parameters(arrays_of(make_model())),
        evaluate_metrics_aggregation_fn=weighted_average,
    )
    config = ServerConfig(num_rounds=context.run_config["num-server-rounds"])
    return ServerAppComponents(strategy=strategy, config=config)


app = ServerApp(server_fn=server_fn)
