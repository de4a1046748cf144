"""Small runs with canaries, written as records without Flower."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedattack.claims import make_claim
from fedattack.claims.canaries import Canaries
from fedattack.claims.canaries.directions import move_arrays
from fedattack.record import Exchange, Record, RecordWriter, Reply

CLIP = 1.0
DELTA = 1e-5
SHAPES = {"w": (60, 30), "steps": (), "b": (200,)}


def model(rng):
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    arrays["steps"] = np.array(7)
    return arrays


def central_claim(multiplier, clients, rounds, **changes):
    """What a run with central noise claims."""
    values = {"epsilon": 5.0, "delta": DELTA, "clip": CLIP, "noise_multiplier": multiplier, "clients": clients}
    values |= {"weights": "equal"}
    return make_claim("world", mechanism="central-gaussian", rounds=rounds, **(values | changes))


def central_run(folder: Path, *, noise: float, canaries: Canaries, clients=10, rounds=5, seed=0, view="individual"):
    """Clients that drift together, canaries, and a server that adds noise to the mean of all; returns the record.

    ``noise`` is the multiplier over all replies.
    """
    rng = np.random.default_rng(seed)
    nodes = clients + canaries.count
    common = model(rng)
    drift = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    length = np.sqrt(sum(float(np.square(drift[name]).sum()) for name in ("w", "b")))
    writer = RecordWriter(folder, view=view, seed=seed)
    for number in range(1, rounds + 1):
        sent = []
        for _ in range(clients):
            sent.append(
                common | {name: (common[name] + 0.3 * drift[name] / length).astype(np.float32) for name in ("w", "b")}
            )
        for canary in range(canaries.count):
            sent.append(move_arrays(common, canaries.seed, canary, CLIP))
        replies = [Reply(f"node-{place}", "ok", arrays, 10) for place, arrays in enumerate(sent)]
        mean = {name: np.mean([arrays[name] for arrays in sent], axis=0) for name in SHAPES}
        aggregate = None
        if view == "aggregate":
            replies = [Reply(reply.node, "ok", None, 10) for reply in replies]
            aggregate = mean
        writer.write(Exchange(number, common, replies, aggregate=aggregate))
        after = {}
        for name in ("w", "b"):
            after[name] = (mean[name] + rng.normal(0, noise * CLIP / nodes, SHAPES[name])).astype(np.float32)
        common = {"w": after["w"], "steps": common["steps"], "b": after["b"]}
    writer.close(final=common)
    return Record(folder)
