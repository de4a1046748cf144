"""A tiny federation whose server knows its clients' records but for one attribute."""

from pathlib import Path

import numpy as np
import torch

from fedattack.attacks.knowledge import Knowledge, ModelKnowledge, PartialRecords, Targets
from fedattack.attacks.knowledge_files import write_knowledge
from fedattack.learning import LocalSGD, build_model, train_local
from fedattack.record import Exchange, RecordWriter, Reply

WIDTH = 10
COLUMN = 3
MODEL = ModelKnowledge(spec="mlp", input_shape=(WIDTH,), classes=4, hidden=16)
ONE_STEP = LocalSGD(epochs=1, batch_size=0, lr=0.1)


def draw_records(count: int, draw: np.random.Generator, share: float = 0.4) -> tuple[Targets, np.ndarray]:
    """Draw records whose 0/1 attribute says nothing of the other columns and little of the label."""
    x = draw.normal(size=(count, WIDTH)).astype(np.float32)
    y = draw.integers(MODEL.classes, size=count)
    x[np.arange(count), y] += 1.5
    s = (draw.random(count) < share).astype(np.int64)
    x[:, COLUMN] = s
    return Targets(x, y), s


def write_classified_run(
    folder: Path,
    *,
    clients: int = 3,
    each: int = 12,
    rounds: int = 5,
    training: LocalSGD = ONE_STEP,
    permute: bool = False,
    auxiliary: int = 60,
    nodes: bool = True,
    seed: int = 0,
) -> np.ndarray:
    """Write record and knowledge, and return which value each record has.

    With ``permute`` clients train on records whose attribute is dealt anew, so that updates say nothing of the truth.
    """
    draw = np.random.default_rng(seed)
    data = [draw_records(each, draw) for _ in range(clients)]
    trained = [item.x.copy() for item, _ in data]
    if permute:
        for x in trained:
            x[:, COLUMN] = draw.permutation(x[:, COLUMN])
    model = build_model("mlp", input_shape=(WIDTH,), classes=MODEL.classes, hidden=MODEL.hidden, seed=seed)
    common = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    writer = RecordWriter(folder / "record", seed=seed)
    for number in range(1, rounds + 1):
        replies = []
        for client, (item, _) in enumerate(data):
            model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in common.items()})
            train_local(model, trained[client], item.y, seed=seed + 100 * number + client, **vars(training))
            sent = {name: value.numpy().copy() for name, value in model.state_dict().items()}
            replies.append(Reply(f"node{client}" if nodes else str(client), "ok", sent, each))
        writer.write(Exchange(number, common, replies))
        common = {name: np.mean([reply.arrays[name] for reply in replies], axis=0, dtype=np.float32) for name in common}
    writer.close(final=common)
    x = np.concatenate([item.x for item, _ in data])
    x[:, COLUMN] = 0
    partial = PartialRecords(
        x=x,
        y=np.concatenate([item.y for item, _ in data]),
        clients=np.repeat([str(client) for client in range(clients)], each),
        columns=(COLUMN,),
        domain=np.array([[0.0], [1.0]], dtype=np.float32),
        names=("no", "yes"),
        prior=np.array([0.6, 0.4]),
    )
    write_knowledge(
        folder / "knowledge",
        Knowledge(
            model=MODEL,
            training=training,
            partial=partial,
            auxiliary=draw_records(auxiliary, draw)[0],
            nodes={f"node{client}": str(client) for client in range(clients)} if nodes else {},
        ),
    )
    return np.concatenate([s for _, s in data])
