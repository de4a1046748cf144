"""A toy app: what each site runs, of Flower's first generation."""

from flwr.client import ClientApp, NumPyClient
from flwr.common import Context
from toyapp.task import MODS, arrays_of, load_data, make_model, put, test, train


class FlowerClient(NumPyClient):
    def __init__(self, net, trainset, testset, settings):
        self.net = net
        self.trainset = trainset
        self.testset = testset
        self.settings = settings

    def fit(self, parameters, config):
        put(self.net, parameters)
        metrics = train(self.net, self.trainset, self.settings)
        return arrays_of(self.net), metrics.pop("num-examples"), metrics

    def evaluate(self, parameters, config):
        put(self.net, parameters)
        metrics = test(self.net, self.testset)
        return metrics.pop("loss"), metrics.pop("num-examples"), metrics


def client_fn(context: Context):
    trainset, testset = load_data(context.node_config["partition-id"])
    return FlowerClient(make_model(), trainset, testset, context.run_config).to_client()


app = ClientApp(client_fn, mods=MODS)
