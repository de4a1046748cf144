"""Run foreign projects in this process, without Ray, and read what was witnessed."""

import importlib
import random
import sys
import threading
from pathlib import Path

import numpy as np
import torch
import xxhash
from flwr.app import Context, RecordDict
from torch import nn

from fedattack.witness import WitnessedClientApp, read_witnesses, sources
from fedattack.witness.current import watching
from fedattack.witness.node import Call, save
from fedattack.witness.watch import CallWatch
from tests.apps.projects import CLIENTS, Toy
from tests.worlds.local_grid import FIRST_NODE, LocalGrid


def load(project: Toy, module: str):
    """Import a module of a project."""
    folder = str(project.where)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(f"{project.package}.{module}")


def hashes_of(x, seed: int = 0) -> set[bytes]:
    """The slow, obvious way: each example on its own."""
    return {xxhash.xxh3_128_digest(np.ascontiguousarray(row).tobytes(), seed) for row in np.asarray(x, np.float32)}


def seen(examples) -> set[bytes]:
    return {bytes(row) for row in examples.hashes}


def randomness():
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002


def run(project: Toy, wrap=lambda app: app) -> dict[tuple[int, int], list]:
    """Run a project; returns, by node and call, the arrays of the reply and the random states that the call left."""
    client, server = (load(project, name).app for name in ("client_app", "server_app"))
    client = wrap(client)
    calls: dict[tuple[int, int], list] = {}
    # Flower's legacy server calls clients from several threads, which share their random states.
    one_at_a_time = threading.Lock()

    def noting(message, context):
        node = context.node_id
        with one_at_a_time:
            key = node, sum(known == node for known, _ in calls)
            seed(sum(key) % 2**32)
            reply = client(message, context)
            calls[key] = [
                array.numpy().tobytes() for record in reply.content.array_records.values() for array in record.values()
            ]
            calls[key].append(randomness())
        return reply

    seed(3)
    grid = LocalGrid(noting, CLIENTS)
    grid.configure(project.config)
    server(grid, Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=dict(project.config)))
    return calls


def seed(value: int) -> None:
    torch.manual_seed(value)
    np.random.seed(value)  # noqa: NPY002
    random.seed(value)


def witnessed(project: Toy, folder: Path, **options):
    """Run a project under witness; returns what :func:`run` does, and the witnesses by client."""
    sent = run(project, lambda app: WitnessedClientApp(app, folder, **options))
    witnesses = read_witnesses(folder)
    assert [witness.node for witness in witnesses] == [str(FIRST_NODE + int(one.client)) for one in witnesses]
    return sent, {witness.client: witness for witness in witnesses}


def witness_of(client, folder: Path, *, received=(), sent=(), stated=None, trains=True, node="1", **options):
    """Call a function as a client is called; ``sent`` may be a model, whose state the client replies."""
    watch = CallWatch(received=lambda: [arrays_of(model) for model in received], **options)
    assert not sources.install()
    with watching(watch):
        result = client()
    replied = [arrays_of(model) for model in (sent or ([result] if isinstance(result, nn.Module) else []))]
    names = [[str(place) for place in range(len(model))] for model in replied]
    save(folder, watch, Call(node, sent=replied, names=names, stated=stated, trains=trains))
    return next(witness for witness in read_witnesses(folder) if witness.node == node)


def arrays_of(model: nn.Module):
    return [value.detach().numpy() for value in model.state_dict().values()]
