"""A toy app: what each site runs."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from toyapp.task import arrays_of, load_data, make_model, put
from toyapp.task import test as test_fn
from toyapp.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    model = make_model()
    put(model, msg.content["arrays"])
    site = context.node_config["partition-id"]
    trainset, _ = load_data(site, context.node_config["num-partitions"])
    metrics = train_fn(model, trainset, {**context.run_config, **msg.content["config"], "site": site})
    content = RecordDict({"arrays": arrays_of(model), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    model = make_model()
    put(model, msg.content["arrays"])
    _, testset = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    return Message(content=RecordDict({"metrics": MetricRecord(test_fn(model, testset))}), reply_to=msg)
