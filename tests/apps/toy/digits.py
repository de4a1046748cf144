"""Digits, and training on them, as several tasks have it."""

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F  # noqa: N812

HELD_OUT = 10


def digits_of(site: int, shape=(64,)):
    """Return what a site trains on, which is more at later sites, and what it alone evaluates on."""
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32).reshape(-1, *shape)
    y = torch.tensor(digits.target)
    start, size = 100 * site, 30 + 10 * site
    own, other = slice(start, start + size), slice(start + size, start + size + HELD_OUT)
    return (x[own], y[own]), (x[other], y[other])


def train(net, data, config):
    """Train by plain steps."""
    x, y = data
    optimizer = torch.optim.SGD(net.parameters(), lr=config["learning-rate"], momentum=config["momentum"])
    net.train()
    for _ in range(config["local-epochs"]):
        for batch in torch.randperm(len(y)).split(config["batch-size"]):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
    return {"train_loss": loss.item(), "num-examples": len(y)}


def test(net, data):
    x, y = data
    net.eval()
    with torch.no_grad():
        outputs = net(x)
    accuracy = (outputs.argmax(1) == y).float().mean().item()
    return {"loss": F.cross_entropy(outputs, y).item(), "accuracy": accuracy, "num-examples": len(y)}


def arrays_of(net):
    """Return a model's arrays without their names."""
    return [val.cpu().numpy() for _, val in net.state_dict().items()]


def put(net, arrays):
    state = zip(net.state_dict(), map(torch.tensor, arrays), strict=True)
    net.load_state_dict(dict(state))
