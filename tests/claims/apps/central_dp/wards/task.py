"""wards: model, data and training."""

import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def load_data(partition_id: int):
    digits = load_digits()
    own = slice(120 * partition_id, 120 * (partition_id + 1))
    return torch.tensor(digits.data[own] / 16.0, dtype=torch.float32), torch.tensor(digits.target[own])


def load_test():
    digits = load_digits()
    return torch.tensor(digits.data[1400:] / 16.0, dtype=torch.float32), torch.tensor(digits.target[1400:])


def train(net, x, y, epochs, lr):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(16):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
    return loss.item()


def accuracy(net, x, y):
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()
