"""Small federations, one per generation of Flower, as their owners would write them."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp import ServerApp

SHAPES = {"layer.weight": (3, 2), "layer.bias": (3,), "norm.num_batches_tracked": ()}


def initial_arrays() -> dict[str, np.ndarray]:
    return {
        "layer.weight": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2),
        "layer.bias": np.zeros(3, dtype=np.float32),
        "norm.num_batches_tracked": np.array(0, dtype=np.int64),
    }


def train(arrays: list[np.ndarray], partition: int, server_round: int) -> list[np.ndarray]:
    """Anything that differs by client and round and is no round number in binary."""
    step = np.float32(0.1 * (partition + 1) / server_round)
    return [array + step if array.dtype.kind == "f" else array + 1 for array in arrays]


message_client = ClientApp()


@message_client.train()
def _train(message: Message, context: Context) -> Message:
    partition = context.node_config["partition-id"]
    received = message.content["arrays"]
    arrays = train([item.numpy() for item in received.values()], partition, message.content["config"]["server-round"])
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(np.asarray(a)) for name, a in zip(received, arrays, strict=True)}),
            "metrics": MetricRecord({"num-examples": 10 + 3 * partition, "train-loss": 0.5 + partition}),
        }
    )
    return Message(content, reply_to=message)


@message_client.evaluate()
def _evaluate(message: Message, context: Context) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 5, "loss": 1.0})}), reply_to=message)


class TrainingClient(NumPyClient):
    def __init__(self, partition: int) -> None:
        self.partition = partition

    def fit(self, parameters, config):
        arrays = train(parameters, self.partition, int(config.get("server-round", config.get("round", 1))))
        return arrays, 10 + 3 * self.partition, {"train-loss": 0.5 + self.partition, "site": f"site {self.partition}"}

    def evaluate(self, parameters, config):
        return 1.0, 5, {"accuracy": 0.5}


def client_fn(context: Context):
    return TrainingClient(int(context.node_config["partition-id"])).to_client()


def message_server(make_strategy, rounds: int, results: dict) -> ServerApp:
    """A Message-API app; ``results["final"]`` is the final model."""
    app = ServerApp()

    @app.main()
    def main(grid, context):
        record = ArrayRecord({name: Array(array) for name, array in initial_arrays().items()})
        result = make_strategy().start(grid, record, num_rounds=rounds, train_config=ConfigRecord({"lr": 0.1}))
        results["final"] = {name: array.numpy() for name, array in result.arrays.items()}

    return app


def legacy_server(make_strategy, rounds: int) -> ServerApp:
    def server_fn(context: Context):
        return ServerAppComponents(strategy=make_strategy(), config=ServerConfig(num_rounds=rounds))

    return ServerApp(server_fn=server_fn)


def legacy_fedavg(results: dict, strategy=LegacyFedAvg):
    """A legacy strategy that keeps the last global model in ``results``."""

    class Keeping(strategy):
        def aggregate_fit(self, server_round, rounds_results, failures):
            parameters, metrics = super().aggregate_fit(server_round, rounds_results, failures)
            results["final"] = parameters
            return parameters, metrics

    floats = [array for array in initial_arrays().values() if array.dtype.kind == "f"]
    return Keeping(
        initial_parameters=ndarrays_to_parameters(floats),
        on_fit_config_fn=lambda server_round: {"round": server_round},
        min_fit_clients=2,
        min_available_clients=2,
    )
