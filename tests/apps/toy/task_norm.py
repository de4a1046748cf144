"""A model with batch norm that a function makes."""

import torch
from torch import nn
from toyapp.digits import digits_of
from toyapp.digits import train as train_digits
from toyapp.states import arrays_of, put  # noqa: F401


def make_model(width: int = 8) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(width * 16, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def initial_arrays():
    torch.manual_seed(0)
    return arrays_of(make_model())


def load_data(site: int, sites: int):
    return digits_of(site, (1, 8, 8))


def train(net, data, config):
    torch.manual_seed(config["site"])
    return train_digits(net, data, config)


def test(net, data):
    raise NotImplementedError("nobody evaluates")
