"""A convolutional network, in loaders of digits that are drawn."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from toyapp.states import arrays_of, put  # noqa: F401


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(6 * 3 * 3, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = x.view(-1, 6 * 3 * 3)
        x = F.relu(self.fc1(x))
        return self.fc2(x)


def make_model():
    return Net()


def initial_arrays():
    return arrays_of(make_model())


def load_data(site: int, sites: int):
    """Load what this site has drawn; the sites are not equally busy."""
    digits = load_digits()
    images = torch.tensor(digits.images[:, None] / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    shuffled = np.random.default_rng(2024).permutation(len(labels))[: 60 * sites]
    bounds = np.cumsum([40 + 40 * site // max(sites - 1, 1) for site in range(sites)])
    own = np.split(shuffled, bounds)[site]
    train, test = own[: int(0.8 * len(own))], own[int(0.8 * len(own)) :]
    return (images[train], labels[train]), (images[test], labels[test])


def train(net, data, config):
    loader = DataLoader(TensorDataset(*data), batch_size=config["batch-size"], shuffle=True)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(config["local-epochs"]):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return {"train_loss": running_loss / len(loader), "num-examples": len(data[1])}


def test(net, data):
    criterion = nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    net.eval()
    with torch.no_grad():
        for images, labels in DataLoader(TensorDataset(*data), batch_size=16):
            outputs = net(images)
            loss += criterion(outputs, labels).item()
            correct += (torch.max(outputs, 1)[1] == labels).sum().item()
    return {"eval_loss": loss, "eval_acc": correct / len(data[1]), "num-examples": len(data[1])}
