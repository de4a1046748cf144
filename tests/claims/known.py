"""Mechanisms of tests, named on the command line as ``tests.claims.known:NAME``; good ones and bad ones."""

from itertools import count as counting

import numpy as np
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod

from fedattack.defences.mods import DefenceMod
from fedattack.defences.noise import Noise

platform = LocalDpMod(1.0, 1e-4, 10, 1e-5)
"""A hospital platform's numbers: the sensitivity is ten thousand times below the clipping norm."""

PLATFORM_CLAIM = """
mechanism = "flower-localdp"
unit = "client"
clip = 1.0
sensitivity = 1e-4
epsilon = 10
delta = 1e-5
rounds = {rounds}
"""

honest = LocalDpMod(1.0, 2.0, 0.9, 1e-5)
clipping_alone = fixedclipping_mod
own_mod = DefenceMod(settings={"defence": "dp-gaussian", "defence-strength": 2.0, "defence-clip": 1.0})


def own_defence():
    return Noise("dp-gaussian", 2.0, 1.0)


def scaled(update, clip=1.0):
    norm = np.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in update.values()))
    factor = min(1.0, clip / norm) if norm else 1.0
    return {name: array * factor for name, array in update.items()}


def gaussian(update, rng, count, sigma=2.0):
    return {name: a + rng.normal(0, sigma, (count, *a.shape)) for name, a in scaled(update).items()}


def laplace(update, rng, count):
    return {name: a + rng.laplace(0, 2.0, (count, *a.shape)) for name, a in scaled(update).items()}


def unclipped(update, rng, count):
    return {name: a + rng.normal(0, 2.0, (count, *a.shape)) for name, a in update.items()}


def noise_first(update, rng):
    return scaled({name: a + rng.normal(0, 2.0, a.shape) for name, a in update.items()})


def half_noisy(update, rng, count):
    sent = gaussian(update, rng, count)
    sent["second"] = np.broadcast_to(scaled(update)["second"], sent["second"].shape)
    return sent


def noise_of_the_update(update, rng, count):
    """Noise that follows the update's own length."""
    clipped = scaled(update)
    length = np.sqrt(sum(float((a**2).sum()) for a in clipped.values()))
    return {name: a + rng.normal(0, 0.2 + 3 * length, (count, *a.shape)) for name, a in clipped.items()}


def bare(update):
    return scaled(update)


def raises(update):
    raise RuntimeError("out of\ncheese")


def not_a_number(update):
    return {name: array * np.nan for name, array in update.items()}


def other_shapes(update):
    return {name: array[:1] for name, array in update.items()}


def other_arrays(update):
    return {"third": update["first"]}


def no_arrays(update):
    return [*update.values()]


def integers(update):
    return {name: array.astype(np.int64) for name, array in update.items()}


def not_repeatable(update, rng):
    return {name: array + np.random.default_rng().normal(size=array.shape) for name, array in update.items()}


calls = counting()


def seeds_itself(update):
    return {name: a + np.random.default_rng().normal(0, 2.0, a.shape) for name, a in scaled(update).items()}


def with_state(update):
    moved = next(calls) / 100
    return {name: array + moved + np.random.normal(size=array.shape) for name, array in update.items()}  # noqa: NPY002


def asks_for_more(update, temperature):
    return update


def returns_nothing():
    return 3


def wrapped(client):
    fit = client.fit

    def noisy(parameters, config):
        sent, number, metrics = fit(parameters, config)
        clipped = scaled(dict(enumerate(sent)))
        noise = np.random.normal
        return [array + noise(0, 2.0, array.shape) for array in clipped.values()], number, metrics

    client.fit = noisy
    return client


def bare_at_once(update, count):
    return {name: np.broadcast_to(array, (count, *array.shape)) for name, array in scaled(update).items()}
