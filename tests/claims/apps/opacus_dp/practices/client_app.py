"""practices: training with example-level differential privacy by Opacus."""

import logging
import warnings

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context
from opacus import PrivacyEngine

from practices.task import Net, get_weights, load_data, set_weights, train

warnings.filterwarnings("ignore", category=UserWarning)
logging.getLogger("opacus").setLevel(logging.ERROR)


class FlowerClient(NumPyClient):
    def __init__(self, train_loader, settings) -> None:
        super().__init__()
        self.model = Net()
        self.train_loader = train_loader
        self.settings = settings

    def fit(self, parameters, config):
        model = self.model
        set_weights(model, parameters)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.settings["learning-rate"], momentum=0.9)

        privacy_engine = PrivacyEngine(secure_mode=False)
        model, optimizer, self.train_loader = privacy_engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=self.train_loader,
            noise_multiplier=self.settings["noise-multiplier"],
            max_grad_norm=self.settings["max-grad-norm"],
        )

        delta = self.settings["target-delta"]
        epsilon = train(model, self.train_loader, privacy_engine, optimizer, delta)
        print(f"Epsilon value for delta={delta} is {epsilon:.2f}")

        return get_weights(model), len(self.train_loader.dataset), {"epsilon": epsilon}


def client_fn(context: Context):
    train_loader = load_data(context.node_config["partition-id"])
    return FlowerClient(train_loader, context.run_config).to_client()


app = ClientApp(client_fn=client_fn)
