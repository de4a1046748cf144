"""practices: a step of Opacus by itself, for whoever tests it."""

import torch
from opacus.optimizers import DPOptimizer
from torch import nn


def step(update):
    """Return what one step releases where the only example has this gradient."""
    parameters = []
    for gradient in update.values():
        parameter = nn.Parameter(torch.zeros(gradient.shape))
        parameter.grad_sample = torch.tensor(gradient)[None]
        parameters.append(parameter)
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    DPOptimizer(optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1).step()
    return {name: -parameter.detach().numpy() for name, parameter in zip(update, parameters, strict=True)}
