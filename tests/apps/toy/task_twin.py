"""The softmax regression of the app in NumPy, in PyTorch: the same arithmetic on the same data."""

import numpy as np
import torch
from flwr.app import ArrayRecord

FEATURES, CLASSES = 64, 10


def make_model():
    """Begin with zeros."""
    model = torch.nn.Linear(FEATURES, CLASSES)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return model


def arrays_of(model):
    return ArrayRecord(model.state_dict())


def put(model, arrays):
    model.load_state_dict(arrays.to_torch_state_dict())


def initial_arrays():
    return arrays_of(make_model())


def load_data(site: int, sites: int = 0):
    draw = np.random.default_rng((11, site))
    size = 20 + 8 * site
    own = draw.normal(size=(size, FEATURES)).astype(np.float32), draw.integers(CLASSES, size=size)
    return own, None


def train(model, data, config):
    x, y = map(torch.from_numpy, data)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(config["local-epochs"]):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {"num-examples": len(y)}


def test(model, data):
    raise NotImplementedError("nobody evaluates")
