"""numpyexample: A Flower app in NumPy alone."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from numpyexample.task import load_data, train

app = ClientApp()


@app.train()
def train_model(msg: Message, context: Context):
    """Train the model on local data."""
    model = {name: array.numpy() for name, array in msg.content["arrays"].items()}
    x, y = load_data(int(context.node_config["partition-id"]))
    trained = train(model, x, y, float(context.run_config["lr"]), int(context.run_config["local-epochs"]))
    arrays = ArrayRecord({name: Array(array) for name, array in trained.items()})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(y)})})
    return Message(content=content, reply_to=msg)
