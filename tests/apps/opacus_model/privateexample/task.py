"""privateexample: model, data and training."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

SIZES = [30, 40, 50, 60]
HELD_OUT = 10


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 24)
        self.fc2 = nn.Linear(24, 10)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def load_data(site: int):
    """Return the loaders of a site: what it trains on, and what it tests on."""
    digits = load_digits()
    start = sum(SIZES[:site]) + HELD_OUT * site
    x = torch.tensor(digits.data[start : start + SIZES[site] + HELD_OUT] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[start : start + SIZES[site] + HELD_OUT])
    own = TensorDataset(x[HELD_OUT:], y[HELD_OUT:])
    other = TensorDataset(x[:HELD_OUT], y[:HELD_OUT])
    return DataLoader(own, batch_size=10, shuffle=True), DataLoader(other, batch_size=10)


def train(net, train_loader, privacy_engine, optimizer, epochs, delta):
    criterion = torch.nn.CrossEntropyLoss()
    net.train()
    for _ in range(epochs):
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(net(x), y)
            loss.backward()
            optimizer.step()
    return privacy_engine.get_epsilon(delta=delta)


def test(net, test_loader):
    net.eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for x, y in test_loader:
            outputs = net(x)
            loss += F.cross_entropy(outputs, y).item()
            correct += (outputs.argmax(1) == y).sum().item()
    return loss / len(test_loader), correct / len(test_loader.dataset)
