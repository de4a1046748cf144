"""secaggexample: A Flower with SecAgg+ app."""

from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Context

from secaggexample.task import Net, get_weights, load_data, set_weights, train


# Define Flower Client
class FlowerClient(NumPyClient):
    def __init__(self, data):
        self.net = Net()
        self.x, self.y = data

    def fit(self, parameters, config):
        set_weights(self.net, parameters)
        train(self.net, self.x, self.y)
        return get_weights(self.net), len(self.y), {}


def client_fn(context: Context):
    return FlowerClient(load_data(context.node_config["partition-id"])).to_client()


# Flower ClientApp
app = ClientApp(
    client_fn=client_fn,
    mods=[
        secaggplus_mod,
    ],
)
