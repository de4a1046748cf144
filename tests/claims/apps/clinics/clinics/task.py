"""clinics: model, data and training."""

import torch
from sklearn.datasets import load_digits
from torch import nn


def make_model(config):
    """Make a model with one hidden layer, or none."""
    if not config["hidden"]:
        return nn.Sequential(nn.Linear(64, 10))
    return nn.Sequential(nn.Linear(64, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 10))


def load_data(partition_id: int, config):
    """Each clinic may have some forms more than the one before."""
    digits = load_digits()
    sizes = [config["examples"] + config["more-examples"] * other for other in range(partition_id + 1)]
    own = slice(sum(sizes[:-1]), sum(sizes))
    return torch.tensor(digits.data[own] / 16.0, dtype=torch.float32), torch.tensor(digits.target[own])


def load_test():
    digits = load_digits()
    return torch.tensor(digits.data[1400:] / 16.0, dtype=torch.float32), torch.tensor(digits.target[1400:])


def make_optimizer(net, config):
    return torch.optim.SGD(net.parameters(), lr=config["learning-rate"], momentum=config["momentum"])


def train(net, x, y, config):
    optimizer = make_optimizer(net, config)
    for _ in range(config["local-epochs"]):
        for batch in torch.randperm(len(y)).split(config["batch-size"]):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
    return loss.item()


def accuracy(net, x, y):
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()
