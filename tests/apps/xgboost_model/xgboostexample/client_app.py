"""xgboostexample: what each site runs."""

import numpy as np
import xgboost
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from xgboostexample.task import PARAMS, load_data

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Add trees to the model that all share, and return these trees."""
    (x, y), _ = load_data(context.node_config["partition-id"])
    own = xgboost.DMatrix(x, label=y)
    params = PARAMS | {"eta": context.run_config["eta"]}
    rounds = context.run_config["local-epochs"]
    if msg.content["config"]["server-round"] == 1:
        trees = xgboost.train(params, own, num_boost_round=rounds)
    else:
        trees = xgboost.Booster(params=params)
        trees.load_model(bytearray(msg.content["arrays"]["0"].numpy().tobytes()))
        for _ in range(rounds):
            trees.update(own, trees.num_boosted_rounds())
        trees = trees[trees.num_boosted_rounds() - rounds : trees.num_boosted_rounds()]
    model = np.frombuffer(trees.save_raw("json"), dtype=np.uint8)
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(content=RecordDict({"arrays": ArrayRecord([model]), "metrics": metrics}), reply_to=msg)
