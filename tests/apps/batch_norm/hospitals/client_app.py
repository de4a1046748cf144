"""hospitals: what each site runs."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hospitals.task import fit, load_site, make_model

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    model = make_model()
    model.load_state_dict(msg.content["model"].to_torch_state_dict())
    images, labels = load_site(context.node_config["partition-id"])
    config = msg.content["settings"]
    loss = fit(model, images, labels, config["epochs"], config["lr"])
    content = RecordDict(
        {
            "model": ArrayRecord(model.state_dict()),
            "report": MetricRecord({"patients": len(labels), "loss": loss}),
        }
    )
    return Message(content, reply_to=msg)
