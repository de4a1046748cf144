"""clinics: what each clinic runs, and what it runs below the masks of SecAgg+."""

import logging
import warnings

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

from clinics.privacy import masked, mod, train_privately
from clinics.task import load_data, make_model
from clinics.task import train as train_fn

warnings.filterwarnings("ignore", category=UserWarning)
logging.getLogger("opacus").setLevel(logging.ERROR)

# Flower ClientApp
app = ClientApp(mods=[mod])


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""

    # Load the model and initialize it with the received weights
    config = context.run_config
    model = make_model(config)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())

    # Call the training function
    x, y = load_data(context.node_config["partition-id"], config)
    metrics = {"num-examples": len(y)}
    if config["privacy"] == "opacus":
        metrics["epsilon"] = train_privately(model, x, y, config)
    else:
        metrics["train_loss"] = train_fn(model, x, y, config)

    # Construct and return reply Message
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


class SummedClient(NumPyClient):
    def __init__(self, data, config):
        self.net = make_model(config)
        self.x, self.y = data
        self.config = config

    def fit(self, parameters, config):
        names = self.net.state_dict()
        self.net.load_state_dict({name: torch.tensor(value) for name, value in zip(names, parameters, strict=True)})
        train_fn(self.net, self.x, self.y, self.config)
        return [value.numpy() for value in self.net.state_dict().values()], len(self.y), {}


def client_fn(context: Context):
    config = context.run_config
    return SummedClient(load_data(context.node_config["partition-id"], config), config).to_client()


# Masks go over the noise
legacy = ClientApp(client_fn=client_fn, mods=[secaggplus_mod, masked])
