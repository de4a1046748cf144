"""secaggexample: model, data and training."""

from collections import OrderedDict

import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(x)


def get_weights(net):
    return [val.cpu().numpy() for _, val in net.state_dict().items()]


def set_weights(net, parameters):
    params_dict = zip(net.state_dict().keys(), parameters, strict=True)
    net.load_state_dict(OrderedDict({k: torch.tensor(v) for k, v in params_dict}), strict=True)


def load_data(partition_id):
    digits = load_digits()
    own = slice(50 * partition_id, 50 * (partition_id + 1))
    return torch.tensor(digits.data[own] / 16.0, dtype=torch.float32), torch.tensor(digits.target[own])


def train(net, x, y):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for batch in torch.randperm(len(y)).split(25):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
