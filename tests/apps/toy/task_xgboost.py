"""Trees of XGBoost, bagged over the clients."""

import numpy as np
import xgboost
from flwr.app import ArrayRecord
from sklearn.datasets import load_breast_cancer

SIZES = [40, 60, 80, 100]
PARAMS = {"objective": "binary:logistic", "eval_metric": "auc", "max_depth": 3, "nthread": 1, "tree_method": "hist"}


class Model:
    """The trees that all share, as bytes, and those that were added."""

    trees = b""


def make_model():
    return Model()


def arrays_of(model):
    return ArrayRecord([np.frombuffer(model.trees, dtype=np.uint8)])


def put(model, arrays):
    model.trees = arrays["0"].numpy().tobytes()


def initial_arrays():
    return arrays_of(make_model())


def load_data(site: int, sites: int = 0):
    """Return what a site trains on."""
    data = load_breast_cancer()
    own = slice(sum(SIZES[:site]), sum(SIZES[: site + 1]))
    return (data.data[own].astype(np.float32), data.target[own]), None


def train(model, data, config):
    """Add a tree to the model that all share, and keep it alone."""
    x, y = data
    own, params = xgboost.DMatrix(x, label=y), PARAMS | {"eta": config["lr"]}
    if not model.trees:
        trees = xgboost.train(params, own, num_boost_round=1)
    else:
        trees = xgboost.Booster(params=params)
        trees.load_model(bytearray(model.trees))
        trees.update(own, trees.num_boosted_rounds())
        trees = trees[trees.num_boosted_rounds() - 1 : trees.num_boosted_rounds()]
    model.trees = bytes(trees.save_raw("json"))
    return {"num-examples": len(y)}


def test(model, data):
    raise NotImplementedError("nobody evaluates")
