"""A tiny federation whose clients have one value each of a private attribute, written without running Flower."""

from pathlib import Path

import numpy as np
import torch

from fedattack.attacks import AuxiliaryAttribute, Knowledge, KnownDefence, ModelKnowledge, Targets, write_knowledge
from fedattack.audit.truth import ClientAttribute, note_node, write_truth
from fedattack.learning import LocalSGD, build_model, train_local
from fedattack.record import Exchange, RecordWriter, Reply

MODEL = ModelKnowledge(spec="linear", input_shape=(6,), classes=3)
TRAINING = LocalSGD(epochs=1, batch_size=2, lr=0.1)
VALUES = ("low", "middle", "high")
EACH = 4


def draw_records(codes: np.ndarray, rng: np.random.Generator, signal: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw records (n, 6) and labels (n,) that have nothing to do with the attribute, which the last inputs show."""
    x = rng.normal(size=(len(codes), 6)).astype(np.float32)
    x[:, 3:] = 0.3 * x[:, 3:] + signal * np.eye(3, dtype=np.float32)[codes]
    return x, x[:, :3].argmax(axis=1)


def write_private_run(
    folder: Path,
    *,
    clients: int = 9,
    rounds: int = 3,
    signal: float = 5.0,
    defence: KnownDefence | None = None,
    seed: int = 0,
) -> Path:
    """Write record, knowledge and truth; without signal nothing shows the attribute."""
    rng = np.random.default_rng(seed)
    held = rng.permutation(np.arange(clients) % 3)
    records = [draw_records(np.full(EACH, code), rng, signal) for code in held]
    codes = rng.permutation(np.arange(180) % 3)
    x, y = draw_records(codes, rng, signal)
    network = build_model(MODEL.spec, input_shape=MODEL.input_shape, classes=3, seed=seed)
    common = {name: value.numpy().copy() for name, value in network.state_dict().items()}
    writer = RecordWriter(folder / "record", seed=seed)
    for number in range(1, rounds + 1):
        replies = []
        for client, own in enumerate(records):
            if client == 0 and number == 2:
                continue  # was not sampled
            network.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in common.items()})
            train_local(network, *own, seed=number, **vars(TRAINING))
            sent = {name: value.numpy().copy() for name, value in network.state_dict().items()}
            replies.append(Reply(f"node{client}", "ok", sent, EACH))
        writer.write(Exchange(number, common, replies))
        common = {name: np.mean([reply.arrays[name] for reply in replies], axis=0) for name in common}
    writer.close(final=common)
    known = Knowledge(
        model=MODEL,
        training=TRAINING,
        auxiliary=Targets(x, y),
        attributes={"level": AuxiliaryAttribute(VALUES, codes)},
        defence=defence,
    )
    write_knowledge(folder / "knowledge", known)
    write_truth(
        folder / "truth",
        clients=[str(client) for client in range(clients)],
        classes=["0", "1", "2"],
        counts=np.array([np.bincount(labels, minlength=3) for _, labels in records]),
        evaluation=draw_records(codes[:60], rng, signal),
        targets="",
        private={"level": ClientAttribute(tuple(held.tolist()), VALUES)},
    )
    for client in range(clients):
        note_node(folder / "truth", node=f"node{client}", client=str(client))
    return folder
