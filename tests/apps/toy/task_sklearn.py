"""A logistic regression of scikit-learn, which is evaluated on what it was trained on."""

import numpy as np
from flwr.app import ArrayRecord
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from toyapp.digits import digits_of

CLASSES = np.arange(10)


def make_model() -> SGDClassifier:
    """Create a logistic regression that can be trained further."""
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.1)
    model.classes_ = CLASSES
    model.coef_, model.intercept_ = np.zeros((10, 64)), np.zeros(10)
    return model


def arrays_of(model):
    return ArrayRecord([model.coef_, model.intercept_])


def put(model, arrays):
    model.coef_, model.intercept_ = (array.copy() for array in arrays.to_numpy_ndarrays())


def initial_arrays():
    return arrays_of(make_model())


def load_data(site: int, sites: int):
    (x, y), _ = digits_of(site)
    own = x.numpy().astype(np.float64), y.numpy()
    return own, own


def train(model, data, config):
    x, y = data
    for _ in range(config["local-epochs"]):
        model.partial_fit(x, y, classes=CLASSES)
    return {"num-examples": len(y), "train_logloss": log_loss(y, model.predict_proba(x), labels=CLASSES)}


def test(model, data):
    return {"num-examples": len(data[1]), "accuracy": float(model.score(*data))}
