"""practices: model, data and training."""

from collections import OrderedDict

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


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
    own = slice(128 * partition_id, 128 * (partition_id + 1))
    x = torch.tensor(digits.data[own] / 16.0, dtype=torch.float32)
    return DataLoader(TensorDataset(x, torch.tensor(digits.target[own])), batch_size=32, shuffle=True)


def train(net, train_loader, privacy_engine, optimizer, target_delta):
    net.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return privacy_engine.get_epsilon(delta=target_delta)
