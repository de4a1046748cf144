"""Match the gradients of victims as the attack does, without a record."""

import torch

from fedattack.base.machine import MEMORY
from fedattack.threats.attribute.gradient_matching import groups_of, match_group


def match_gradients(model, loss, victims, how, *, seed=0, device="cpu", memory=MEMORY):
    matches = {}
    for group in groups_of(victims, how, memory, torch.device(device)):
        matches |= match_group(model, loss, group, how, seed=seed, device=device)
    return [matches[number] for number in range(len(victims))]
