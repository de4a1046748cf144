"""sklearnexample: A Flower / sklearn app."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from sklearnexample.task import CLASSES, create_model, get_model_params, load_data, set_model_params

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    model = create_model(context.run_config["penalty"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    x, y = load_data(context.node_config["partition-id"])
    for _ in range(context.run_config["local-epochs"]):
        model.partial_fit(x, y, classes=CLASSES)
    metrics = MetricRecord(
        {"num-examples": len(x), "train_logloss": log_loss(y, model.predict_proba(x), labels=CLASSES)}
    )
    content = RecordDict({"arrays": ArrayRecord(get_model_params(model)), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate the model on local data."""
    model = create_model(context.run_config["penalty"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    x, y = load_data(context.node_config["partition-id"])
    metrics = MetricRecord({"num-examples": len(x), "accuracy": float(model.score(x, y))})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
