"""A tiny federation whose clients memorise random labels, written to a run folder without running Flower."""

from pathlib import Path

import numpy as np

from fedattack.attacks import Knowledge, ModelKnowledge, Targets, write_knowledge
from fedattack.audit.truth import NOBODY, note_node, write_truth
from fedattack.learning import build_model, train_local
from fedattack.record import Exchange, RecordWriter, Reply

CLIENTS = 4
EACH = 30
FEATURES = 30
CLASSES = 10
MODEL = ModelKnowledge(spec="mlp", input_shape=(FEATURES,), classes=CLASSES, hidden=64)


def write_run(
    folder: Path,
    *,
    seed: int = 0,
    rounds: int = 2,
    part: str = "",
    epochs: int = 60,
    skip: tuple[tuple[int, int], ...] = (),
    close: bool = True,
) -> Path:
    """Write record, knowledge and truth; ``epochs=0`` gives clients that learn nothing, so that nothing can leak.

    ``skip`` lists (round, client) pairs that were not sampled.
    """
    draw = np.random.default_rng(seed)
    total = CLIENTS * EACH
    x = draw.normal(size=(2 * total, FEATURES)).astype(np.float32)
    y = draw.integers(CLASSES, size=2 * total)
    parts = np.arange(total).reshape(CLIENTS, EACH)
    common = _state(build_model("mlp", input_shape=(FEATURES,), classes=CLASSES, hidden=64, seed=seed))
    writer = RecordWriter(folder / "record" / part, seed=seed, facts={"lr": 0.2})
    for number in range(1, rounds + 1):
        replies = []
        for client, rows in enumerate(parts):
            if (number, client) in skip:
                continue
            model = MODEL.build()
            _load(model, common)
            if epochs:
                train_local(
                    model, x[rows], y[rows], epochs=epochs, batch_size=10, lr=0.2, seed=seed + 10 * number + client
                )
            replies.append(Reply(f"node{client}", "ok", _state(model), EACH, {"train-loss": 0.1}))
        writer.write(Exchange(number, common, replies, config={"lr": 0.2}, mean="message"))
        common = {name: sum(reply.arrays[name] for reply in replies) / len(replies) for name in common}
        common = {name: np.asarray(array, dtype=np.float32) for name, array in common.items()}
    if close:
        writer.close(final=common)
    order = draw.permutation(2 * total)
    owners = np.array([str(client) for client in range(CLIENTS) for _ in range(EACH)] + [NOBODY] * total)
    targets = Targets(x[order], y[order])
    write_knowledge(folder / "knowledge" / part, Knowledge(model=MODEL, targets=targets))
    write_truth(
        folder / "truth" / part,
        clients=[str(client) for client in range(CLIENTS)],
        classes=[str(label) for label in range(CLASSES)],
        counts=np.array([np.bincount(y[rows], minlength=CLASSES) for rows in parts]),
        owners=owners[order].tolist(),
        evaluation=(x[total:], y[total:]),
        targets=targets.fingerprint,
    )
    for client in range(CLIENTS):
        note_node(folder / "truth" / part, node=f"node{client}", client=str(client))
    return folder


def _state(model) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def _load(model, state) -> None:
    import torch

    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
