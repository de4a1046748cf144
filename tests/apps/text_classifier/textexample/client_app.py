"""textexample: the clients."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from textexample.task import load_data, make_model
from textexample.task import test as test_fn
from textexample.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train on this site's texts."""
    net = make_model()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainloader, _ = load_data(int(context.node_config["partition-id"]))
    torch.manual_seed(int(context.node_config["partition-id"]))
    train_fn(net, trainloader, context.run_config["local-epochs"], context.run_config["learning-rate"])
    metrics = MetricRecord({"num-examples": len(trainloader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate on texts that nobody trains on."""
    net = make_model()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, testloader = load_data(int(context.node_config["partition-id"]))
    loss, accuracy = test_fn(net, testloader)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(testloader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
