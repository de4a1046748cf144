"""Federations of tables whose attacker lacks one column, written to run folders without running Flower."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_diabetes

from fedattack.attacks import Knowledge, ModelKnowledge, Targets, read_knowledge, write_knowledge
from fedattack.attacks.knowledge import PartialRecords
from fedattack.audit.truth import Attributes, note_node, write_truth
from fedattack.learning import LocalSGD, build_model, train_local
from fedattack.record import Exchange, RecordWriter, Reply

Table = tuple[np.ndarray, np.ndarray]
"""Records (n, d) with the attribute in the last column, and their labels."""

ONE_STEP = LocalSGD(epochs=1, batch_size=0, lr=0.1)


def linear(features: int) -> ModelKnowledge:
    return ModelKnowledge(spec="linear", input_shape=(features,), classes=1, loss="mse")


def tables(clients: int = 4, records: int = 40, features: int = 5, noise: float = 0.2, seed: int = 0) -> list[Table]:
    """Draw regressions that differ from client to client; the attribute is 0 or 1 and weighs 1."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(clients):
        x = draw.normal(size=(records, features)).astype(np.float32)
        x[:, -1] = draw.random(records) < 0.4
        weights = np.append(draw.normal(size=features - 1), 1.0)
        found.append((x, (x @ weights + noise * draw.normal(size=records)).astype(np.float32)))
    return found


def write_attribute_run(
    folder: Path,
    data: Sequence[Table] | None = None,
    *,
    model: ModelKnowledge | None = None,
    training: LocalSGD = ONE_STEP,
    domain: Sequence[Sequence[float]] = ((0.0,), (1.0,)),
    rounds: int = 30,
    share: float = 0.5,
    isolated: Sequence[int] = (),
    absent: Sequence[int] = (),
    prior: Sequence[float] | None = None,
    seed: int = 0,
) -> Path:
    """Write record and knowledge; a client takes part in a round with probability ``share``, isolated ones always do.

    The attribute is in the last column, or the last few where ``domain`` has several, and the partial records are those
    of all clients in their order.
    """
    data = tables(seed=seed) if data is None else data
    model = linear(data[0][0].shape[1]) if model is None else model
    draw = np.random.default_rng(seed)
    common = _state(build_model(model.spec, input_shape=model.input_shape, classes=model.classes, hidden=16, seed=seed))
    writer = RecordWriter(folder / "record", server="isolating" if isolated else "passive", seed=seed)
    own: dict[int, dict[str, np.ndarray]] = {}
    for number in range(1, rounds + 1):
        there = [client for client in range(len(data)) if client in isolated or draw.random() < share] or [0]
        replies = []
        for client in [client for client in there if client not in absent]:
            received = own.get(client) if client in isolated else None
            local = build_model(model.spec, input_shape=model.input_shape, classes=model.classes, hidden=16)
            start = common if received is None else received
            local.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in start.items()})
            x, y = data[client]
            train_local(local, x, y, loss=model.loss, seed=seed + 1_000 * number + client, **vars(training))
            own[client] = _state(local)
            replies.append(Reply(f"node{client}", "ok", own[client], len(y), received=received))
        writer.write(Exchange(number, common, replies))
        if replies:
            total = sum(reply.num_examples for reply in replies)
            mean = {name: sum(item.num_examples / total * item.arrays[name] for item in replies) for name in common}
            common = {name: np.asarray(array, dtype=np.float32) for name, array in mean.items()}
    writer.close(final=common)
    write_knowledge(
        folder / "knowledge",
        Knowledge(
            model=model,
            training=training,
            partial=partial_of(data, domain, prior),
            nodes={f"node{client}": f"client {client}" for client in range(len(data))},
        ),
    )
    return folder


def partial_of(
    data: Sequence[Table], domain: Sequence[Sequence[float]], prior: Sequence[float] | None = None
) -> PartialRecords:
    x = np.concatenate([records for records, _ in data])
    width = len(domain[0])
    x[:, -width:] = 0
    return PartialRecords(
        x=x,
        y=np.concatenate([labels for _, labels in data]),
        clients=np.repeat([f"client {client}" for client in range(len(data))], [len(y) for _, y in data]),
        columns=tuple(range(x.shape[1] - width, x.shape[1])),
        domain=np.array(domain, dtype=np.float32),
        names=tuple(f"value {value}" for value in range(len(domain))),
        prior=None if prior is None else np.array(prior),
    )


def values_of(data: Sequence[Table], domain: Sequence[Sequence[float]] = ((0.0,), (1.0,))) -> np.ndarray:
    """Return the true positions in ``domain`` (n,) of all clients' records."""
    own = np.concatenate([records for records, _ in data])[:, -len(domain[0]) :]
    return np.abs(own[:, None] - np.array(domain)[None]).sum(axis=2).argmin(axis=1)


def _state(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def patients(clients: int = 8, each: int = 12) -> tuple[list[Table], Targets]:
    """Return the bundled diabetes table, standardised, of clients and of nobody: five columns, the last one the BMI."""
    found = load_diabetes()
    order = np.random.default_rng(0).permutation(len(found.target))
    columns = found.data[order][:, [0, 3, 8, 9, 2]]
    x = ((columns - columns.mean(axis=0)) / columns.std(axis=0)).astype(np.float32)
    y = ((found.target[order] - found.target.mean()) / found.target.std()).astype(np.float32)
    held = [(x[start : start + each], y[start : start + each]) for start in range(0, clients * each, each)]
    return held, Targets(x[clients * each :], y[clients * each :])


NUMBERS = LocalSGD(epochs=20, batch_size=0, lr=0.1)


def write_number_run(
    folder: Path,
    data: Sequence[Table] | None = None,
    *,
    auxiliary: Targets | None = None,
    shuffled: bool = False,
    training: LocalSGD = NUMBERS,
    rounds: int = 12,
    model: ModelKnowledge | None = None,
    seed: int = 0,
) -> Path:
    """Write record, knowledge and truth where the server lacks a column of numbers, the last one.

    Where it is ``shuffled``, clients train on another order of their numbers than the true one.
    """
    if data is None:
        data, auxiliary = patients()
    draw, trained = np.random.default_rng(seed), []
    for x, y in data:
        seen = x.copy()
        if shuffled:
            seen[:, -1] = draw.permutation(seen[:, -1])
        trained.append((seen, y))
    numbers = np.concatenate([x[:, -1] for x, _ in data])
    grid = np.linspace(numbers.min(), numbers.max(), 61, dtype=np.float32)
    domain = [[value] for value in grid.tolist()]
    write_attribute_run(folder, trained, domain=domain, rounds=rounds, training=training, model=model, seed=seed)
    known = read_knowledge(folder / "knowledge")
    span = np.array([numbers.min(), numbers.max()], dtype=np.float64)
    partial = replace(partial_of(data, domain), span=span)
    shutil.rmtree(folder / "knowledge")
    write_knowledge(folder / "knowledge", replace(known, partial=partial, auxiliary=auxiliary))
    clients = [f"client {client}" for client in range(len(data))]
    write_truth(
        folder / "truth",
        clients=clients,
        classes=["all"],
        counts=np.array([[len(y)] for _, y in data]),
        owners=[],
        evaluation=(data[0][0][:1], data[0][1][:1]),
        targets="",
        attributes=Attributes(
            np.abs(numbers[:, None] - grid).argmin(axis=1),
            partial.names,
            tuple(partial.clients.tolist()),
            "bmi",
            partial.fingerprint,
            numbers.astype(np.float64),
        ),
    )
    for client in range(len(data)):
        note_node(folder / "truth", node=f"node{client}", client=clients[client])
    return folder
