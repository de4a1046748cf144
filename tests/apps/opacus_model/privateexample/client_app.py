"""privateexample: training with example-level differential privacy by Opacus."""

import warnings

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from opacus import PrivacyEngine

from privateexample.task import Net, load_data
from privateexample.task import test as test_fn
from privateexample.task import train as train_fn

warnings.filterwarnings("ignore", category=UserWarning)

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data, privately."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    site = context.node_config["partition-id"]
    torch.manual_seed(100 * site + msg.content["config"]["server-round"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train_loader, _ = load_data(site)
    privacy_engine = PrivacyEngine(secure_mode=False)
    private, optimizer, private_loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=context.run_config["noise-multiplier"],
        max_grad_norm=context.run_config["max-grad-norm"],
    )
    epsilon = train_fn(
        private,
        private_loader,
        privacy_engine,
        optimizer,
        context.run_config["local-epochs"],
        context.run_config["target-delta"],
    )
    metrics = MetricRecord({"epsilon": epsilon, "num-examples": len(train_loader.dataset)})
    # The engine has wrapped the model.
    content = RecordDict({"arrays": ArrayRecord(private._module.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, test_loader = load_data(context.node_config["partition-id"])
    loss, accuracy = test_fn(model, test_loader)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(test_loader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
