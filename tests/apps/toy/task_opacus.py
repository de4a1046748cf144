"""Training with example-level differential privacy by Opacus."""

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset
from toyapp.digits import digits_of, test  # noqa: F401
from toyapp.states import arrays_of, put  # noqa: F401

warnings.filterwarnings("ignore", category=UserWarning)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 24)
        self.fc2 = nn.Linear(24, 10)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def make_model():
    return Net()


def initial_arrays():
    torch.manual_seed(0)
    return arrays_of(make_model())


def load_data(site: int, sites: int):
    return digits_of(site)


def train(model, data, config):
    torch.manual_seed(100 * config["site"] + config["server-round"])
    engine = PrivacyEngine(secure_mode=False)
    net, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=config["lr"]),
        data_loader=DataLoader(TensorDataset(*data), batch_size=10, shuffle=True),
        noise_multiplier=0.8,
        max_grad_norm=1.0,
    )
    net.train()
    for _ in range(config["local-epochs"]):
        for x, y in loader:
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(net(x), y).backward()
            optimizer.step()
    return {"epsilon": engine.get_epsilon(delta=1e-3), "num-examples": len(data[1])}
