"""lightningexample: what each site runs."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from lightningexample.task import LitDigits, load_data, make_trainer

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    model = LitDigits(hidden=24)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainloader, valloader = load_data(context.node_config["partition-id"])
    trainer = make_trainer(context.run_config["max-epochs"])
    trainer.fit(model, trainloader, valloader)
    metrics = {"train_loss": float(trainer.callback_metrics["train_loss"]), "num-examples": len(trainloader.dataset)}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    model = LitDigits(hidden=24)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, valloader = load_data(context.node_config["partition-id"])
    (found,) = make_trainer(1).validate(model, valloader, verbose=False)
    metrics = MetricRecord({"eval_loss": found["val_loss"], "num-examples": len(valloader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
