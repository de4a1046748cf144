"""digitsfl: the clients."""

from flwr.client import ClientApp, NumPyClient
from flwr.common import Context

from digitsfl.task import Net, get_weights, load_data, set_weights, test, train


class FlowerClient(NumPyClient):
    def __init__(self, net, trainset, testset, local_epochs):
        self.net = net
        self.trainset = trainset
        self.testset = testset
        self.local_epochs = local_epochs

    def fit(self, parameters, config):
        set_weights(self.net, parameters)
        train_loss = train(self.net, self.trainset, self.local_epochs)
        return get_weights(self.net), len(self.trainset[1]), {"train_loss": train_loss}

    def evaluate(self, parameters, config):
        set_weights(self.net, parameters)
        loss, accuracy = test(self.net, self.testset)
        return loss, len(self.testset[1]), {"accuracy": accuracy}


def client_fn(context: Context):
    trainset, testset = load_data(context.node_config["partition-id"])
    return FlowerClient(Net(), trainset, testset, context.run_config["local-epochs"]).to_client()


app = ClientApp(client_fn)
