"""digitsfl: model, data and training."""

from collections import OrderedDict

import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 48)
        self.out = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(x)))


def get_weights(net):
    return [val.cpu().numpy() for _, val in net.state_dict().items()]


def set_weights(net, parameters):
    params_dict = zip(net.state_dict().keys(), parameters, strict=True)
    state_dict = OrderedDict({k: torch.tensor(v) for k, v in params_dict})
    net.load_state_dict(state_dict, strict=True)


def load_data(partition_id: int):
    """Each participant typed in a different number of forms."""
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    y = torch.tensor(digits.target)
    start, size = 100 * partition_id, 30 + 10 * partition_id
    own = slice(start, start + size)
    held_out = slice(1500, 1797)
    return (x[own], y[own]), (x[held_out], y[held_out])


def train(net, data, epochs):
    x, y = data
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    net.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(10):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
    return loss.item()


def test(net, data):
    x, y = data
    net.eval()
    with torch.no_grad():
        outputs = net(x)
        loss = nn.functional.cross_entropy(outputs, y).item()
        return loss, (outputs.argmax(1) == y).float().mean().item()
