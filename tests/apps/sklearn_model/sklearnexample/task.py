"""sklearnexample: A Flower / sklearn app."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

CLASSES = np.arange(10)


def load_data(partition_id: int):
    """A few digits only, more at later sites."""
    digits = load_digits()
    start, size = 120 * partition_id, 20 + 8 * partition_id
    return digits.data[start : start + size] / 16.0, digits.target[start : start + size]


def create_model(penalty: float) -> SGDClassifier:
    """Create a logistic regression that can be trained further."""
    model = SGDClassifier(loss="log_loss", alpha=penalty, learning_rate="constant", eta0=0.1)
    model.classes_ = CLASSES
    set_model_params(model, [np.zeros((10, 64)), np.zeros(10)])
    return model


def get_model_params(model: SGDClassifier):
    return [model.coef_, model.intercept_]


def set_model_params(model: SGDClassifier, params) -> None:
    model.coef_, model.intercept_ = params[0].copy(), params[1].copy()
