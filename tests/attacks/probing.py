"""Gradients of single examples, the obvious way: one call of ``backward`` for each."""

import numpy as np
import torch
from torch import nn

from fedattack.attacks.roles import ArrayRole, Probe, find_roles


def cross_entropy(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels)


def probe_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss=cross_entropy) -> Probe:
    gradients = {name: [] for name, _ in model.named_parameters()}
    model.eval()
    for row in range(len(x)):
        model.zero_grad()
        loss(model(x[row : row + 1]), y[row : row + 1]).backward()
        for name, parameter in model.named_parameters():
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradients[name].append(own.numpy().copy())
    stacked = {name: np.stack(of_rows) for name, of_rows in gradients.items()}
    touched = {
        name: (each != 0).reshape(*each.shape[:2], -1).any(axis=2) for name, each in stacked.items() if each.ndim > 2
    }
    weights = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
    return Probe(stacked, touched, weights=weights)


def shuffle(model: nn.Module) -> None:
    """Put the numbers of each array into another order."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            order = torch.randperm(parameter.numel(), generator=generator)
            parameter.copy_(parameter.reshape(-1)[order].reshape(parameter.shape))


def roles_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss=cross_entropy) -> tuple[ArrayRole, ...]:
    first = probe_of(model, x, y, loss)
    shuffle(model)
    return find_roles([first, probe_of(model, x, y, loss)], x.numpy(), y.numpy())


def kinds_of(roles: tuple[ArrayRole, ...]) -> dict[str, list[str]]:
    found = {}
    for role in roles:
        found.setdefault(role.name, []).append(role.kind)
    return found
