"""Invert batches as the attack does, without a record."""

from fedattack.base.machine import MEMORY
from fedattack.threats.inversion.gradient_inversion import groups_of, invert_group


def invert(client, batches, shape, how, *, seed=0, memory=MEMORY):
    found = {}
    for group in groups_of(batches, how, client.training, memory, client.device):
        found |= invert_group(client, group, shape, how, seed=seed, memory=memory)
    return [found[number] for number in range(len(batches))]
