"""wards: what each ward runs."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from wards.task import Net, load_data
from wards.task import train as train_fn

# Flower ClientApp
app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""

    # Load the model and initialize it with the received weights
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())

    # Call the training function
    x, y = load_data(context.node_config["partition-id"])
    loss = train_fn(model, x, y, context.run_config["local-epochs"], msg.content["config"]["lr"])

    # Construct and return reply Message
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"train_loss": loss, "num-examples": len(y)}),
        }
    )
    return Message(content=content, reply_to=msg)
