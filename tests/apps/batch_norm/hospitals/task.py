"""hospitals: model, data and training."""

import torch
from sklearn.datasets import load_digits
from torch import nn

SIZES = [30, 45, 60, 75]


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


def load_site(site: int):
    digits = load_digits()
    start = sum(SIZES[:site])
    own = slice(start, start + SIZES[site])
    images = torch.tensor(digits.images[own] / 16.0, dtype=torch.float32).unsqueeze(1)
    return images, torch.tensor(digits.target[own])


def fit(model: nn.Module, images, labels, epochs: int, lr: float) -> float:
    torch.manual_seed(len(labels))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(15):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
    return loss.item()
